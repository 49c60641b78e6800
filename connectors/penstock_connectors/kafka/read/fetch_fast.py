"""The compiled fetcher: librdkafka's queue -> message structs -> Arrow buffers, without a Python object per message.

Chosen by `reader.open_fetcher`. librdkafka writes a byte into a pipe when a queue becomes non-empty; one thread waits
on the other end. For messages it calls `wake`, if the last fetch found nothing. Events (statistics, errors, commits) it
takes itself: librdkafka's queue of them has no bound, and a reader under back-pressure does not fetch for hours.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.errors import ConnectorError
from penstock_connectors.kafka.client import _kernels as kernels
from penstock_connectors.kafka.client import librdkafka as lib
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

#: Byte positions of address and size in a message struct, and the columns' names.
_VALUE, _KEY = (24, "payload", "size"), (40, "key", "key_size")
#: Bytes in the pipe: messages, events, the end.
_MESSAGES, _EVENTS, _STOP = b"x", b"e", b"q"


class FastFetcher:
    """A `Fetcher` on librdkafka's C interface."""

    def __init__(self, settings: FetchSettings) -> None:
        """Start the client; nothing is fetched before `add`."""
        self._settings = settings
        events = lib.EVENT_COMMIT | lib.EVENT_STATS
        self._client = lib.new_client(lib.CONSUMER, client_properties(settings.properties), events)
        self._main = lib.queue_get_main(self._client)  # errors and commit results; messages have their own queue
        self._queue = lib.queue_get_consumer(self._client)
        self._messages = np.empty(settings.most_messages, np.int64)
        self._structs = np.empty(settings.most_messages, lib.MESSAGE)
        self._times = np.empty(settings.most_messages, np.int64)
        self._scratch = np.empty(1, np.int64)
        #: Messages of the last fetch that are kept for their envelopes.
        self._kept = 0
        self._places: list[PartitionId] = []
        self._slots: dict[PartitionId, int] = {}
        self._topics: dict[int, np.ndarray[Any, Any]] = {}
        self._events = ClientEvents()
        self._hungry = False
        self._reader, self._writer = os.pipe()
        lib.queue_io_event_enable(self._queue, self._writer, _MESSAGES, 1)
        lib.queue_io_event_enable(self._main, self._writer, _EVENTS, 1)
        self._thread = threading.Thread(target=self._watch, name="kafka-wake", daemon=True)
        self._thread.start()

    def add(self, starts: Mapping[PartitionId, int]) -> None:
        """Start fetching these partitions from these offsets."""
        for place in starts:
            if place not in self._slots:
                self._slots[place] = len(self._places)
                self._places.append(place)
        self._topics.clear()  # the table of a known topic lacks the new partitions
        with lib.PartitionList([(topic, partition, at) for (topic, partition), at in starts.items()]) as items:
            _check(lib.incremental_assign(self._client, items), "assign partitions")

    def remove(self, places: list[PartitionId]) -> None:
        """Stop fetching these."""
        with lib.PartitionList([(topic, partition, None) for topic, partition in places]) as items:
            _check(lib.incremental_unassign(self._client, items), "unassign partitions")

    def pause(self, places: list[PartitionId]) -> None:
        """Pause these partitions."""
        with lib.PartitionList([(topic, partition, None) for topic, partition in places]) as items:
            lib.pause_partitions(self._client, items)

    def resume(self, places: list[PartitionId]) -> None:
        """Resume these partitions."""
        with lib.PartitionList([(topic, partition, None) for topic, partition in places]) as items:
            lib.resume_partitions(self._client, items)

    def fetch(self, max_messages: int) -> FetchResult:
        """Return queued messages."""
        result = FetchResult()
        self._free()
        self._hungry = False
        most = min(max_messages, self._settings.most_messages)
        count = lib.consume_batch_queue(self._queue, 0, self._messages.ctypes.data, most)
        if count == 0:
            # from here on the watcher wakes the reader; this second fetch returns messages that arrived after its last
            # byte
            self._hungry = True
            count = lib.consume_batch_queue(self._queue, 0, self._messages.ctypes.data, most)
        if count < 0:
            raise ConnectorError(f"Kafka consumer: {lib.error_text(lib.last_error())}")
        result.drained = count < most
        if count:
            self._hungry, self._kept = False, int(count)
            try:
                self._columns(self._kept, result)
            finally:
                if not self._settings.envelopes:
                    self._free()
        self._events.move_to(result)
        return result

    def lag(self, positions: Mapping[PartitionId, int]) -> int | None:
        """Sum up librdkafka's local values."""
        low, high = ctypes.c_int64(), ctypes.c_int64()
        total = 0
        for (topic, partition), position in positions.items():
            failed = lib.watermark_offsets(
                self._client, topic.encode(), partition, ctypes.byref(low), ctypes.byref(high)
            )
            if failed or high.value < 0:  # before the first answer of the partition's broker
                return None
            total += max(0, high.value - position)
        return total

    def commit(self, offsets: Mapping[PartitionId, int]) -> None:
        """Publish offsets; the answer is an event."""
        with lib.PartitionList([(topic, partition, at) for (topic, partition), at in offsets.items()]) as items:
            if lib.commit_queue(self._client, items, self._main, None, None):
                self._events.commit_failed()

    @property
    def commit_failures(self) -> int:
        """Return the number of commits that failed so far."""
        return self._events.commit_failures

    def close(self) -> None:
        """Free everything."""
        if not self._client:
            return
        client, self._client = self._client, 0
        self._free()
        for queue in (self._queue, self._main):
            lib.queue_io_event_enable(queue, -1, None, 0)
        os.write(self._writer, _STOP)
        self._thread.join(5)
        lib.queue_destroy(self._queue)
        lib.queue_destroy(self._main)
        # no orderly leave: no group was joined, and waiting for brokers would delay a restart
        lib.destroy_flags(client, 0x8)
        os.close(self._writer)
        os.close(self._reader)

    def _free(self) -> None:
        """Return the messages of the last fetch to the client."""
        kept, self._kept = self._kept, 0
        if kept:
            kernels.free(self._messages.ctypes.data, kept)

    def _columns(self, count: int, result: FetchResult) -> None:
        settings = self._settings
        structs = self._structs[:count]
        times = self._times.ctypes.data if settings.timestamps else 0
        errors = kernels.structs(
            self._messages.ctypes.data, count, self._structs.ctypes.data, times, self._scratch.ctypes.data
        )
        ended: dict[PartitionId, tuple[int, int]] = {}
        if errors:
            which = structs["error"] != 0
            for row in np.flatnonzero(which).tolist():
                self._event(structs[row], row, ended, result)
            structs = np.ascontiguousarray(structs[~which])
            rows = np.flatnonzero(~which)
            stamps = self._times[:count][~which]
        else:
            rows, stamps = None, self._times[:count]
        if len(structs):
            slots = self._slot_of(structs)
            positions = np.full(len(self._places), -1, np.int64)
            kernels.positions(structs.ctypes.data, len(structs), slots.ctypes.data, positions.ctypes.data)
            result.positions = {self._places[s]: int(positions[s]) for s in np.flatnonzero(positions >= 0).tolist()}
            pointers = self._messages[:count] if rows is None else self._messages[rows]
            result.messages = Fetched(
                value=_binary(structs, _VALUE),
                slot=slots,
                offset=structs["offset"].copy(),
                key=_binary(structs, _KEY) if settings.keys else None,
                timestamp=stamps.copy() if settings.timestamps else None,
                places=self._places,
                envelopes=functools.partial(_envelopes, structs, pointers) if settings.envelopes else None,
            )
            for place, (row, _) in list(ended.items()):
                later = rows is not None and bool((rows[slots == self._slots[place]] > row).any())
                if later:
                    del ended[place]
        result.ends = {place: offset for place, (_, offset) in ended.items()}

    def _event(self, message: Any, row: int, ended: dict[PartitionId, tuple[int, int]], result: FetchResult) -> None:
        place = (_topic_name(int(message["topic"])), int(message["partition"])) if message["topic"] else None
        code = int(message["error"])
        if code == lib.ERR_PARTITION_EOF and place is not None:
            ended[place] = (row, int(message["offset"]))
            return
        payload = ctypes.string_at(int(message["payload"]), int(message["size"])) if message["payload"] else b""
        text = payload.decode(errors="replace") or lib.error_text(code)
        result.problems.append(FetchProblem(code, text, place))

    def _slot_of(self, structs: Any) -> np.ndarray[Any, Any]:
        topics, partitions = structs["topic"], structs["partition"]
        first = int(topics[0])
        if (topics == first).all():
            return np.asarray(self._table(first)[partitions])
        slots = np.empty(len(structs), np.int64)
        for topic in np.unique(topics).tolist():
            mine = topics == topic
            slots[mine] = self._table(topic)[partitions[mine]]
        return slots

    def _table(self, topic: int) -> np.ndarray[Any, Any]:
        """Return slot by partition for a topic handle; handles live as long as the client's local topic object."""
        table = self._topics.get(topic)
        if table is None:
            name = _topic_name(topic)
            mine = {partition: slot for (t, partition), slot in self._slots.items() if t == name}
            table = np.full(max(mine) + 1, -1, np.int64)
            table[list(mine)] = list(mine.values())
            self._topics[topic] = table
        return table

    def _serve_events(self) -> None:
        while event := lib.queue_poll(self._main, 0):
            kind, code = lib.event_type(event), lib.event_error(event)
            if kind == lib.EVENT_ERROR:
                text = lib.event_error_string(event).decode(errors="replace")
                self._events.failed(FetchProblem(code, text))
            elif kind == lib.EVENT_STATS:
                self._events.measured(lib.event_stats(event))
            elif kind == lib.EVENT_COMMIT and code:
                self._events.commit_failed()
            lib.event_destroy(event)

    def _watch(self) -> None:
        self._serve_events()  # those from before the pipe was connected
        with contextlib.suppress(OSError):
            while _STOP not in (signs := os.read(self._reader, 4096)):
                if _EVENTS in signs:
                    self._serve_events()
                if self._hungry and _MESSAGES in signs:
                    self._settings.wake()


def _envelopes(structs: Any, pointers: Any, some: Sequence[int]) -> list[Envelope]:
    return [_envelope(structs[row], int(pointers[row])) for row in some]


def _envelope(message: Any, pointer: int) -> Envelope:
    key = ctypes.string_at(int(message["key"]), int(message["key_size"])) if message["key"] else None
    kind, found = ctypes.c_int(), ctypes.c_void_p()
    time_ms = lib.message_timestamp(pointer, ctypes.byref(kind))
    headers: list[tuple[str, bytes | None]] = []
    if lib.message_headers(pointer, ctypes.byref(found)) == 0:
        name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
        places = ctypes.byref(name), ctypes.byref(value), ctypes.byref(size)
        while lib.header_get_all(found, len(headers), *places) == 0:
            data = None if value.value is None else ctypes.string_at(value.value, size.value)
            headers.append(((name.value or b"").decode(errors="replace"), data))
    return Envelope(key, time_ms if kind.value else None, tuple(headers))


def _topic_name(handle: int) -> str:
    return str(lib.topic_name(handle).decode())


def _binary(structs: Any, place: tuple[int, str, str]) -> pa.LargeBinaryArray:
    count, (field, name, size_name) = len(structs), place
    size = structs[size_name]
    offsets, data = np.empty(count + 1, np.int64), np.empty(max(1, int(size.sum())), np.uint8)
    used = kernels.gather(structs.ctypes.data, count, field, offsets.ctypes.data, data.ctypes.data)
    bits = None
    if not structs[name].all():
        marks = np.zeros(-(-count // 8), np.uint8)
        kernels.valid(structs.ctypes.data, count, field, marks.ctypes.data)
        bits = pa.py_buffer(marks)
    return pa.Array.from_buffers(pa.large_binary(), count, [bits, pa.py_buffer(offsets), pa.py_buffer(data[:used])])


def _check(error: int | None, what: str) -> None:
    if error:
        text = lib.error_string(error).decode(errors="replace")
        lib.error_destroy(error)
        raise ConnectorError(f"Kafka consumer cannot {what}: {text}")
