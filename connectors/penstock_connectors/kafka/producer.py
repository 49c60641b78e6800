"""Sending columns as messages, with or without transactions: the contract and the choice of implementation.

`producer_fast` hands Arrow buffers to librdkafka; `producer_plain` uses confluent-kafka's `Producer`. One test suite
holds for both. Used by the committers, the writers and the dead letter writer; calls block, so they belong into a
committer's thread, save `send` while the client's queue has room.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.core.errors import ConnectorError
from penstock_connectors.kafka.properties import for_producer

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
#: Ours, under the user's. `murmur2_random` puts a key where Java clients put it.
WRITE_PROPERTIES: Mapping[str, str] = {
    "linger.ms": "5",
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": "1000000",
    "queue.buffering.max.kbytes": "131072",
    # the topic's limit is the one that counts
    "message.max.bytes": "100000000",
    "batch.num.messages": "100000",
    # a transaction right behind another one meets a coordinator that still finishes that one: ask again soon
    "retry.backoff.ms": "10",
    "retry.backoff.max.ms": "500",
}
SEND_TIMEOUT_MS = 60_000


class ProducerError(ConnectorError):
    """The client refused; the flags say what is left to do."""

    def __init__(self, message: str, *, fatal: bool = False, fenced: bool = False, retriable: bool = False) -> None:
        """`fatal`: this producer is of no more use; `fenced`: a newer one took its id; else abort and begin again."""
        hint = "a newer attempt of the same sink subtask has taken over" if fenced else ""
        super().__init__(message, hint=hint)
        self.fatal, self.fenced, self.retriable = fatal or fenced, fenced, retriable
        #: Kafka did not answer in time; a new producer has new connections.
        self.unanswered = False

    def as_unanswered(self) -> ProducerError:
        """Return it, marked as `unanswered`."""
        self.unanswered = True
        return self

    def at(self, place: str, hint: str = "") -> ConnectorError:
        """Return the same for the user, with what was being done."""
        return ConnectorError(f"{place}: {self.message}", hint=self.hint or hint)


class RecordTooLargeError(ProducerError):
    """A message is larger than its topic takes; no restart makes it smaller (the JobManager knows this name)."""

    def __init__(self, message: str) -> None:
        """`message` names topic or place."""
        super().__init__(message)
        self.hint = (
            "raise the topic's max.message.bytes and run the job again: it goes on from its last checkpoint, nothing "
            "is lost. Or make its rows smaller"
        )

    def at(self, place: str, hint: str = "") -> RecordTooLargeError:  # noqa: ARG002 - its own says more
        """Return the same with what was being done."""
        return RecordTooLargeError(f"{place}: {self.message}")


def bounded(call: Callable[[], T], timeout_ms: int, abandoned: Callable[[T | None], None]) -> tuple[bool, T | None]:
    """Return (True, what `call` returned), or (False, None) where it takes longer than `timeout_ms`.

    librdkafka's `send_offsets_to_transaction` does not keep to its time-out: it waits for a lost connection until the
    broker ends the transaction. A call that is given up goes on in a thread of its own, which calls `abandoned` with
    its result. Raises what the call raises in time.
    """
    lock, ended = threading.Lock(), threading.Event()
    results: list[tuple[T | None, BaseException | None]] = []
    given_up: list[bool] = []

    def run() -> None:
        try:
            result: tuple[T | None, BaseException | None] = call(), None
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits
            result = None, error
        with lock:
            results.append(result)
            late = bool(given_up)
        ended.set()
        if late:
            abandoned(result[0])

    threading.Thread(target=run, name="kafka-call", daemon=True).start()
    ended.wait(timeout_ms / 1000)
    with lock:
        if not results:
            given_up.append(True)
            return False, None
    value, failure = results[0]
    if failure is not None:
        raise failure
    return True, value


class MessageProducer(Protocol):
    """A producer; with a transactional id its messages belong to the transaction that is open."""

    def init_transactions(self, timeout_ms: int) -> None:
        """Take the transactional id: abort what was open under it and fence its older owners."""

    def begin(self) -> None:
        """Open a transaction."""

    def send(self, topic: str, value: pa.Array, key: pa.Array | None = None) -> None:
        """Queue messages (binary or string columns, null allowed); waits only while the client's queue is full."""

    def mark(self, group: str, topic: str, offset: int, timeout_ms: int) -> None:
        """Set the group's offset of partition 0 of `topic`, atomically with the open transaction."""

    def commit(self, timeout_ms: int) -> None:
        """Flush and commit; on a ProducerError that is neither fatal nor retriable the transaction must be aborted."""

    def abort(self, timeout_ms: int) -> None:
        """Abort the open transaction."""

    def flush(self, timeout_ms: int) -> None:
        """Wait until everything is acknowledged.

        Raises:
            ProducerError: something was not.
        """

    def close(self) -> None:
        """Free it; an open transaction stays open; idempotent."""


def producer_properties(resolved: Mapping[str, str]) -> dict[str, str]:
    """Return a producer's properties: ours, over them the user's, over them what must not change."""
    fixed = {"enable.idempotence": "true", "delivery.report.only.error": "true"}
    return {**WRITE_PROPERTIES, **for_producer(resolved), **fixed}


def open_producer(
    resolved: Mapping[str, str], transactional_id: str | None = None, timeout_ms: int = 60_000
) -> MessageProducer:
    """Return the fast producer, or the plain one where that cannot work (or `PENSTOCK_KAFKA_PLAIN=1` says so)."""
    properties = producer_properties(resolved)
    if transactional_id is not None:
        properties |= {"transactional.id": transactional_id, "transaction.timeout.ms": str(timeout_ms)}
    if os.environ.get("PENSTOCK_KAFKA_PLAIN") != "1":
        try:
            from penstock_connectors.kafka.producer_fast import FastProducer

            return FastProducer(properties)
        except ImportError as error:
            logging.getLogger(__name__).warning(
                "messages are written through Python objects, about 3 times slower: %s", error
            )
    from penstock_connectors.kafka.producer_plain import PlainProducer

    return PlainProducer(properties)
