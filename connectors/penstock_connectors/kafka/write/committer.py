"""Publishes staged output: one transaction per chunk, together with the marker; idempotent from any process.

A sink subtask's committer thread calls `commit` once a checkpoint's manifest exists; the job calls `recover` before
it deploys the job. Messages go to the client in rounds, because librdkafka polls without a pause while more
messages wait for an answer.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.connector.sink import CommitOutcome, FileReader, Resolution
from penstock.connector.staging import decode_chunk
from penstock.core.clock import Clock
from penstock.core.errors import ConnectorError, UndecidedOutputError
from penstock.core.failpoints import hit
from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable
from penstock_connectors.formats.arrow_stream import MAX_MESSAGE_ROWS
from penstock_connectors.kafka.client.metadata import marker_retention_ms
from penstock_connectors.kafka.client.properties import resolve
from penstock_connectors.kafka.write.payloads import encode
from penstock_connectors.kafka.write.producer import (
    CALL_TIMEOUT_MS,
    QUICK_TIMEOUT_MS,
    MessageProducer,
    ProducerError,
    RecordTooLargeError,
    UnknownTopicError,
)
from penstock_connectors.kafka.write.producer_choice import open_producer
from penstock_connectors.kafka.write.transactions import TransactionAdmin, check_age, checkpoint_of, marker_of

#: Less than the most bytes of a request (`batch.size`), so that unevenly spread keys do not fill a second one.
_PARTITION_BYTES = 750_000
#: Less than the client's queue (`queue.buffering.max.kbytes`).
_MOST_BYTES = 64_000_000
#: A complete round is sent when it is flushed, not some milliseconds after its first message.
ROUND_PROPERTIES = {"linger.ms": "1000"}
#: Bytes that the client adds per message when it counts.
_MESSAGE_BYTES = 80

Messages = tuple[pa.Array, pa.Array | None]


def round_bytes(partitions: int) -> int:
    """Return the most bytes of a round for a topic of `partitions` partitions."""
    return min(max(1, partitions) * _PARTITION_BYTES, _MOST_BYTES)


def rounds(values: pa.Array, keys: pa.Array | None, most: int) -> Iterator[tuple[Messages, int]]:
    """Split messages into runs of about `most` bytes (at least one message each), each with its bytes."""
    rows = len(values)
    if not rows:
        return
    total = values.nbytes + (0 if keys is None else keys.nbytes) + rows * _MESSAGE_BYTES
    step = max(1, rows * most // total)
    for start in range(0, rows, step):
        part = values.slice(start, step)
        yield (part, None if keys is None else keys.slice(start, step)), total * len(part) // rows


#: Time-out of a chunk's transaction; a dead publisher holds up readers for at most this long.
TRANSACTION_TIMEOUT_MS = 60_000
#: Attempts for a chunk whose commit failed, each with a new producer after reading the marker; and seconds to retry
#: while Kafka does not answer.
ATTEMPTS = 5
RETRY_LIMIT_MS = 300_000
_LONGEST_PAUSE_MS = 1_000
_RECOVERY_THREADS = 4
#: Rows encoded at a time: their texts stay in the processor's cache until the client has copied them. Equals the most
#: rows of a message in the format `arrow`.
_PIECE_ROWS = MAX_MESSAGE_ROWS


class _ProducerState:
    """One transactional id: its producer if there is one, its last known marker, and whether it has delivered."""

    def __init__(self) -> None:
        self.producer: MessageProducer | None = None
        self.marker: int | None = None
        self.proven = False


class StagedCommitter:
    """A `Committer` for `delivery="exactly-once"`."""

    def __init__(
        self, config: dict[str, Any], clock: Clock, prepare: str | None = None, *, piece_rows: int = _PIECE_ROWS
    ) -> None:
        """Publish staged output.

        `prepare`: an id whose producer is made ready in the background, so that the first commit is quick.
        """
        self._config, self._clock, self._piece_rows = config, clock, piece_rows
        self._resolved = resolve(config["bootstrap"], config["properties"])
        self._producers: dict[str, _ProducerState] = {}
        self._admin: TransactionAdmin | None = None
        self._admin_lock = threading.Lock()
        self._ready: Future[MessageProducer] | None = None
        self._ready_for = prepare
        self._partitions = 0
        if prepare is not None:
            pool = ThreadPoolExecutor(1, thread_name_prefix="kafka-init")
            self._ready = pool.submit(self._prepare_producer, prepare)
            pool.shutdown(wait=False)

    def commit(
        self, permit: CommitPermit, committables: tuple[Committable, ...], read: FileReader
    ) -> tuple[CommitOutcome, ...]:
        """Publish output that the markers do not cover, in order.

        Raises:
            UndecidedOutputError: a marker may have expired.
            ConnectorError: Kafka refused, or a newer attempt has taken over.
        """
        ordered = _in_order(committables)
        self._until_answered(lambda: self._learn_markers(ordered))
        return tuple(self._publish(permit, item, read) for item in ordered)

    def recover(
        self, permit: CommitPermit, prefixes: tuple[str, ...], committables: tuple[Committable, ...], read: FileReader
    ) -> tuple[CommitOutcome, ...]:
        """Fence every id under `prefixes`, read the markers, and publish pending output, for all owners."""
        admin = self._connect()
        owners = {item.transactional_id for item in committables}
        admin.fence(sorted(owners.union(admin.ids_under(prefixes))) if owners else admin.ids_under(prefixes))
        self._drop_producers()
        ordered = _in_order(committables)
        self._learn_markers(ordered)
        self._warn_of_repeats(permit, ordered)
        by_id = {name: [item for item in ordered if item.transactional_id == name] for name in owners}
        if len(by_id) <= 1:
            return tuple(self._publish(permit, item, read) for item in ordered)
        for name in by_id:
            self._producers.setdefault(name, _ProducerState())
        with ThreadPoolExecutor(_RECOVERY_THREADS, thread_name_prefix="kafka-publish") as pool:
            work = [pool.submit(self._publish_all, permit, part, read) for part in by_id.values()]
            done = {outcome.committable_id: outcome for future in work for outcome in future.result()}
        return tuple(done[item.id] for item in ordered)

    def close(self) -> None:
        """Free everything."""
        if self._ready is not None:
            ready, self._ready = self._ready, None
            ready.add_done_callback(_close_unused)
        self._drop_producers()
        self._disconnect()

    def _disconnect(self) -> None:
        with self._admin_lock:
            if self._admin is not None:
                self._admin.close()
                self._admin = None

    def _publish_all(self, permit: CommitPermit, items: list[Committable], read: FileReader) -> list[CommitOutcome]:
        return [self._publish(permit, item, read) for item in items]

    def _publish(self, permit: CommitPermit, item: Committable, read: FileReader) -> CommitOutcome:
        if item.run_id == permit.run_id and item.checkpoint_id > permit.checkpoint_id:
            msg = f"output of checkpoint {item.checkpoint_id} under a permit for {permit.checkpoint_id}"
            raise ValueError(msg)
        state = self._producers.setdefault(item.transactional_id, _ProducerState())
        count = len(item.files)
        published = 0
        context = {"checkpoint": item.checkpoint_id, "subtask": item.subtask, "permit": permit.checkpoint_id}
        for chunk, file in enumerate(item.files):
            target = marker_of(item.checkpoint_id, chunk)
            if state.marker is not None and state.marker >= target:
                continue
            hit("sink.between_chunks" if chunk else "sink.before_publish", chunk=chunk, chunks=count, **context)
            rows = decode_chunk(read(file)).to_batches(max_chunksize=self._piece_rows)
            published += self._publish_chunk(state, item, target, rows)
        if published:
            hit("sink.after_commit", chunk=count - 1, chunks=count, **context)
        resolution: Resolution = "published" if published or not count else "already-published"
        return CommitOutcome(item.id, resolution, item.rows)

    def _publish_chunk(self, state: _ProducerState, item: Committable, target: int, rows: list[pa.RecordBatch]) -> int:
        """Publish one chunk; return 0 if an earlier attempt turns out to have published it."""
        topic = self._config["topic"]
        begun_ms = self._clock.monotonic_ms()
        for attempt in itertools.count(1):
            try:
                if state.producer is None:
                    state.producer = self._take_producer(item.transactional_id)
                    # only now is the marker final: no transaction of an older owner can commit any longer
                    state.marker = self._marker(item)
                    if state.marker >= target:
                        return 0
                self._fill(state.producer, item, target, rows, prove=not state.proven)
                state.proven = True
                state.producer.commit(CALL_TIMEOUT_MS)
            except ConnectorError as error:
                # its commit may be undecided: a fresh producer under the same id settles it, then the marker shows the
                # result
                if state.producer is not None:
                    state.producer.close()
                    state.producer = None
                state.proven = False
                waits = self._waits(error, begun_ms)
                if _is_permanent(error) or (attempt >= ATTEMPTS and not waits):
                    raise _at_target(error, item, topic) from error
                self._pause(attempt)
            else:
                state.marker = target
                return 1
        msg = "unreachable: the last attempt returns or raises"
        raise AssertionError(msg)

    def _until_answered(self, ask: Callable[[], None]) -> None:
        """Repeat a call while Kafka does not answer."""
        begun_ms = self._clock.monotonic_ms()
        for attempt in itertools.count(1):
            try:
                ask()
            except ConnectorError as error:
                if _is_permanent(error) or not self._waits(error, begun_ms):
                    raise
                self._pause(attempt)
            else:
                return

    def _waits(self, error: ConnectorError, begun_ms: float) -> bool:
        """Close connections, which may be dead; return whether to repeat a call as Kafka cannot answer so far."""
        if isinstance(error, ProducerError) and not (error.timed_out or error.retriable):
            return False
        self._disconnect()
        return self._clock.monotonic_ms() - begun_ms < RETRY_LIMIT_MS

    def _pause(self, attempt: int) -> None:
        self._clock.sleep_ms(min(100 * attempt, _LONGEST_PAUSE_MS))

    def _fill(
        self, producer: MessageProducer, item: Committable, target: int, rows: list[pa.RecordBatch], *, prove: bool
    ) -> None:
        """Open a transaction with one chunk and its marker; rows that cannot be encoded leave no open transaction.

        An open one would hold up the topic's readers until its time-out.
        """
        topic = self._config["topic"]
        encoded = (encode(piece, self._config) for piece in rows)
        messages = next(encoded, None)
        most, under_way = self._round_bytes(), 0
        producer.begin()
        try:
            while messages is not None:
                for part, size in rounds(*messages, most):
                    if under_way + size > most:
                        producer.flush(CALL_TIMEOUT_MS)
                        under_way = 0
                    producer.send(topic, *part)
                    under_way += size
                messages = None  # the client has copied: the texts of the next rows reuse the memory
                messages = next(encoded, None)
            if prove:
                # a deleted topic shows here at once; the marker would be retried for a minute
                producer.flush(CALL_TIMEOUT_MS)
            producer.mark(item.marker_group, topic, target, QUICK_TIMEOUT_MS)
        except ProducerError:
            raise  # the caller takes a fresh producer, which aborts it
        except Exception:
            with contextlib.suppress(ProducerError):
                producer.abort(CALL_TIMEOUT_MS)
            raise

    def _new_producer(self, transactional_id: str) -> MessageProducer:
        properties = {**ROUND_PROPERTIES, **self._resolved}
        producer = open_producer(properties, transactional_id, TRANSACTION_TIMEOUT_MS)
        try:
            producer.init_transactions(QUICK_TIMEOUT_MS)
        except ProducerError:
            producer.close()
            raise
        return producer

    def _prepare_producer(self, transactional_id: str) -> MessageProducer:
        self._connect()
        self._round_bytes()
        return self._new_producer(transactional_id)

    def _take_producer(self, transactional_id: str) -> MessageProducer:
        if self._ready is not None and transactional_id == self._ready_for:
            ready, self._ready = self._ready, None
            return ready.result(2 * CALL_TIMEOUT_MS / 1000)
        return self._new_producer(transactional_id)

    def _connect(self) -> TransactionAdmin:
        with self._admin_lock:
            if self._admin is None:
                self._admin = TransactionAdmin(self._resolved)
            return self._admin

    def _round_bytes(self) -> int:
        """Return the size of a round.

        If the topic's partitions are unknown, that for one partition, and ask again later.
        """
        if not self._partitions:
            admin = self._connect()
            with self._admin_lock:
                self._partitions = admin.partitions(self._config["topic"])
        return round_bytes(self._partitions)

    def _marker(self, item: Committable) -> int:
        admin = self._connect()
        with self._admin_lock:
            return admin.markers({item.marker_group: self._config["topic"]}).get(item.marker_group, -1)

    def _learn_markers(self, ordered: list[Committable]) -> None:
        """Read the unknown markers in one call; a known one has only been moved by this committer."""
        by_id = {
            item.transactional_id: self._producers.setdefault(item.transactional_id, _ProducerState())
            for item in ordered
        }
        unknown = [item for item in ordered if by_id[item.transactional_id].marker is None]
        if not unknown:
            return
        admin = self._connect()
        # the producer first: it fences older owners of its id, so that the marker no longer moves
        for name in {item.transactional_id for item in unknown}:
            if self._ready is not None and name == self._ready_for:
                by_id[name].producer = self._take_producer(name)
        with self._admin_lock:
            markers = admin.markers({item.marker_group: self._config["topic"] for item in unknown})
        check_age(unknown, markers, self._clock.now_ms(), partial(marker_retention_ms, self._resolved))
        for item in unknown:
            by_id[item.transactional_id].marker = markers.get(item.marker_group, -1)

    def _warn_of_repeats(self, permit: CommitPermit, ordered: Iterable[Committable]) -> None:
        ahead = {
            item.marker_group: checkpoint_of(self._producers[item.transactional_id].marker or -1)
            for item in ordered
            if item.run_id == permit.run_id
        }
        for group, checkpoint in ahead.items():
            if checkpoint > permit.checkpoint_id:
                logging.getLogger(__name__).warning(
                    "output up to checkpoint %d of %s is already in Kafka; the restore of checkpoint %d will "
                    "write it again",
                    checkpoint,
                    group,
                    permit.checkpoint_id,
                )

    def _drop_producers(self) -> None:
        for state in self._producers.values():
            if state.producer is not None:
                state.producer.close()
        self._producers.clear()


def _is_permanent(error: ConnectorError) -> bool:
    """Return whether another attempt would fail in the same way."""
    fenced = isinstance(error, ProducerError) and error.fenced
    return fenced or isinstance(error, RecordTooLargeError | UndecidedOutputError | UnknownTopicError)


def _at_target(error: ConnectorError, item: Committable, topic: str) -> ConnectorError:
    if not isinstance(error, ProducerError):
        return error
    return error.at(
        f"publishing {item.rows} records of checkpoint {item.checkpoint_id} to {topic!r} "
        f"(sink {item.uid!r} subtask {item.subtask}, {item.transactional_id})",
        "the output stays pending and is published after the restart",
    )


def _in_order(committables: Iterable[Committable]) -> list[Committable]:
    return sorted(committables, key=lambda item: (item.run_id, item.subtask, item.checkpoint_id))


def _close_unused(ready: Future[MessageProducer]) -> None:
    if not ready.cancelled() and ready.exception() is None:
        ready.result().close()
