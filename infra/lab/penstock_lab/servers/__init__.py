"""Real servers for the demo and the tests: Kafka and MinIO, as containers or local processes with one interface."""

from penstock_lab.servers.choose import start_kafka, start_minio
from penstock_lab.servers.kafka_local import LocalKafka
from penstock_lab.servers.minio_local import LocalMinio
from penstock_lab.servers.spec import KafkaServer, MinioServer, Progress, Server

__all__ = ["KafkaServer", "LocalKafka", "LocalMinio", "MinioServer", "Progress", "Server", "start_kafka", "start_minio"]
