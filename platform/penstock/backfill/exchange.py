"""Rows between the stages of a backfill: packets of sorted rows on their way, one canonical order at their end.

A task sorts its output by part and time and sends packets, each with rows of one edge for one part. An engine moves
packets without reading their rows, and gives a task those of its part in the order of `Packet.place`. `Merger` merges
their rows to the canonical order: by time, then edge, sender, and position at the sender. Pure; used by `task`,
`engine` and `spark`.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN

#: Edge of results of tasks, and of packets that only make a part run.
NO_EDGE = -1
#: Added to the number of an edge if its rows are combined.
COMBINED = 1 << 16
#: Most rows and bytes that a task sorts at a time.
_SORTED_ROWS, _SORTED_BYTES = 1 << 19, 64 << 20
#: Most rows and bytes of a packet. A receiver holds the packets that overlap in time.
_PACKET_ROWS, _PACKET_BYTES = 1 << 13, 4 << 20
#: Most bytes that a receiver merges at a time, apart from the last packet.
MERGED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Packet:
    """Rows of one edge for one part, sorted by time; or the result of a task, for which `data` alone counts."""

    part: int
    #: Time of the first row.
    first: int
    #: Among the sender's outputs or the receiver's inputs, plus `COMBINED`; or `NO_EDGE`.
    edge: int
    #: The sending task, and the number of the packet there.
    origin: int
    number: int
    #: `RecordBatch.serialize` of the rows, or the result of the task.
    data: bytes

    @property
    def place(self) -> tuple[int, int, int, int, int]:
        """Return the sort key of packets at the receiver."""
        return self.part, self.first, self.edge, self.origin, self.number


def marker(part: int) -> Packet:
    """Return a packet without rows, so that a part without input runs too."""
    return Packet(part, MIN_TIMESTAMP, NO_EDGE, 0, 0, b"")


def times_of(rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Return the event times of rows; the smallest one for rows without event time."""
    index = rows.schema.get_field_index(TS_COLUMN)
    return rows.column(index).to_numpy() if index >= 0 else np.full(rows.num_rows, MIN_TIMESTAMP)


class Outbox:
    """The output of one task: collects rows by edge, sorts them, and returns packets."""

    def __init__(self, origin: int) -> None:
        """Collect rows of task `origin`, whose number decides ties between rows of one time."""
        self._origin = origin
        self._number = 0
        #: Edge -> rows with their target parts.
        self._rows: dict[int, list[tuple[pa.RecordBatch, np.ndarray[Any, Any]]]] = {}
        self._waiting: dict[int, tuple[int, int]] = {}
        self._ready: list[Packet] = []

    def add(self, edge: int, rows: pa.RecordBatch, parts: np.ndarray[Any, Any], *, combined: bool = False) -> None:
        """Add rows of one edge, each with its target part in the next stage; the time of a combined row is its pane."""
        code = edge + (COMBINED if combined else 0)
        self._rows.setdefault(code, []).append((rows, parts))
        count, size = self._waiting.get(code, (0, 0))
        count, size = count + rows.num_rows, size + rows.get_total_buffer_size()
        self._waiting[code] = count, size
        if count >= _SORTED_ROWS or size >= _SORTED_BYTES:
            self._pack(code)

    def finish(self, result: bytes) -> None:
        """Add the rest of the rows and the result of the task."""
        for code in sorted(self._rows):
            self._pack(code)
        self._ready.append(Packet(0, MIN_TIMESTAMP, NO_EDGE, self._origin, self._number, result))

    def take(self) -> list[Packet]:
        """Return the packets that are ready."""
        ready, self._ready = self._ready, []
        return ready

    def _pack(self, code: int) -> None:
        given = self._rows.pop(code)
        del self._waiting[code]
        rows = joined([batch for batch, _ in given])
        parts = given[0][1] if len(given) == 1 else np.concatenate([parts for _, parts in given])
        order = np.lexsort((times_of(rows), parts))
        rows, parts = rows.take(pa.array(order)), parts[order]
        times = times_of(rows)
        most = max(1, min(_PACKET_ROWS, _PACKET_BYTES * rows.num_rows // max(1, rows.nbytes)))
        for part, start, stop in runs(parts):
            for low in range(start, stop, most):
                data = rows.slice(low, min(most, stop - low)).serialize().to_pybytes()
                self._ready.append(Packet(part, int(times[low]), code, self._origin, self._number, data))
                self._number += 1


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of several batches as one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def runs(values: np.ndarray[Any, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield (value, start, stop) of each run of equal values."""
    if not len(values):
        return
    bounds = np.flatnonzero(np.diff(values)) + 1
    starts = [0, *bounds.tolist()]
    for start, stop in zip(starts, [*starts[1:], len(values)], strict=True):
        yield int(values[start]), start, stop


@dataclass(frozen=True, slots=True)
class OrderedRows:
    """Rows of several edges in one order."""

    edges: np.ndarray[Any, Any]
    times: np.ndarray[Any, Any]
    #: Index of each row in the batch of its edge.
    places: np.ndarray[Any, Any]
    #: Edge -> its rows, in the same order.
    batches: Mapping[int, pa.RecordBatch]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.edges)

    def slice(self, start: int, stop: int) -> OrderedRows:
        """Return the rows from `start` to before `stop`."""
        part = slice(start, stop)
        return OrderedRows(self.edges[part], self.times[part], self.places[part], self.batches)

    def take(self, order: np.ndarray[Any, Any]) -> OrderedRows:
        """Return rows by an index or a mask; those of each edge have to stay together and in their order."""
        return OrderedRows(self.edges[order], self.times[order], self.places[order], self.batches)

    def of_edge(self, edge: int, start: int, count: int) -> pa.RecordBatch:
        """Return `count` rows of one edge; `start` is the index of the first among all rows."""
        return self.batches[edge].slice(int(self.places[start]), count)

    def runs(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield edge and rows of each run of rows of one edge."""
        for edge, start, stop in runs(self.edges):
            yield edge, self.of_edge(edge, start, stop - start)


def ordered(parts: Sequence[tuple[int, pa.RecordBatch, np.ndarray[Any, Any]]]) -> OrderedRows:
    """Merge (edge, rows, times) that are sorted by edge; rows of one time keep this order."""
    times = parts[0][2] if len(parts) == 1 else np.concatenate([times for _, _, times in parts])
    order = np.argsort(times, kind="stable")
    edges = np.repeat(np.array([edge for edge, _, _ in parts], np.int32), [rows.num_rows for _, rows, _ in parts])[
        order
    ]
    places = np.empty(len(order), np.int64)
    batches: dict[int, pa.RecordBatch] = {}
    before = 0
    for edge in dict.fromkeys(edge for edge, _, _ in parts):
        rows = joined([rows for other, rows, _ in parts if other == edge])
        own = np.flatnonzero(edges == edge)
        index = order[own] - before
        places[own] = np.arange(len(own))
        batches[edge] = rows if (np.diff(index) == 1).all() else rows.take(pa.array(index))
        before += rows.num_rows
    return OrderedRows(edges, times[order], places, batches)


class _Run:
    """The rows of a packet that are not merged yet."""

    def __init__(self, packet: Packet, schema: pa.Schema) -> None:
        self.key = packet.edge, packet.origin, packet.number
        self.edge = packet.edge
        self._rows = pa.ipc.read_record_batch(pa.py_buffer(packet.data), schema)
        self._times = times_of(self._rows)

    def __len__(self) -> int:
        return len(self._times)

    def before(self, limit: int, *, inclusive: bool) -> tuple[int, pa.RecordBatch, np.ndarray[Any, Any]]:
        """Remove and return the rows before a time, or up to it."""
        stop = int(np.searchsorted(self._times, limit, side="right" if inclusive else "left"))
        rows, times = self._rows.slice(0, stop), self._times[:stop]
        self._rows, self._times = self._rows.slice(stop), self._times[stop:]
        return self.edge, rows, times


class Merger:
    """Merges the packets of one part, given in the order of `Packet.place`."""

    def __init__(self, schemas: Mapping[int, pa.Schema], batch_rows: int, batch_bytes: int = MERGED_BYTES) -> None:
        """Return rows in batches of about `batch_rows` or `batch_bytes`; `schemas` are those of the edges."""
        self._schemas = schemas
        self._batch_rows, self._batch_bytes = batch_rows, batch_bytes
        #: Sorted by edge, sender and number: the order of rows of one time.
        self._runs: list[_Run] = []
        #: Rows and bytes since the last merge.
        self._new = self._new_bytes = 0

    def add(self, packet: Packet) -> Iterator[OrderedRows]:
        """Take a packet; yield rows that no later packet can precede."""
        run = _Run(packet, self._schemas[packet.edge])
        if self._new >= self._batch_rows or self._new_bytes >= self._batch_bytes:
            yield from self._merge(packet.first, run.key)
        bisect.insort(self._runs, run, key=_key_of)
        self._new += len(run)
        self._new_bytes += len(packet.data)

    def rest(self) -> Iterator[OrderedRows]:
        """Yield all rows that are left."""
        yield from self._merge(None, ())

    def _merge(self, first: int | None, key: tuple[int, ...]) -> Iterator[OrderedRows]:
        self._new = self._new_bytes = 0
        limit = np.iinfo(np.int64).max if first is None else first
        # packets come in the order of their first time, then of their key
        parts = [run.before(limit, inclusive=first is None or run.key < key) for run in self._runs]
        self._runs = [run for run in self._runs if len(run)]
        parts = [part for part in parts if part[1].num_rows]
        if not parts:
            return
        rows = ordered(parts)
        for start in range(0, len(rows), self._batch_rows):
            yield rows.slice(start, min(start + self._batch_rows, len(rows)))


def _key_of(run: _Run) -> tuple[int, int, int]:
    return run.key
