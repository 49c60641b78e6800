"""Sending columns as messages, with or without transactions: the contract of `producer_fast` and `producer_plain`.

`producer_choice` opens one of them. One test suite holds for both. Used by the committers, the writers and the dead
letter writer; calls block, so they belong into a committer's thread, save `send` while the client's queue has room.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.core.errors import ConnectorError
from penstock_connectors.kafka.client.properties import for_producer

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
#: Defaults below the user's. `murmur2_random` maps a key to the same partition as Java clients.
WRITE_PROPERTIES: Mapping[str, str] = {
    "linger.ms": "5",
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": "1000000",
    "queue.buffering.max.kbytes": "131072",
    # only the topic's limit counts
    "message.max.bytes": "100000000",
    "batch.num.messages": "100000",
    # a transaction directly after another finds a coordinator that still completes that one: retry soon
    "retry.backoff.ms": "10",
    "retry.backoff.max.ms": "500",
}
SEND_TIMEOUT_MS = 60_000
#: Time-out of a flush, a commit, an abort.
CALL_TIMEOUT_MS = 60_000
#: Time-out of calls that take milliseconds with a connection. librdkafka may wait for a lost one until the time-out; a
#: new producer has new ones.
QUICK_TIMEOUT_MS = 5_000


class ProducerError(ConnectorError):
    """The client refused; the flags tell what the caller can do."""

    def __init__(
        self,
        message: str,
        *,
        fatal: bool = False,
        fenced: bool = False,
        retriable: bool = False,
        timed_out: bool = False,
    ) -> None:
        """Set the flags.

        `fatal`: this producer is unusable; `fenced`: a newer one took its id; else abort and begin again. `timed_out`:
        Kafka did not answer in time; a new producer has new connections.
        """
        hint = "a newer attempt of the same sink subtask has taken over" if fenced else ""
        super().__init__(message, hint=hint)
        self.fatal, self.fenced, self.retriable = fatal or fenced, fenced, retriable
        self.timed_out = timed_out

    def at(self, place: str, hint: str = "") -> ConnectorError:
        """Return the same error for the user, with the failed action."""
        return ConnectorError(f"{place}: {self.message}", hint=self.hint or hint)


class RecordTooLargeError(ProducerError):
    """A message is larger than its topic accepts; a restart cannot help (the JobManager knows this name)."""

    def __init__(self, message: str) -> None:
        """Take `message`, which names topic or place."""
        super().__init__(message)
        self.hint = (
            "raise the topic's max.message.bytes or make its rows smaller, then run the job again: it "
            "continues from its last checkpoint without loss"
        )

    def at(self, place: str, hint: str = "") -> RecordTooLargeError:  # noqa: ARG002 - its own says more
        """Return the same error with the failed action."""
        return RecordTooLargeError(f"{place}: {self.message}")


class UnknownTopicError(ProducerError):
    """A topic does not exist, or not any more; another attempt fails in the same way until it is created."""

    def __init__(self, what: str, text: str) -> None:
        """Take what failed, which names the topic or the place, and the client's text."""
        super().__init__(f"{what}: the topic, or one of its partitions, does not exist ({text})")
        self.hint = (
            "create the topic again, with as many partitions as before, or set auto.create.topics.enable on the "
            "brokers; the job continues by itself"
        )


def topics_text(topics: Iterable[str]) -> str:
    """Return topics for an error message."""
    return f"topic {', '.join(repr(topic) for topic in sorted(topics))}"


def undelivered_text(count: int, topics: Iterable[str]) -> str:
    """Return what failed if messages were not delivered."""
    return f"Kafka producer: {count} messages to {topics_text(topics)} were not delivered"


def timeout_error(what: str, timeout_ms: int) -> ProducerError:
    """Return the error of a call that was abandoned: the connection may be dead, and the producer is unusable."""
    text = f"Kafka producer, {what}: no answer within {timeout_ms / 1000:.0f} s"
    return ProducerError(text, fatal=True, timed_out=True)


def flush_timeout_error(left: int, topics: Iterable[str], timeout_ms: int) -> ProducerError:
    """Return the error of a flush that took too long."""
    to = topics_text(topics)
    text = f"Kafka producer: {left} messages to {to} are not acknowledged after {timeout_ms / 1000:.0f} s"
    return ProducerError(text, timed_out=True)


#: Asked during a long call; False gives the call up.
Wanted = Callable[[], bool]


def always() -> bool:
    """Wait until the time-out."""
    return True


def call_with_timeout(
    call: Callable[[], T],
    timeout_ms: int,
    on_late_result: Callable[[T | None], None],
    wanted: Wanted,
    ask_every_ms: float = QUICK_TIMEOUT_MS,
) -> Future[T] | None:
    """Return the finished call, or None if it takes longer than `timeout_ms`, or is not `wanted` any longer.

    librdkafka's `send_offsets_to_transaction` does not keep to its time-out: it waits for a lost connection until the
    broker ends the transaction. An abandoned call continues in its thread, which then calls `on_late_result` with the
    result (None if the call failed).
    """
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:  # noqa: BLE001 - for `result`
            ended.set_exception(error)

    threading.Thread(target=run, name="kafka-call", daemon=True).start()
    deadline = time.monotonic() + timeout_ms / 1000
    while (left := deadline - time.monotonic()) > 0:
        wait([ended], min(left, ask_every_ms / 1000))
        if ended.done():
            return ended
        if not wanted():
            break
    ended.add_done_callback(lambda late: on_late_result(None if late.exception() is not None else late.result()))
    return None


class MessageProducer(Protocol):
    """A producer; with a transactional id its messages belong to the open transaction."""

    def init_transactions(self, timeout_ms: int) -> None:
        """Take the transactional id: abort its open transaction and fence its older owners."""

    def begin(self) -> None:
        """Open a transaction."""

    def send(self, topic: str, value: pa.Array, key: pa.Array | None = None) -> None:
        """Queue messages (binary or string columns, null allowed); waits only while the client's queue is full.

        Raises:
            UnknownTopicError: earlier messages were not delivered, because the topic does not exist.
        """

    def mark(self, group: str, topic: str, offset: int, timeout_ms: int, wanted: Wanted = always) -> None:
        """Set the group's offset of partition 0 of `topic`, atomically with the open transaction."""

    def commit(self, timeout_ms: int) -> None:
        """Flush and commit; on a ProducerError that is neither fatal nor retriable the transaction must be aborted."""

    def abort(self, timeout_ms: int) -> None:
        """Abort the open transaction."""

    def flush(self, timeout_ms: int) -> None:
        """Wait until everything is acknowledged.

        Raises:
            ProducerError: a message was not delivered.
        """

    def close(self) -> None:
        """Free it; an open transaction stays open; idempotent."""


def producer_properties(resolved: Mapping[str, str]) -> dict[str, str]:
    """Return a producer's properties: defaults, overridden by the user's, overridden by fixed ones."""
    fixed = {"enable.idempotence": "true", "delivery.report.only.error": "true"}
    return {**WRITE_PROPERTIES, **for_producer(resolved), **fixed}
