"""The two real servers: they serve, and what they acknowledged is there after a crash."""

import io

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock_lab.servers import minio_local, start_kafka, start_minio

pytestmark = pytest.mark.servers

RECORDS = 500


def create_topic(bootstrap, topic):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)]).values():
        future.result(30)


def produce(bootstrap, topic, values):
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value=str(value).encode())
    assert producer.flush(30) == 0


def read_all(bootstrap, topic, count):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values = []
    try:
        while len(values) < count:
            messages = consumer.consume(count, timeout=30)
            assert messages, f"only {len(values)} of {count} records within 30 s"
            assert all(message.error() is None for message in messages)
            values += [int(message.value()) for message in messages]
    finally:
        consumer.close()
    return sorted(values)


def test_session_servers_write_and_read(kafka_server, minio_server, topic_prefix, bucket):
    topic = topic_prefix + "plain"
    create_topic(kafka_server.bootstrap, topic)
    produce(kafka_server.bootstrap, topic, range(RECORDS))
    assert read_all(kafka_server.bootstrap, topic, RECORDS) == list(range(RECORDS))
    client = minio_local.client(minio_server)
    client.put_object(bucket, "a/b", io.BytesIO(b"abc"), 3)
    with client.get_object(bucket, "a/b") as answer:
        assert answer.read() == b"abc"


def test_kafka_keeps_what_it_acknowledged_over_kill_9(tmp_path, topic_prefix):
    server = start_kafka(tmp_path)
    try:
        topic = topic_prefix + "crash"
        create_topic(server.bootstrap, topic)
        produce(server.bootstrap, topic, range(RECORDS))
        first, bootstrap = server.pid, server.bootstrap
        server.kill()
        assert server.pid is None
        server.restart()
        assert server.pid not in (None, first)
        assert server.bootstrap == bootstrap
        produce(bootstrap, topic, range(RECORDS, 2 * RECORDS))
        assert read_all(bootstrap, topic, 2 * RECORDS) == list(range(2 * RECORDS))
    finally:
        server.remove()


def test_minio_keeps_what_it_acknowledged_over_kill_9(tmp_path):
    server = start_minio(tmp_path)
    try:
        server.make_bucket("kept")
        client = minio_local.client(server)
        for number in range(50):
            client.put_object("kept", f"{number:03}", io.BytesIO(b"x" * number), number)
        server.kill()
        server.restart()
        client = minio_local.client(server)
        assert [found.size for found in client.list_objects("kept")] == list(range(50))
        server.make_bucket("kept")  # exists: nothing happens
    finally:
        server.remove()


def test_an_unknown_topic_is_not_created(kafka_server, topic_prefix):
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    found = admin.list_topics(topic_prefix + "missing", timeout=30).topics[topic_prefix + "missing"]
    assert found.error is not None
    assert found.error.name() == "UNKNOWN_TOPIC_OR_PART"
