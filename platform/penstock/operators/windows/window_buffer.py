"""The state of windows that keep their rows: per key its rows, each stored once, and the index of its windows.

Used by `operators.windows.window_rows` and `operators.windows.window_engine`.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.structs import prepare
from penstock.eventtime.windows import TimeWindow
from penstock.functions.evictors import WindowElement
from penstock.operators.rows.columns import without_ts
from penstock.operators.rows.row_codec import RowEncoder, row_maker
from penstock.state.log.row_spec import ENTRY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.operators.windows.window_assigners import WindowAssigner
    from penstock.state.store import KeyedState

_END = attrgetter("end")


class BufferedWindow(msgspec.Struct, array_like=True):
    """The state of one window of one key."""

    #: Numbers of its rows, in order.
    rows: list[int] = []
    #: State of the trigger and of the function.
    trigger: dict[str, Any] = {}
    function: dict[str, Any] = {}
    #: The trigger's timers.
    event: set[int] = set()
    processing: set[int] = set()


prepare(BufferedWindow)


class WindowIndex(dict[TimeWindow, BufferedWindow]):
    """Windows of a key; changed only by `put` and `take`."""

    __slots__ = ("_assigner", "_events", "_ordered", "_processings")

    def __init__(self, assigner: WindowAssigner, windows: Mapping[TimeWindow, BufferedWindow] | None = None) -> None:
        """Make an index of the restored `windows`, if there are any."""
        super().__init__()
        self._assigner = assigner
        #: Windows by the time they wait for.
        self._events: dict[int, dict[TimeWindow, None]] = {}
        self._processings: dict[int, dict[TimeWindow, None]] = {}
        #: Windows that merge, none of which touches another, in order of start and end.
        self._ordered: list[TimeWindow] = []
        for window, known in (windows or {}).items():
            self.put(assigner.restored(window), known)

    def put(self, window: TimeWindow, known: BufferedWindow) -> None:
        """Add a window with the times it waits for."""
        self[window] = known
        for time in known.event:
            self.wait(time, window, processing=False)
        for time in known.processing:
            self.wait(time, window, processing=True)
        self.wait(self._assigner.cleanup_time(window), window, processing=self._assigner.processing)
        if self._assigner.merges:
            insort(self._ordered, window)

    def take(self, window: TimeWindow) -> BufferedWindow:
        """Remove and return a window."""
        known = self.pop(window)
        self._discard(self._events, known.event, window)
        self._discard(self._processings, known.processing, window)
        cleanup = self._processings if self._assigner.processing else self._events
        self._discard(cleanup, (self._assigner.cleanup_time(window),), window)
        if self._assigner.merges:
            del self._ordered[bisect_left(self._ordered, window)]
        return known

    def wait(self, time: int, window: TimeWindow, *, processing: bool) -> None:
        """Register a window for that time."""
        (self._processings if processing else self._events).setdefault(time, {})[window] = None

    def cancel(self, time: int, window: TimeWindow, *, processing: bool) -> None:
        """Remove a window's registration for that time, unless it is over then."""
        if processing != self._assigner.processing or time != self._assigner.cleanup_time(window):
            self._discard(self._processings if processing else self._events, (time,), window)

    def due(self, time: int, *, processing: bool) -> list[TimeWindow]:
        """Remove and return the windows registered for that time, in order."""
        return sorted((self._processings if processing else self._events).pop(time, ()))

    def overlapping(self, window: TimeWindow) -> list[TimeWindow]:
        """Return the windows that a window of the same key would merge with, in order."""
        first = stop = bisect_left(self._ordered, window.start, key=_END)
        while stop < len(self._ordered) and self._ordered[stop].start <= window.end:
            stop += 1
        return self._ordered[first:stop]

    @staticmethod
    def _discard(waiting: dict[int, dict[TimeWindow, None]], times: Iterable[int], window: TimeWindow) -> None:
        for time in times:
            windows = waiting.get(time)
            if windows is not None and window in windows:
                del windows[window]
                if not windows:
                    del waiting[time]


_NUMBER = (pa.field(ENTRY, pa.int64()),)
_BOUNDS = (pa.field(f"{ENTRY}_start", pa.int64()), pa.field(f"{ENTRY}_end", pa.int64()))
_ROW_BYTES, _WINDOW_BYTES = 200, 1000


class KeyWindows:
    """The rows and windows of one key in a batch."""

    __slots__ = ("at", "rows", "watermark", "windows")

    def __init__(self, at: int, rows: dict[int, WindowElement], windows: WindowIndex, watermark: int) -> None:
        """Make the entry of a key; `at` is its index in the batch."""
        self.at = at
        self.rows = rows
        self.windows = windows
        self.watermark = watermark


class _RowCodec:
    """Rows as elements; see `state.tables.collection_table.EntryCodec`."""

    plain = False

    def __init__(self, schema: pa.Schema, row_type: type | None) -> None:
        rows = without_ts(schema)
        self._make = row_maker(rows.names, row_type)
        self._tuples = row_type is None or issubclass(row_type, tuple)
        self._timed = len(rows) < len(schema)
        self._encoder = RowEncoder(schema, "rows of a window")
        self._texts = [i for i, field in enumerate(schema) if not pt.is_primitive(field.type)]
        #: Columns of bytes that may be long: the parts of windows of a spread key.
        self._packed = [i for i in self._texts if pt.is_large_binary(schema.field(i).type)] if self._tuples else []
        self.object_bytes = _ROW_BYTES + 40 * len(schema)

    def decode_keys(self, columns: list[list[Any]]) -> list[Any]:
        """Return row numbers."""
        return columns[0]

    def encode_keys(self, keys: Sequence[Any]) -> list[pa.Array]:
        """Return the column of row numbers."""
        return [pa.array(keys, pa.int64())]

    def decode_values(self, columns: list[list[Any]]) -> list[Any]:
        """Return elements without numbers."""
        times = columns.pop() if self._timed else [0] * len(columns[0])
        return [WindowElement(row, time) for row, time in zip(self._make(columns), times, strict=True)]

    def encode_values(self, values: Sequence[Any]) -> list[pa.Array]:
        """Return the columns of elements."""
        found = [element.value for element in values]
        if self._tuples:
            by_field = zip(self._encoder.schema, zip(*found, strict=True), strict=True)
            rows = [self._encoder.array(field, column) for field, column in by_field]
        else:
            rows = self._encoder.columns(found)
        return [*rows, pa.array([element.timestamp for element in values], pa.int64())] if self._timed else rows

    def text_bytes(self, columns: Sequence[pa.Array]) -> int:
        """Return the bytes of strings."""
        return sum(columns[1 + i].nbytes for i in self._texts) if len(columns) > 1 else 0

    def measured(self, container: Any) -> int:
        """Return the approximate bytes of strings, and the exact ones of long binaries."""
        packed = sum(len(element.value[i] or b"") for i in self._packed for element in container.values())
        return len(self._texts) * 60 * len(container) + packed


class _WindowCodec:
    """Windows as `BufferedWindow`."""

    plain, object_bytes = False, _WINDOW_BYTES

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(BufferedWindow)
        self._encoder = msgspec.msgpack.Encoder()

    def decode_keys(self, columns: list[list[Any]]) -> list[Any]:
        """Return bounds."""
        return [TimeWindow(start, end) for start, end in zip(*columns, strict=True)]

    def encode_keys(self, keys: Sequence[Any]) -> list[pa.Array]:
        """Return the columns of bounds."""
        return [pa.array([window[edge] for window in keys], pa.int64()) for edge in (0, 1)]

    def decode_values(self, columns: list[list[Any]]) -> list[Any]:
        """Return windows."""
        return [self._decoder.decode(packed) for packed in columns[0]]

    def encode_values(self, values: Sequence[Any]) -> list[pa.Array]:
        """Return the column of windows."""
        return [pa.array([self._encoder.encode(window) for window in values], pa.binary())]

    def text_bytes(self, columns: Sequence[pa.Array]) -> int:
        """Return the bytes of the rows' numbers, as objects."""
        return 4 * int(columns[-1].nbytes)

    def measured(self, container: Any) -> int:
        """Return the bytes of the rows' numbers."""
        return sum(sys.getsizeof(window.rows) for window in container.values())


class WindowBuffer:
    """Rows and windows of one subtask."""

    def __init__(
        self,
        store: KeyedState,
        key: pa.Schema,
        schema: pa.Schema,
        row_type: type | None,
        assigner: WindowAssigner,
    ) -> None:
        """Declare (and so restore) the state.

        `key` are its columns; `schema` is that of the rows, with `__ts` if they have event time.
        """
        self._assigner = assigner
        self.state = store.row_state(key, evictable=True)
        self._schema = schema
        rows = _RowCodec(schema, row_type)
        self._rows = self.state.entries("rows", (_NUMBER, tuple(schema)), rows)
        packed = (pa.field("window", pa.binary()),)
        self._codec = _WindowCodec()
        self._windows = self.state.windows("windows", (_BOUNDS, packed), self._codec, assigner.shown)
        self.event_timers, self.processing_timers = self.state.timers("event"), self.state.timers("processing")
        self._places: list[KeyWindows] = []
        self._slots: I32 = np.empty(0, np.int32)
        self._removed: list[tuple[int, int]] = []
        self._changed: dict[tuple[int, TimeWindow], None] = {}
        #: The number of the next row, above those of all keys whose rows were used.
        self.next_number = 0

    # --- a batch of keys --------------------------------------------------------------------------------------------

    def begin(self, slots: I32, watermarks: list[int]) -> list[KeyWindows]:
        """Return the rows and windows of these distinct keys, which are changed in place until `end`."""
        self._slots = slots.copy()
        known = zip(self._rows.containers(slots), self._windows.containers(slots), watermarks, strict=True)
        self._places = []
        for at, (held, windows, mark) in enumerate(known):
            rows = {} if held is None else held
            self._places.append(KeyWindows(at, rows, self._indexed(rows, windows), mark))
        return self._places

    def _indexed(self, rows: dict[int, WindowElement], windows: dict[TimeWindow, BufferedWindow] | None) -> WindowIndex:
        """Return a key's windows; after decoding from columns, number its rows and index the windows that hold them."""
        if isinstance(windows, WindowIndex):
            return windows
        for number, element in rows.items():
            element.number = number
        self.next_number = max(self.next_number, max(rows, default=-1) + 1)
        for window in (windows or {}).values():
            for number in window.rows:
                rows[number].references += 1
        return WindowIndex(self._assigner, windows)

    def changed(self, key: KeyWindows, window: TimeWindow) -> None:
        """Record that the window is new, changed or removed."""
        self._changed[key.at, window] = None

    def forget(self, key: KeyWindows, numbers: list[int]) -> None:
        """Record that a window no longer holds these rows."""
        for number in numbers:
            element = key.rows[number]
            element.references -= 1
            if element.references == 0:
                del key.rows[number]
                self._removed.append((key.at, number))

    def end(self, first_number: int, places: I32 | None, data: pa.RecordBatch | None) -> None:
        """Save the changes; row i of `data`, if there is a batch, has the number `first_number + i`."""
        new = self._removed_before(first_number)
        if data is not None and places is not None:
            self._save_rows(first_number, places, data)
        if new:
            at = np.array([place for place, _ in new], np.int64)
            self._rows.remove(self._slots[at], [pa.array([number for _, number in new], pa.int64())])
        self._save_windows()
        self._rows.changed(self._slots, [place.rows for place in self._places])
        self._windows.changed(self._slots, [place.windows for place in self._places])
        self._removed, self._changed, self._places = [], {}, []

    def key_columns(self) -> list[pa.Array]:
        """Return the key columns of the batch's keys."""
        return self.state.keys(self._slots)

    def _removed_before(self, first_number: int) -> list[tuple[int, int]]:
        """Return the removed rows from before this batch: others were never saved."""
        return [(place, number) for place, number in self._removed if number < first_number]

    def _save_rows(self, first_number: int, places: I32, data: pa.RecordBatch) -> None:
        rows = [place.rows for place in self._places]
        kept = np.array([first_number + i in rows[at] for i, at in enumerate(places.tolist())], np.bool_)
        if not kept.any():
            return
        data = data.filter(pa.array(kept))
        columns = [data.column(field.name) for field in self._schema]
        values = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, self._schema, strict=True)]
        numbers = pa.array(np.flatnonzero(kept) + first_number)
        self._rows.put(self._slots[places[kept]], [numbers], values)

    def _save_windows(self) -> None:
        live = [(at, w) for at, w in self._changed if w in self._places[at].windows]
        removed = [(at, w) for at, w in self._changed if w not in self._places[at].windows]
        if removed:
            self._windows.remove(*self._entries(removed))
        if live:
            packed = self._codec.encode_values([self._places[at].windows[window] for at, window in live])
            slots, bounds = self._entries(live)
            self._windows.put(slots, bounds, packed)

    def _entries(self, windows: list[tuple[int, TimeWindow]]) -> tuple[I32, list[pa.Array]]:
        at = np.array([place for place, _ in windows], np.int64)
        return self._slots[at], self._codec.encode_keys([window for _, window in windows])

    def hashes(self, slots: I32) -> I64:
        """Return the key hashes of slots."""
        found: I64 = self.state.index.view().hashes[slots]
        return found
