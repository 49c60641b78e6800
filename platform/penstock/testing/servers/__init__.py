"""Real servers for the demo and the tests: Kafka and MinIO, as containers or local processes with one interface."""

from penstock.testing.servers.choose import start_kafka, start_minio
from penstock.testing.servers.kafka_local import LocalKafka
from penstock.testing.servers.minio_local import LocalMinio
from penstock.testing.servers.spec import KafkaServer, MinioServer, Progress, Server

__all__ = ["KafkaServer", "LocalKafka", "LocalMinio", "MinioServer", "Progress", "Server", "start_kafka", "start_minio"]
