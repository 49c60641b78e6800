class KafkaSink: pass
