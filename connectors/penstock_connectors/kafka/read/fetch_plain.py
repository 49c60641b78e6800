"""The plain fetcher: confluent-kafka's message objects, one Python object per message.

Chosen by `reader.open_fetcher` where librdkafka's C interface cannot be used. A thread consumes into a queue of few
batches and calls `wake`; the subtask's thread only takes from that queue. While the queue stays full, the thread pauses
all partitions and continues to consume: the client's queue of statistics has no bound, and only `consume` empties it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from penstock.core.errors import ConnectorError
from penstock_connectors.kafka.client.properties import PartitionId
from penstock_connectors.kafka.read.fetch import (
    ClientEvents,
    Envelope,
    Fetched,
    FetchProblem,
    FetchResult,
    FetchSettings,
    client_properties,
)

_BATCH, _QUEUED_BATCHES = 1000, 4
#: Waits for a place in the queue before the partitions are paused, which discards prefetched messages.
_WAITS_UNTIL_PAUSE = 100
_PARTITION_EOF = -191


class PlainFetcher:
    """A `Fetcher` on confluent-kafka's `Consumer`."""

    def __init__(self, settings: FetchSettings, wait_s: float = 0.1) -> None:
        """Start the client; nothing is fetched before `add`. Its thread waits for `wait_s` at a time."""
        self._settings, self._wait_s = settings, wait_s
        self._found: queue.Queue[list[Message]] = queue.Queue(_QUEUED_BATCHES)
        self._rest: list[Message] = []
        self._events = ClientEvents()
        silent = logging.getLogger("penstock.kafka.client")
        silent.disabled = True  # important log lines also come as events
        callbacks = {"logger": silent, "error_cb": self._on_error, "on_commit": self._on_commit}
        callbacks |= {"stats_cb": self._on_statistics}
        try:
            self._consumer = Consumer({**client_properties(settings.properties), **callbacks})
        except KafkaException as error:
            raise ConnectorError(f"the Kafka client cannot start: {error.args[0].str()}") from error
        self._places: list[PartitionId] = []
        self._slots: dict[PartitionId, int] = {}
        # the consuming thread makes all calls: calls of another one would wait for that thread's `consume` forever
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        #: Partitions paused by the reader, and by a full queue.
        self._paused: set[PartitionId] = set()
        self._held: set[PartitionId] = set()
        self._ends: dict[PartitionId, int] = {}
        #: The partitions whose lag was asked for last: also of a quiet one the end is wanted.
        self._lagging: set[PartitionId] = set()
        self._assigned = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._consume, name="kafka-consume", daemon=True)
        self._thread.start()

    def add(self, starts: Mapping[PartitionId, int]) -> None:
        """Start fetching these partitions from these offsets."""
        for place in starts:
            if place not in self._slots:
                self._slots[place] = len(self._places)
                self._places.append(place)
        assignment = [TopicPartition(*place, at) for place, at in starts.items()]
        self._calls.put(functools.partial(self._consumer.incremental_assign, assignment))
        self._assigned.set()

    def remove(self, places: list[PartitionId]) -> None:
        """Stop fetching these."""
        self._calls.put(functools.partial(self._remove, places))

    def pause(self, places: list[PartitionId]) -> None:
        """Pause these partitions."""
        self._calls.put(functools.partial(self._pause, places))

    def resume(self, places: list[PartitionId]) -> None:
        """Resume these partitions."""
        self._calls.put(functools.partial(self._resume, places))

    def fetch(self, max_messages: int) -> FetchResult:
        """Return the messages that the thread has queued."""
        result = FetchResult()
        found = self._rest
        while len(found) < max_messages:
            try:
                found += self._found.get_nowait()
            except queue.Empty:
                break
        found, self._rest = found[:max_messages], found[max_messages:]
        self._events.move_to(result)
        self._columns(found, result)
        return result

    def lag(self, positions: Mapping[PartitionId, int]) -> int | None:
        """Sum up the values that the brokers have sent with each partition."""
        self._lagging = set(positions)
        if not self._lagging <= self._ends.keys():
            return None
        return sum(max(0, self._ends[place] - position) for place, position in positions.items())

    def commit(self, offsets: Mapping[PartitionId, int]) -> None:
        """Publish offsets; the answer comes as a callback."""
        wanted = [TopicPartition(*place, at) for place, at in offsets.items()]
        self._calls.put(functools.partial(self._consumer.commit, offsets=wanted, asynchronous=True))

    @property
    def commit_failures(self) -> int:
        """Return the number of commits that failed so far."""
        return self._events.commit_failures

    def close(self) -> None:
        """Free everything."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._assigned.set()
        while self._thread.is_alive():
            while not self._found.empty():
                self._found.get_nowait()
            self._thread.join(self._wait_s)
        self._consumer.close()

    def _consume(self) -> None:
        self._assigned.wait()
        while not self._closing.is_set():
            if batch := self._next():
                self._hand_over(batch)

    def _next(self) -> list[Message]:
        """Make the calls that wait, and return new messages; the client calls back with its events meanwhile."""
        try:
            while not self._calls.empty():
                self._calls.get_nowait()()
            batch = self._consumer.consume(_BATCH, self._wait_s)
            for place in {(str(m.topic()), int(m.partition() or 0)) for m in batch}:
                self._read_end(place)
            for place in self._lagging - self._ends.keys():
                with contextlib.suppress(KafkaException):  # it is not assigned yet
                    self._read_end(place)
        except KafkaException as error:
            self._on_error(error.args[0])
            return []
        return batch

    def _read_end(self, place: PartitionId) -> None:
        marks = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
        if marks[1] >= 0:
            self._ends[place] = marks[1]

    def _hand_over(self, batch: list[Message]) -> None:
        """Wait until the queue has a place for the batch."""
        waits = 0
        while not self._closing.is_set():
            try:
                self._found.put(batch, timeout=0 if self._held else self._wait_s)
            except queue.Full:
                waits += 1
                if waits >= _WAITS_UNTIL_PAUSE:
                    self._hold()
                    batch += self._next()
                continue
            self._settings.wake()
            self._release()
            return

    def _hold(self) -> None:
        """Pause all partitions, also those that were added since."""
        try:
            assigned = {(item.topic, item.partition) for item in self._consumer.assignment()}
            if fresh := assigned - self._held:
                self._consumer.pause([TopicPartition(*place) for place in fresh])
                self._held |= fresh
        except KafkaException as error:
            self._on_error(error.args[0])

    def _release(self) -> None:
        """Resume the partitions that are paused by the full queue alone."""
        held, self._held = self._held, set()
        try:
            assigned = {(item.topic, item.partition) for item in self._consumer.assignment()} if held else set()
            if again := held & assigned - self._paused:
                self._consumer.resume([TopicPartition(*place) for place in again])
        except KafkaException as error:
            self._on_error(error.args[0])

    def _pause(self, places: list[PartitionId]) -> None:
        self._paused.update(places)
        self._consumer.pause([TopicPartition(*place) for place in places])

    def _resume(self, places: list[PartitionId]) -> None:
        self._paused.difference_update(places)
        if again := [TopicPartition(*place) for place in places if place not in self._held]:
            self._consumer.resume(again)

    def _remove(self, places: list[PartitionId]) -> None:
        self._paused.difference_update(places)
        self._held.difference_update(places)
        self._consumer.incremental_unassign([TopicPartition(*place) for place in places])

    def _on_error(self, error: Any) -> None:
        self._events.failed(FetchProblem(error.code(), error.str()))

    def _on_statistics(self, text: str) -> None:
        self._events.measured(text.encode())

    def _on_commit(self, error: Any, _partitions: Any) -> None:
        if error is not None:
            self._events.commit_failed()

    def _columns(self, found: list[Message], result: FetchResult) -> None:
        rows = []
        for message in found:
            error, place = message.error(), (str(message.topic()), int(message.partition() or 0))
            if error is None:
                rows.append(message)
                result.ends.pop(place, None)
                result.positions[place] = int(message.offset() or 0) + 1
            elif error.code() == _PARTITION_EOF:
                result.ends[place] = int(message.offset() or 0)
            else:
                result.problems.append(FetchProblem(error.code(), error.str(), place if message.topic() else None))
        if rows:
            wanted = self._settings
            result.messages = Fetched(
                value=pa.array([m.value() for m in rows], pa.large_binary()),
                slot=np.array([self._slots[str(m.topic()), int(m.partition() or 0)] for m in rows], np.int64),
                offset=np.array([m.offset() for m in rows], np.int64),
                key=pa.array([m.key() for m in rows], pa.large_binary()) if wanted.keys else None,
                timestamp=np.array([m.timestamp()[1] for m in rows], np.int64) if wanted.timestamps else None,
                places=self._places,
                envelopes=(lambda some: [_envelope(rows[row]) for row in some]) if wanted.envelopes else None,
            )


def _envelope(message: Message) -> Envelope:
    kind, time_ms = message.timestamp()
    headers: Any = message.headers() or ()
    key: Any = message.key()
    return Envelope(key, time_ms if kind else None, tuple(headers))
