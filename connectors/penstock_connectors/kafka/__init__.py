"""Kafka in and out: `KafkaSource` and `KafkaSink`; the only package that imports a Kafka client library."""

from penstock_connectors.kafka.sink import KafkaSink
from penstock_connectors.kafka.source import KafkaSource

__all__ = ["KafkaSink", "KafkaSource"]
