"""A stage for tests against a real broker: fresh topics, plain and transactional writes, and what readers see."""

import contextlib
import datetime as dt
import threading
import uuid

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.support.waiting import wait_until

from penstock.connector.source import SourceContext
from penstock.core.clock import SystemClock
from penstock.core.schema import Schema
from penstock_connectors.kafka.source import KafkaSource, KafkaSourceFactory


class Order(Schema):
    user_id: int
    amount: int
    ts: dt.datetime | None


class KafkaStage:
    """What a test does to a broker from outside penstock."""

    def __init__(self, bootstrap, prefix):
        self.bootstrap, self.prefix = bootstrap, prefix
        self.resolved = {"bootstrap.servers": bootstrap, "log_level": "0"}
        self.admin = AdminClient(self.resolved)

    def topic(self, name, partitions=1, **config):
        topic = f"{self.prefix}{name}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(30)
        return topic

    def grow(self, topic, partitions):
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)

    def delete_before(self, topic, partition, offset):
        place = TopicPartition(topic, partition, offset)
        self.admin.delete_records([place])[place].result(30)

    def produce(self, topic, values, partition=0, *, transaction=None, keys=None, timestamps=None, headers=None):
        """Write; `transaction`: None, "commit", "abort" or "open" (left open; returns the producer)."""
        options = {} if transaction is None else {"transactional.id": f"{self.prefix}w-{uuid.uuid4().hex[:6]}"}
        producer = Producer({**self.resolved, **options})
        if transaction:
            producer.init_transactions(30)
            producer.begin_transaction()
        for i, value in enumerate(values):
            extra = {} if timestamps is None else {"timestamp": timestamps[i]}
            extra |= {} if headers is None else {"headers": headers[i]}
            producer.produce(topic, value, keys[i] if keys else None, partition, **extra)
        assert producer.flush(30) == 0
        if transaction == "commit":
            producer.commit_transaction(30)
        elif transaction == "abort":
            producer.abort_transaction(30)
        return producer

    def read(self, topic, *, committed=True):
        """All messages visible now, as (partition, offset, key, value)."""
        return [(m.partition(), m.offset(), m.key(), m.value()) for m in self.messages(topic, committed=committed)]

    def messages(self, topic, *, committed=True):
        """All messages visible now, by partition and offset."""
        level = "read_committed" if committed else "read_uncommitted"
        consumer = Consumer(
            {
                **self.resolved,
                "group.id": uuid.uuid4().hex,
                "isolation.level": level,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
        )
        partitions = len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
        out, ended = [], set()

        def at_the_end():
            for message in consumer.consume(1000, 0.2):
                if not message.error():
                    out.append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:  # another error is no end: it is tried again
                    ended.add(message.partition())
            return len(ended) == partitions

        try:
            wait_until(at_the_end, lambda: f"the end of {topic}: {len(out)} messages, ends of {ended}", step=0)
        finally:
            consumer.close()
        return sorted(out, key=lambda m: (m.partition(), m.offset()))

    def values(self, topic, *, committed=True):
        return [value for _, _, _, value in self.read(topic, committed=committed)]


class ReaderStage:
    """A source reader, driven as a subtask's loop drives it: poll, and wait for the wake-up when there is nothing."""

    def __init__(self, kafka, source, *, splits=None):
        self.source = source
        spec = source.spec()
        factory = KafkaSourceFactory()
        self.enumerator = factory.create_enumerator(spec, first_run=splits is None)
        self.woken = threading.Event()
        context = SourceContext(
            subtask=0, parallelism=1, job_name=kafka.prefix + "job", uid="in", clock=SystemClock(), wake=self.woken.set
        )
        self.reader = factory.create_reader(spec, context)
        splits = self.enumerator.discover(frozenset()) if splits is None else splits
        self.reader.add_splits(splits)
        self.splits = {split.id for split in splits}
        self.finished, self.caught_up, self.batches, self.metrics = set(), set(), [], {}
        self._rows, self._by_split = [], {}

    def poll(self, max_rows=10_000):
        self.woken.clear()
        result = self.reader.poll(max_rows)
        for batch in result.batches:
            self._take(batch)
        self.finished |= set(result.finished)
        self.caught_up = set(result.caught_up)
        self.metrics = result.metrics
        return result

    def until(self, done, max_rows=10_000):
        def polled():
            if done(self):
                return True
            if not self.poll(max_rows).batches and not done(self):
                self.woken.wait(0.2)
            return done(self)

        wait_until(polled, lambda: f"rows, {len(self.rows())} came; finished {self.finished} of {self.splits}", step=0)
        return self

    def to_end(self, max_rows=10_000):
        return self.until(lambda s: s.finished == s.splits, max_rows)

    def _take(self, batch):
        self.batches.append(batch)
        index = batch.split_index.tolist() if batch.split_index is not None else [0] * batch.data.num_rows
        for row, i in zip(batch.data.to_pylist(), index, strict=True):
            self._rows.append(row)
            self._by_split.setdefault(batch.split_ids[i], []).append(row)

    def rows(self):
        return list(self._rows)

    def by_split(self):
        return dict(self._by_split)

    def close(self):
        self.reader.close()
        self.enumerator.close()


@pytest.fixture
def kafka(kafka_server, topic_prefix):
    return KafkaStage(kafka_server.bootstrap, topic_prefix)


@pytest.fixture(params=["fast", "plain"])
def implementation(request, monkeypatch):
    """Both ways to talk to librdkafka."""
    monkeypatch.setenv("PENSTOCK_KAFKA_PLAIN", "1" if request.param == "plain" else "0")
    return request.param


@pytest.fixture
def order():
    return Order


@pytest.fixture
def open_reader(kafka):
    """Open readers that are closed when the test ends."""
    with contextlib.ExitStack() as stack:

        def start(topic, *, splits=None, schema=Order, **options):
            source = KafkaSource(kafka.bootstrap, topic, schema, **options)
            stage = ReaderStage(kafka, source, splits=splits)
            stack.callback(stage.close)
            return stage

        yield start
