"""Kafka topics of the benchmarks: events as JSON in four partitions by user, and windows read back as one checksum.

Used by w4, and by w5 for a peer that reads only from Kafka; `create` and `fill` also by the bench of backfills. Topics
of `Topics` have unique names, so that a broker can be reused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from penstock.core.errors import ConnectorError
from penstock_lab.bench.measuring import reference
from penstock_lab.bench.measuring.peers import Trial

PARTITIONS = 4
_CHUNK = 100_000
_SECONDS = 120
_READ_S = 0.5
_SIZE_MS = 10_000

Int64s = np.ndarray[Any, np.dtype[np.int64]]


class Topics:
    """The topics of one benchmark run on a broker."""

    def __init__(self, bootstrap: str, *, keyed: bool = False) -> None:
        """Use the broker at `bootstrap`; with `keyed` every message has its user as key."""
        self.bootstrap = bootstrap
        self._keyed = keyed
        self._run = os.urandom(4).hex()
        self._sources: dict[int, str] = {}
        self._sinks = 0

    def source(self, events: int) -> str:
        """Return the topic with this many events; it is filled at the first call."""
        if events not in self._sources:
            topic = f"bench-{self._run}-in-{events}"
            create(self.bootstrap, topic)
            fill(self.bootstrap, topic, self._messages(events))
            self._sources[events] = topic
        return self._sources[events]

    def sink(self) -> str:
        """Return a new empty topic."""
        self._sinks += 1
        topic = f"bench-{self._run}-out-{self._sinks}"
        create(self.bootstrap, topic)
        return topic

    def trial(self, events: int) -> Trial:
        """Return a peer's topics as words; the peer reports its answer."""
        return Trial(words=self._words(events))

    def trial_with_output(self, events: int) -> Trial:
        """Return a peer's topics as words; its answer is in the output topic."""
        topic = self.sink()
        words = self._words(events) | {"out": topic}
        return Trial(words=words, answer=lambda: windows(self.bootstrap, topic, events).checksum)

    def _words(self, events: int) -> dict[str, str]:
        counts = ",".join(map(str, stops(events).values()))
        return {"bootstrap": self.bootstrap, "topic": self.source(events), "stops": counts}

    def _messages(self, events: int) -> Iterator[tuple[int, bytes | None, bytes]]:
        for low in range(0, events, _CHUNK):
            columns = (column.tolist() for column in reference.events(low, min(low + _CHUNK, events)))
            for user, amount, time in zip(*columns, strict=True):
                value = b'{"user_id":%d,"amount":%d,"ts_ms":%d}' % (user, amount, time)
                yield user % PARTITIONS, b"%d" % user if self._keyed else None, value


def fill(bootstrap: str, topic: str, messages: Iterable[tuple[int, bytes | None, bytes]]) -> None:
    """Write messages to a topic: partition, key and value of each."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 400_000})
    for number, (partition, key, value) in enumerate(messages):
        while True:
            try:
                producer.produce(topic, value, key, partition=partition)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % _CHUNK:
            producer.poll(0)
    left = producer.flush(_SECONDS)
    if left:
        raise ConnectorError(f"{left} events were not taken by the broker at {bootstrap} in {_SECONDS} s")


@cache
def stops(events: int) -> dict[int, int]:
    """Return how many of the events each partition holds; this takes as long as making them, so runs receive it."""
    counts = np.zeros(PARTITIONS, np.int64)
    for users, _, _ in reference.chunks(events):
        counts += np.bincount(users % PARTITIONS, minlength=PARTITIONS)
    return dict(enumerate(counts.tolist()))


class Windows(NamedTuple):
    """The windows in a topic, as a read-committed consumer sees them."""

    checksum: str
    #: Events counted by all windows, including those outside of the checksum.
    events: int
    #: (end, arrival at the broker, 1) of each, in microseconds of the wall clock.
    arrivals: Int64s


def windows(bootstrap: str, topic: str, events: int) -> Windows:
    """Read a topic back; its broker stamps the arrivals (`create`)."""
    everything = 0
    cut = reference.last_sure_window(events, _SIZE_MS)
    result = [0, 0, 0, 0]
    arrivals = []
    for row, arrived_ms in _read(bootstrap, topic):
        everything += row["cnt"]
        user, end, count, total = row["user_id"], _ms(row["window_end"]), row["cnt"], row["sm"]
        arrivals.append((end * 1000, arrived_ms * 1000, 1))
        if end <= cut:
            number = (end - reference.T0_MS) // _SIZE_MS
            check = ((user * 31 + number * 17 + count) * (total + 7)) % reference.MODULUS
            result = [a + b for a, b in zip(result, (1, count, total, check), strict=True)]
    return Windows(":".join(map(str, result)), everything, np.array(arrivals, np.int64).reshape(-1, 3))


def _ms(time: int | str) -> int:
    if isinstance(time, int):
        return time
    return int(np.datetime64(time.rstrip("Z").partition("+")[0], "ms").astype(np.int64))


def create(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    """Create a topic whose records have the times of their arrival at the broker."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    made = NewTopic(topic, partitions, 1, config={"message.timestamp.type": "LogAppendTime"})
    admin = AdminClient({"bootstrap.servers": bootstrap})  # must outlive its futures
    for future in admin.create_topics([made], operation_timeout=20).values():
        try:
            future.result(timeout=30)
        except Exception as error:
            msg = f"topic {topic} cannot be created at {bootstrap}: {error}"
            raise ConnectorError(msg, hint="check that it is a reachable Kafka broker") from error


def _read(bootstrap: str, topic: str) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield every message and its arrival time at the broker (ms)."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    ended: set[int | None] = set()
    vain = 0
    try:
        while len(ended) < PARTITIONS:
            messages = consumer.consume(10_000, _READ_S)  # it returns after this many messages, or after the time
            vain = 0 if messages else vain + 1
            if vain * _READ_S > _SECONDS:
                raise ConnectorError(f"reading {topic} back stalled", hint="is the broker up?")
            for message in messages:
                error = message.error()
                if error is None:
                    yield json.loads(message.value() or b""), message.timestamp()[1]
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public constant
                    ended.add(message.partition())
                else:
                    raise ConnectorError(f"reading {topic} back failed: {error}")
    finally:
        consumer.close()
