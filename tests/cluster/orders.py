"""Input and output of the main job, seen by plain Kafka clients: a seeded order stream, and a read-committed reader.

Event time: one order a millisecond, with disorder below the watermark's bound; every window is known beforehand.
"""

import json
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from tests.support.waiting import DEADLINE_S, patience, wait_until

from penstock.cli.demo.demo_scenario import compare, expected_windows

START_MS = 1_700_000_000_000
WINDOW_MS = 1_000
DISORDER_MS = 500
USERS = 25
PARTITIONS = 4
CHUNK = 100
READ_LIMIT_S = 30
#: How much slower the second half goes out.
TRICKLE = 8
#: Orders that go out after `go_on` alone.
HELD = 500


@dataclass(frozen=True)
class Orders:
    """A seeded stream of `events` orders."""

    seed: int
    events: int
    users: int = USERS
    #: Milliseconds of event time between two orders.
    step_ms: float = 1.0
    partitions: int = PARTITIONS

    def columns(self):
        rand = np.random.default_rng(self.seed)
        users = rand.integers(0, self.users, self.events)
        amounts = rand.integers(1, 1_000, self.events)
        drift = rand.integers(0, DISORDER_MS, self.events)
        times_ms = START_MS + (np.arange(self.events) * self.step_ms).astype(np.int64) - drift
        return users, amounts, times_ms

    def windows(self, size_ms=WINDOW_MS):
        """(user, start in us) -> (count, sum), computed without the engine."""
        users, amounts, times_ms = self.columns()
        return expected_windows(users, amounts, times_ms * 1_000, size_ms * 1_000)

    def stops(self, topic):
        """Where the bounded source ends: the records of each partition."""
        return {(topic, p): len(range(p, self.events, self.partitions)) for p in range(self.partitions)}


class Feed:
    """Produces the stream with an idempotent producer in a background thread.

    The first half goes out at a steady rate, the rest in a trickle, and its last orders only after `go_on`: a job on a
    busy machine never finds its input ended before it was broken.
    """

    def __init__(self, bootstrap, topic, orders, rate, chunk=CHUNK):
        self.orders, self.topic, self.rate, self.chunk = orders, topic, rate, chunk
        self.sent = 0
        self._bootstrap = bootstrap
        self._error = None
        self._closing = threading.Event()
        self._going_on = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self):
        self._thread.start()

    def go_on(self):
        """Send what is left at once."""
        self._going_on.set()

    def end(self):
        """End it early; nothing happens if it has ended."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(READ_LIMIT_S)
            assert not self._thread.is_alive(), "the feed hangs"

    def join(self, seconds=DEADLINE_S):
        """Send the rest, and wait until every order is acknowledged."""
        self.go_on()
        wait_until(
            lambda: not self._thread.is_alive(),
            lambda: f"all {self.orders.events} orders to be acknowledged, {self.sent} are sent",
            seconds=seconds,
        )
        if self._error is not None:
            raise self._error
        assert self.sent == self.orders.events, "the feed was ended early"

    def _run(self):
        try:
            self._send_all()
        except BaseException as error:
            self._error = error

    def _pace(self, due):
        """Wait until the next chunk is due, at once after `go_on`; return when that was."""
        left = self.orders.events - self.sent
        rate = self.rate / TRICKLE if self.sent > self.orders.events // 2 else self.rate
        due = max(due, time.monotonic() - 1.0) + self.chunk / rate
        while not self._closing.is_set() and not self._going_on.is_set():
            pause = due - time.monotonic()
            if pause <= 0 and left > min(HELD, self.orders.events // 4):
                break
            self._going_on.wait(max(0.02, min(pause, 0.1)))
        return due

    def _send_all(self):
        users, amounts, times_ms = (column.tolist() for column in self.orders.columns())
        refused = []
        settings = {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 10}
        producer = Producer(settings)
        due = time.monotonic()
        for low in range(0, self.orders.events, self.chunk):
            for i in range(low, min(low + self.chunk, self.orders.events)):
                value = b'{"user_id":%d,"amount":%d,"ts":%d}' % (users[i], amounts[i], times_ms[i])
                producer.produce(
                    self.topic, value, partition=i % self.orders.partitions,
                    on_delivery=lambda error, _message: error and refused.append(error),
                )  # fmt: skip
            producer.poll(0)
            self.sent = min(low + self.chunk, self.orders.events)
            due = self._pace(due)
            if self._closing.is_set():
                break
        assert producer.flush(READ_LIMIT_S * patience()) == 0
        assert not refused, refused[0]


def create_topics(bootstrap, **topics):
    """Create `name=partitions` topics and return once they exist."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()]).values():
        future.result(30)


def limit_messages(bootstrap, topic, size_bytes):
    """Set the size of the largest message a topic takes."""
    entry = ConfigEntry("max.message.bytes", str(size_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def produce_values(bootstrap, topic, values, partition=0):
    """Send raw values to one partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(READ_LIMIT_S * patience()) == 0


def read_messages(bootstrap, topic, isolation="read_committed"):
    """Everything a reader of that isolation level sees, up to the present end of all partitions."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"check-{topic}",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    try:
        partitions = consumer.list_topics(topic, timeout=READ_LIMIT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
        ended, found = set(), []

        def at_the_end():
            for message in consumer.consume(10_000, timeout=0.2):
                if message.error() is None:
                    found.append(message)
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    ended.add(message.partition())
            return len(ended) == len(partitions)

        wait_until(at_the_end, lambda: f"the end of {topic}, read are {len(found)} of {len(ended)} ends", step=0)
    finally:
        consumer.close()
    return found


def micros(value):
    """Microseconds of a timestamp as JSON carries it: epoch milliseconds, or ISO 8601 (UTC if it says nothing)."""
    if isinstance(value, int):
        return value * 1_000
    stamp = datetime.fromisoformat(value)
    since = (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


def read_windows(bootstrap, topic):
    """The output as rows (user, start in us, count, sum)."""
    rows = []
    for message in read_messages(bootstrap, topic):
        row = json.loads(message.value())
        rows.append((int(row["user_id"]), micros(row["window_start"]), int(row["n"]), int(row["total"])))
    return rows


def verdict(orders, rows, size_ms=WINDOW_MS):
    """Windows, missing, duplicated, wrong."""
    return compare(orders.windows(size_ms), rows)
