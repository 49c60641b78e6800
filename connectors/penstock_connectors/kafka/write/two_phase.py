"""The writer of `exactly-once-2pc`: the open transaction, flushed and verified at the barrier, is the prepared state.

Each transaction has its own producer, so that (transactional id, producer id, epoch) names exactly one transaction.
Ending it later, from any process, cannot end another one. Runs in the sink subtask's thread; the next transaction's
producer is made in the background.
"""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.connector.sink import SinkContext
from penstock.core.errors import ConnectorError
from penstock.core.snapshot import Committable
from penstock_connectors.kafka.client.properties import resolve
from penstock_connectors.kafka.write.coordinator import AnswerWatch, Coordinator
from penstock_connectors.kafka.write.payloads import encode
from penstock_connectors.kafka.write.producer import (
    CALL_TIMEOUT_MS,
    QUICK_TIMEOUT_MS,
    MessageProducer,
    ProducerError,
    UnknownTopicError,
    topics_text,
)
from penstock_connectors.kafka.write.producer_choice import open_producer
from penstock_connectors.kafka.write.transactions import marker_of

#: Ids of one attempt. If a later attempt used the same id, late threads of this one could initialise it, which would
#: abort a prepared transaction of the later attempt.
IDS_PER_ATTEMPT = 1 << 16
_ONGOING = "Ongoing"
_REMEDY = (
    "check that the brokers run and are reachable; the job continues from its newest checkpoint and writes the rows "
    "again; a longer transaction_timeout survives a longer outage"
)


class PreparedProducers:
    """Producers whose transactions are prepared and not ended; freed by the thread that ends them."""

    def __init__(self) -> None:
        """Start without producers."""
        self._lock = threading.Lock()
        self._held: dict[str, MessageProducer] = {}

    def hold(self, transactional_id: str, producer: MessageProducer) -> None:
        """Keep a producer alive: freeing it earlier is allowed, but its id must not be reused before the end."""
        with self._lock:
            self._held[transactional_id] = producer

    def release(self, transactional_id: str) -> None:
        """Free the producer whose transaction has ended; its id may be reused."""
        with self._lock:
            producer = self._held.pop(transactional_id, None)
        if producer is not None:
            producer.close()

    def ids(self) -> set[str]:
        """Return the ids in use."""
        with self._lock:
            return set(self._held)


#: Writers of this process by the stem of their ids, for the committer of the same subtask.
PREPARED: weakref.WeakValueDictionary[str, PreparedProducers] = weakref.WeakValueDictionary()


@dataclass(slots=True)
class _Transaction:
    """A producer whose transaction differs from all others by its identity."""

    transactional_id: str
    producer: MessageProducer
    producer_id: int
    producer_epoch: int
    #: When the broker may end it (monotonic); set with its first row.
    deadline_ms: float = 0.0
    rows: int = 0
    size_bytes: int = 0


class TransactionWriter:
    """A `SinkWriter` with one transaction per epoch, begun with its first row."""

    def __init__(self, config: dict[str, Any], context: SinkContext) -> None:
        """Make the first producer in the background."""
        self._config, self._context = config, context
        self._stem = context.transactional_id
        self._resolved = resolve(config["bootstrap"], config["properties"])
        #: Of the subtask's thread, and of the thread that makes producers.
        self._coordinator = Coordinator(self._resolved, context.clock)
        self._init_coordinator = Coordinator(self._resolved, context.clock)
        self._held = PreparedProducers()
        PREPARED[self._stem] = self._held
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kafka-init")
        self._current: _Transaction | None = None
        self._closed = False
        #: Whether Kafka has a coordinator for the marker.
        self._has_group = False
        self._next: Future[_Transaction] | None = self._prepare_next()

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows inside the open transaction; begin it with the first.

        Raises:
            ConnectorError: Kafka refused, or did not answer within the transaction's time-out.
        """
        values, keys = encode(batch, self._config)
        try:
            current = self._current = self._current or self._begin()
            current.producer.send(self._config["topic"], values, keys)
        except ConnectorError as error:
            raise _at(f"sink {self._context.uid!r}, topic {self._config['topic']!r}", error) from error
        current.rows += batch.num_rows
        current.size_bytes += values.nbytes

    def _begin(self) -> _Transaction:
        ready = self._next if self._next is not None else self._prepare_next()
        current = self._current = ready.result()
        current.producer.begin()
        current.deadline_ms = self._context.clock.monotonic_ms() + self._config["transaction_timeout_ms"]
        self._next = self._prepare_next()
        return current

    def prepare_commit(self, checkpoint_id: int) -> tuple[Committable, ...]:
        """Flush, set the marker, and check that the coordinator has exactly this transaction open.

        Raises:
            ConnectorError: the transaction has failed or belongs to a newer attempt.
        """
        current, self._current = self._current, None
        if current is None:
            return ()
        name, topic = current.transactional_id, self._config["topic"]
        place = f"sink {self._context.uid!r}: transaction {name} of checkpoint {checkpoint_id} to topic {topic!r}"
        watch = AnswerWatch(self._context.clock, partial(self._coordinator.lacks, topic))
        try:
            current.producer.flush(self._left_ms(current))
            marker, left_ms = marker_of(checkpoint_id, 0), self._left_ms(current)
            current.producer.mark(self._stem, topic, marker, left_ms, watch.wanted)
            now = self._coordinator.describe(name, current.deadline_ms)
        except ConnectorError as error:
            current.producer.close()
            if not watch.topic_lacks:
                raise _at(place, error) from error
            # the client answers that with silence
            missing = UnknownTopicError(f"Kafka producer, {topics_text([topic])}", error.message)
            missing.hint = "create the topic again; the output of its open transactions is lost with it"
            raise missing.at(place) from error
        if now is None or now.state.value != _ONGOING or (now.producer_id, now.producer_epoch) != _identity(current):
            current.producer.close()
            raise ConnectorError(
                f"sink {self._context.uid!r}: transaction {name} of checkpoint {checkpoint_id} is no longer owned by "
                f"this attempt: the coordinator says {now}",
                hint="it timed out (raise transaction_timeout) or a newer attempt has taken over",
            )
        self._held.hold(name, current.producer)
        return (self._committable(checkpoint_id, current, now),)

    def close(self) -> None:
        """Free everything; prepared transactions stay open."""
        if self._closed:
            return
        self._closed = True
        if self._next is not None:
            self._next.add_done_callback(_close_unused)
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._current is not None:
            self._current.producer.close()
            self._current = None
        for name in self._held.ids():
            self._held.release(name)
        self._coordinator.close()
        self._init_coordinator.close()

    def _committable(self, checkpoint_id: int, current: _Transaction, now: Any) -> Committable:
        context = self._context
        partitions = sorted(f"{p.topic}/{p.partition}" for p in now.topic_partitions if p.topic != "__consumer_offsets")
        return Committable(
            id=f"{context.uid}/{context.run_id}/{context.subtask}/{checkpoint_id}",
            uid=context.uid,
            run_id=context.run_id,
            subtask=context.subtask,
            checkpoint_id=checkpoint_id,
            transactional_id=current.transactional_id,
            marker_group=self._stem,
            rows=current.rows,
            size_bytes=current.size_bytes,
            created_ms=context.clock.now_ms(),
            detail={
                "producer_id": now.producer_id,
                "producer_epoch": now.producer_epoch,
                "start_ms": now.transaction_start_time_ms,
                "timeout_ms": now.transaction_timeout_ms,
                "partitions": partitions,
            },
        )

    def _prepare_next(self) -> Future[_Transaction]:
        busy = self._held.ids()
        if self._current is not None:
            busy.add(self._current.transactional_id)
        first = self._context.attempt * IDS_PER_ATTEMPT
        names = (f"{self._stem}.{first + k}" for k in range(len(busy) + 1))
        return self._pool.submit(self._make, next(name for name in names if name not in busy))

    def _left_ms(self, current: _Transaction) -> int:
        """Return for how long the broker keeps the transaction open; a quick call is tried in any case."""
        return max(QUICK_TIMEOUT_MS, round(current.deadline_ms - self._context.clock.monotonic_ms()))

    def _make(self, transactional_id: str) -> _Transaction:
        producer = open_producer(self._resolved, transactional_id, self._config["transaction_timeout_ms"])
        try:
            self._init(producer)
            deadline_ms = self._context.clock.monotonic_ms() + CALL_TIMEOUT_MS
            found = self._init_coordinator.describe(transactional_id, deadline_ms)
            if not self._has_group:
                self._init_coordinator.await_group(self._stem, self._config["topic"], deadline_ms)
                self._has_group = True
        except ConnectorError:
            producer.close()
            raise
        if found is None:
            producer.close()
            raise ConnectorError(f"the coordinator does not know {transactional_id} right after it was initialised")
        return _Transaction(transactional_id, producer, found.producer_id, found.producer_epoch)

    def _init(self, producer: MessageProducer) -> None:
        """Take the transactional id; while Kafka does not answer, continue until the transaction's time-out.

        The same producer continues: a late request of an abandoned one would abort the transaction of its successor.
        """
        clock = self._context.clock
        deadline_ms = clock.monotonic_ms() + self._config["transaction_timeout_ms"]
        while True:
            try:
                producer.init_transactions(QUICK_TIMEOUT_MS)
            except ProducerError as error:
                waits = error.timed_out and not error.fatal and not self._closed
                if not waits or clock.monotonic_ms() >= deadline_ms:
                    raise
            else:
                return


def _at(place: str, error: ConnectorError) -> ConnectorError:
    """Return the same error for the user, with the failed action and a remedy."""
    if isinstance(error, ProducerError):
        return error.at(place, _REMEDY)
    return ConnectorError(f"{place}: {error.message}", hint=error.hint or _REMEDY)


def _identity(transaction: _Transaction) -> tuple[int, int]:
    return transaction.producer_id, transaction.producer_epoch


def _close_unused(ready: Future[_Transaction]) -> None:
    if not ready.cancelled() and ready.exception() is None:
        ready.result().producer.close()
