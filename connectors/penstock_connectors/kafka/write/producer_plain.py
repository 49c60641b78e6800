"""The plain producer: confluent-kafka's `Producer`, one Python call per message; and the dead letter writer on it.

Chosen by `producer_choice` where librdkafka's C interface cannot be used. The source reader uses the writer if
`dead_letter_topic` is set: letters are acknowledged before the checkpoint that passes them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.connector.source import RunWaiting
from penstock.core.errors import ConnectorError
from penstock_connectors.kafka.write.producer import (
    QUICK_TIMEOUT_MS,
    SEND_TIMEOUT_MS,
    ProducerError,
    RecordTooLargeError,
    UnknownTopicError,
    Wanted,
    always,
    call_with_timeout,
    flush_timeout_error,
    producer_properties,
    timeout_error,
    undelivered_text,
)

_UNKNOWN = frozenset(
    {KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}  # noqa: SLF001
)
_SHARED = ("bootstrap.servers", "security.", "sasl.", "ssl.", "client.", "log_level", "socket.")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message with key, value, timestamp and headers."""

    value: bytes | None
    key: bytes | None
    #: None: the time of sending.
    timestamp_ms: int | None
    headers: list[tuple[str, bytes | None]]


class PlainProducer:
    """A `MessageProducer` on confluent-kafka."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Start the client."""
        self._properties = properties
        self._failures: list[KafkaError] = []
        self._fatal: ProducerError | None = None
        self._topics: set[str] = set()
        silent = logging.getLogger("penstock.kafka.client")
        silent.disabled = True  # important log lines also come as exceptions or callbacks
        callbacks = {"logger": silent, "on_delivery": self._on_delivery, "error_cb": self._on_error}
        try:
            self._producer: Producer | None = Producer({**properties, **callbacks, "delivery.report.only.error": True})
        except KafkaException as error:
            raise ConnectorError(f"the Kafka client cannot start: {error.args[0].str()}") from error

    def init_transactions(self, timeout_ms: int) -> None:
        """Take the transactional id."""
        self._call("init_transactions", lambda p: p.init_transactions(timeout_ms / 1000))

    def begin(self) -> None:
        """Open a transaction."""
        self._failures.clear()
        self._call("begin_transaction", lambda p: p.begin_transaction())

    def send(self, topic: str, value: pa.Array, key: pa.Array | None = None) -> None:
        """Queue messages."""
        keys = [None] * len(value) if key is None else key.to_pylist()
        deadline = time.monotonic() + SEND_TIMEOUT_MS / 1000
        for payload, k in zip(value.to_pylist(), keys, strict=True):
            self._produce(topic, {"value": payload, "key": k}, deadline)
        self._call("poll", lambda p: p.poll(0))
        if any(error.code() in _UNKNOWN for error in self._failures):
            raise self._undelivered()

    def send_one(self, topic: str, letter: DeadLetter) -> None:
        """Queue one message with its own headers and timestamp; waits as `send` does."""
        more: dict[str, Any] = {} if letter.timestamp_ms is None else {"timestamp": letter.timestamp_ms}
        message = {"value": letter.value, "key": letter.key, "headers": letter.headers, **more}
        self._produce(topic, message, time.monotonic() + SEND_TIMEOUT_MS / 1000)

    def _produce(self, topic: str, message: dict[str, Any], deadline: float) -> None:
        producer = self._open()
        self._topics.add(topic)
        while True:
            try:
                producer.produce(topic, **message)
                return
            except BufferError:
                producer.poll(0.05)
                if time.monotonic() > deadline:
                    raise ProducerError(f"Kafka producer, topic {topic}: its queue was full for too long") from None
            except KafkaException as error:
                raise self._fatal or self._error(f"topic {topic}", error) from error

    def mark(self, group: str, topic: str, offset: int, timeout_ms: int, wanted: Wanted = always) -> None:
        """Set the group's offset inside the transaction."""
        shared = {name: text for name, text in self._properties.items() if name.startswith(_SHARED)}
        consumer = Consumer({**shared, "group.id": group})
        metadata = consumer.consumer_group_metadata()
        consumer.close()
        place = TopicPartition(topic, 0, offset)

        def send() -> None:
            self._call("send_offsets", lambda p: p.send_offsets_to_transaction([place], metadata, timeout_ms / 1000))

        begun = time.monotonic()
        ended = call_with_timeout(send, timeout_ms, lambda _: None, wanted)
        if ended is None:
            self._producer = None
            raise timeout_error("send_offsets", round((time.monotonic() - begun) * 1000))
        ended.result()

    def commit(self, timeout_ms: int) -> None:
        """Flush and commit."""
        self.flush(timeout_ms)
        self._call("commit_transaction", lambda p: p.commit_transaction(timeout_ms / 1000))

    def abort(self, timeout_ms: int) -> None:
        """Abort the open transaction; queued messages are dropped."""
        self._call("abort_transaction", lambda p: p.abort_transaction(timeout_ms / 1000))
        self._call("poll", lambda p: p.poll(0))
        self._failures.clear()

    def flush(self, timeout_ms: int) -> None:
        """Wait until everything is acknowledged."""
        left = self._call("flush", lambda p: p.flush(timeout_ms / 1000))
        if self._fatal is not None:
            raise self._fatal
        if self._failures:
            raise self._undelivered()
        if left:
            raise flush_timeout_error(left, self._topics, timeout_ms)

    def close(self) -> None:
        """Drop it without `close()`, which would abort the open transaction."""
        self._producer = None

    def _open(self) -> Producer:
        if self._producer is None:
            raise ProducerError("Kafka producer: it is closed", fatal=True)
        return self._producer

    def _call(self, what: str, call: Callable[[Producer], Any]) -> Any:
        try:
            return call(self._open())
        except KafkaException as error:
            raise self._error(what, error) from error
        except SystemError as error:  # the extension's report of a fatal error that occurred in callbacks
            cause = error.__cause__ if isinstance(error.__cause__, KafkaException) else self._fatal_error()
            if cause is None:
                raise
            raise self._error(what, cause) from error

    def _undelivered(self) -> ProducerError:
        """Return the error of the messages that were not delivered, each of which is reported once."""
        failures, self._failures = self._failures, []
        worst = next((error for error in failures if _is_too_large(error)), failures[-1])
        what = undelivered_text(len(failures), self._topics)
        if worst.code() in _UNKNOWN:
            return UnknownTopicError(what, worst.str())
        kind = RecordTooLargeError if _is_too_large(worst) else ProducerError
        return kind(f"{what}: {worst.str()}")

    def _error(self, what: str, error: KafkaException) -> ProducerError:
        """Return the error; an earlier message that was too large is the cause of later errors."""
        if not error.args[0].fatal():
            # the client refuses messages of a broken transaction before it reports the one that broke it
            early = error.args[0].code() == KafkaError._STATE and not self._failures  # noqa: SLF001
            with contextlib.suppress(KafkaException, SystemError):
                self._open().poll(QUICK_TIMEOUT_MS / 1000 if early else 0)
        for cause in (error.args[0], *self._failures):
            if _is_too_large(cause):
                return RecordTooLargeError(f"Kafka producer, {what}: {cause.str()}")
        return _error(what, error)

    def _fatal_error(self) -> KafkaException | None:
        """Return the client's fatal error, which every further call would raise again."""
        try:
            self._open().begin_transaction()
        except KafkaException as error:
            return error if error.args[0].fatal() else None
        return None

    def _on_delivery(self, error: KafkaError | None, _message: Any) -> None:
        if error is not None:
            self._failures.append(error)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            fenced = error.code() == KafkaError._FENCED or "fenced" in error.str().lower()  # noqa: SLF001
            self._fatal = ProducerError(f"Kafka producer: {error.str()}", fatal=True, fenced=fenced)


def _is_too_large(error: KafkaError) -> bool:
    return error.code() == KafkaError.MSG_SIZE_TOO_LARGE


def _error(what: str, error: KafkaException) -> ProducerError:
    cause = error.args[0]
    fenced = cause.code() == KafkaError._FENCED or (cause.fatal() and "fenced" in cause.str().lower())  # noqa: SLF001
    if cause.code() in _UNKNOWN and not cause.fatal():
        return UnknownTopicError(f"Kafka producer, {what}", cause.str())
    text = f"Kafka producer, {what}: {cause.str()}"
    late = cause.code() == KafkaError._TIMED_OUT  # noqa: SLF001
    return ProducerError(text, fatal=cause.fatal(), fenced=fenced, retriable=cause.retriable(), timed_out=late)


#: Time for which letters wait for their acknowledgement: the client's own limit of a message, by default.
DELIVERY_TIMEOUT_MS = 300_000
#: From this many letters, or bytes, without an acknowledgement on, further ones wait: the client's queue never fills.
MOST_LETTERS, MOST_LETTER_BYTES = 10_000, 32 << 20
_PLACE = ("topic", "partition", "offset", "error")
_REMEDY = (
    "check that the brokers run and are reachable; the job continues from its newest checkpoint and writes the dead "
    "letters again"
)


class DeadLetterWriter:
    """One producer for one dead letter topic."""

    def __init__(
        self,
        resolved: Mapping[str, str],
        topic: str,
        where: str,
        run_waiting: RunWaiting,
        most: tuple[int, int] = (MOST_LETTERS, MOST_LETTER_BYTES),
    ) -> None:
        """Start the client; `where` names the subtask, `run_waiting` is that of the `SourceContext`."""
        self._topic, self._run_waiting = topic, run_waiting
        self._most_letters, self._most_bytes = most
        self._to = f"topic {topic!r} at {resolved['bootstrap.servers']}"
        self._where = where
        # few messages, and only this producer supports headers
        self._producer = PlainProducer(producer_properties(resolved))
        self._letters = self._bytes = 0

    def write(self, letters: pa.RecordBatch) -> None:
        """Queue the letters (columns of the SPI's `DEAD_LETTER_SCHEMA`); wait if too many are not acknowledged.

        Raises:
            ConnectorError: a letter was not delivered.
        """
        for letter in letters.to_pylist():
            headers = [(header["name"], header["value"]) for header in letter["headers"] or ()]
            headers += [(f"penstock.{name}", str(letter[name]).encode()) for name in _PLACE]
            time_ms = None if letter["timestamp"] is None else round(letter["timestamp"].timestamp() * 1000)
            self._producer.send_one(self._topic, DeadLetter(letter["value"], letter["key"], time_ms, headers))
            self._letters += 1
            self._bytes += len(letter["value"] or b"")
            if self._letters >= self._most_letters or self._bytes >= self._most_bytes:
                self.flush()

    def flush(self) -> None:
        """Wait for the acknowledgement of all letters since the last call; free if there are none.

        Raises:
            ConnectorError: a letter was not delivered.
        """
        if not self._letters:
            return
        try:
            work = partial(self._producer.flush, DELIVERY_TIMEOUT_MS)
            self._run_waiting(work, f"{self._where}: delivering dead letters to {self._to}")
        except ProducerError as error:
            raise error.at(f"{self._where}: dead letters to {self._to}", _REMEDY) from error
        self._letters = self._bytes = 0

    def close(self) -> None:
        """Free the client."""
        self._producer.close()
