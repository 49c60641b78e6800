"""The fast producer: addresses in Arrow buffers go to librdkafka's batch call, without a Python object per message.

Chosen by `producer_choice`. Delivery failures come as events and are raised by the next `flush` or `commit`.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock_connectors.kafka.client import librdkafka as lib
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
    timeout_error,
    undelivered_text,
)

_PAUSE_MS = 50
#: Fenced according to the client, and the broker's INVALID_PRODUCER_EPOCH and PRODUCER_FENCED.
_FENCED = frozenset({lib.ERR_FENCED, 47, 90})
#: Topic or partition unknown to the client, and the broker's UNKNOWN_TOPIC_OR_PARTITION.
_UNKNOWN = frozenset({lib.ERR_UNKNOWN_TOPIC, lib.ERR_UNKNOWN_PARTITION, 3})


class FastProducer:
    """A `MessageProducer` on librdkafka's C interface."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Start the client.

        Raises:
            ConnectorError: a property is unknown or wrong.
        """
        self._client = lib.new_client(lib.PRODUCER, properties, lib.EVENT_DELIVERY)
        self._events = lib.queue_get_main(self._client)
        self._topics: dict[str, int] = {}
        self._failed, self._code = 0, 0

    def init_transactions(self, timeout_ms: int) -> None:
        """Take the transactional id."""
        # without a connection the library cannot ask for the coordinator at first, and waits 500 ms before it asks
        # again
        found = ctypes.c_void_p()
        if lib.metadata(self._client, 0, None, ctypes.byref(found), timeout_ms) == 0:
            lib.metadata_destroy(found)
        self._call("init_transactions", lambda: lib.init_transactions(self._client, timeout_ms))

    def begin(self) -> None:
        """Open a transaction."""
        self._failed = self._code = 0
        self._call("begin_transaction", lambda: lib.begin_transaction(self._client))

    def send(self, topic: str, value: pa.Array, key: pa.Array | None = None) -> None:
        """Queue messages."""
        messages = np.zeros(len(value), lib.MESSAGE)
        _point(messages, "payload", "size", value)
        if key is not None:
            _point(messages, "key", "key_size", key)
        handle = self._topic(topic)
        deadline = time.monotonic() + SEND_TIMEOUT_MS / 1000
        while len(messages):
            done = lib.produce_batch(handle, -1, lib.FLAG_COPY, messages.ctypes.data, len(messages))
            if done == len(messages):
                break
            refused = messages["error"] != 0
            codes = messages["error"][refused]
            if (codes != lib.ERR_QUEUE_FULL).any():
                code = int(codes[codes != lib.ERR_QUEUE_FULL][0])
                self._check_fatal()
                raise self._refusal(f"Kafka producer, topic {topic}", lib.error_text(code), code)
            if time.monotonic() > deadline:
                raise ProducerError(
                    f"Kafka producer, topic {topic}: its queue was full for {SEND_TIMEOUT_MS // 1000} s"
                )
            messages = messages[refused].copy()
            messages["error"] = 0
            self._serve(_PAUSE_MS)
        self._serve(0)
        if self._failed and self._code in _UNKNOWN:
            raise self._undelivered()

    def mark(self, group: str, topic: str, offset: int, timeout_ms: int, wanted: Wanted = always) -> None:
        """Set the group's offset inside the transaction; if that takes too long, this producer becomes unusable."""
        client = self._client

        def send() -> int | None:
            metadata = lib.group_metadata_new(group.encode())
            try:
                with lib.PartitionList([(topic, 0, offset)]) as items:
                    error: int | None = lib.send_offsets(client, items, metadata, timeout_ms)
                    return error
            finally:
                lib.group_metadata_destroy(metadata)

        def on_late_result(error: int | None) -> None:
            if error:
                lib.error_destroy(error)
            self._free(client)

        begun = time.monotonic()
        ended = call_with_timeout(send, timeout_ms, on_late_result, wanted)
        if ended is None:
            self._client = 0  # `on_late_result` frees it
            raise timeout_error("send_offsets", round((time.monotonic() - begun) * 1000))
        self._call("send_offsets", ended.result)

    def commit(self, timeout_ms: int) -> None:
        """Flush and commit."""
        deadline = time.monotonic() + timeout_ms / 1000
        self.flush(timeout_ms)
        left = max(1, int((deadline - time.monotonic()) * 1000))
        self._call("commit_transaction", lambda: lib.commit_transaction(self._client, left))

    def abort(self, timeout_ms: int) -> None:
        """Abort the open transaction; queued messages are dropped."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            try:
                # it waits until the events of the dropped messages are served, which happens only between its calls
                self._call("abort_transaction", lambda: lib.abort_transaction(self._client, _PAUSE_MS))
                break
            except ProducerError as error:
                self._serve(0)
                if not error.retriable or time.monotonic() > deadline:
                    raise
        self._serve(0)
        self._failed = 0

    def flush(self, timeout_ms: int) -> None:
        """Wait until everything is acknowledged."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            # with delivery events it only waits; those events count as outstanding until they are served
            lib.flush(self._client, min(_PAUSE_MS, timeout_ms))
            self._serve(0)
            if self._failed:
                break
            left = lib.out_queue_length(self._client)
            if left == 0:
                return
            if time.monotonic() > deadline:
                raise flush_timeout_error(left, self._topics, timeout_ms)
        self._check_fatal()
        raise self._undelivered()

    def close(self) -> None:
        """Free it; nothing is committed or aborted."""
        client, self._client = self._client, 0
        if client:
            self._free(client)

    def _free(self, client: int) -> None:
        lib.purge(client, lib.PURGE_QUEUE | lib.PURGE_INFLIGHT)
        self._serve(0)
        for handle in self._topics.values():
            lib.topic_destroy(handle)
        lib.queue_destroy(self._events)
        lib.kafka_destroy(client)

    def _topic(self, name: str) -> int:
        handle = self._topics.get(name)
        if handle is None:
            handle = lib.topic_new(self._client, name.encode(), None)
            if not handle:
                raise ProducerError(f"Kafka producer, topic {name}: {lib.error_text(lib.last_error())}")
            self._topics[name] = handle
        return handle

    def _serve(self, timeout_ms: int) -> None:
        while event := lib.queue_poll(self._events, timeout_ms):
            timeout_ms = 0
            if lib.event_type(event) == lib.EVENT_DELIVERY:
                while message := lib.event_message_next(event):
                    self._failed += 1
                    code = _message_error(message)
                    self._code = lib.ERR_TOO_LARGE if self._code == lib.ERR_TOO_LARGE else code
            lib.event_destroy(event)

    def _check_fatal(self) -> None:
        text = ctypes.create_string_buffer(512)
        code = lib.fatal_error(self._client, text, len(text))
        if code:
            reason = text.value.decode(errors="replace")
            raise ProducerError(f"Kafka producer: {reason}", fatal=True, fenced=_is_fenced(code, reason))

    def _undelivered(self) -> ProducerError:
        """Return the error of the messages that were not delivered, each of which is reported once."""
        failed, self._failed = self._failed, 0
        return self._refusal(undelivered_text(failed, self._topics), lib.error_text(self._code), self._code)

    def _refusal(self, what: str, text: str, code: int) -> ProducerError:
        """Return the error; an earlier message that was not delivered is the cause of later errors."""
        # the client refuses messages of a broken transaction before it reports the one that broke it
        self._serve(QUICK_TIMEOUT_MS if code == lib.ERR_STATE and not self._code else 0)
        if lib.ERR_TOO_LARGE in (code, self._code):
            return RecordTooLargeError(f"{what}: {lib.error_text(lib.ERR_TOO_LARGE)}")
        if _UNKNOWN & {code, self._code}:
            return UnknownTopicError(what, text)
        return ProducerError(f"{what}: {text}")

    def _call(self, what: str, call: Callable[[], int | None]) -> None:
        error = call()
        if not error:
            return
        code = lib.error_code(error)
        text = lib.error_string(error).decode(errors="replace")
        fatal, retriable = bool(lib.error_is_fatal(error)), bool(lib.error_is_retriable(error))
        lib.error_destroy(error)
        fenced = fatal and _is_fenced(code, text)
        if not fatal and not retriable:
            raise self._refusal(f"Kafka producer, {what}", text, code)
        text, late = f"Kafka producer, {what}: {text}", code == lib.ERR_TIMED_OUT
        raise ProducerError(text, fatal=fatal, fenced=fenced, retriable=retriable, timed_out=late)


def _is_fenced(code: int, text: str) -> bool:
    return code in _FENCED or "fenced" in text.lower()


def _message_error(address: int) -> int:
    return int(ctypes.c_int32.from_address(address).value)


def _point(messages: Any, pointer: str, size: str, column: pa.Array) -> None:
    """Fill in the address of each value of a column."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        kind: Any = np.int32
    elif pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        kind = np.int64
    else:
        msg = f"messages are binary or text, not {column.type}"
        raise TypeError(msg)
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, kind)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    # an empty value must differ from null: any address does
    base = data.address if data is not None and data.size else messages.ctypes.data
    messages[pointer] = base + places[:-1]
    messages[size] = np.diff(places)
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        messages[pointer][null] = 0
        messages[size][null] = 0
