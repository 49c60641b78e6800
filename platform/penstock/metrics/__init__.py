"""Counters, gauges and meters of one process, and their Prometheus text; names are Flink's."""
