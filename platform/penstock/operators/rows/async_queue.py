"""The queue of rows in an asynchronous function, which decides what to emit; it has no clock and no thread.

Watermarks and statuses wait for the rows before them, so that no row becomes late by a slow call. Rows are emitted in
input order or (unordered) in order of completion, but never past such a mark. Used by `operators.rows.map_async`.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.core.elements import Watermark, WatermarkStatus


@dataclass(slots=True, eq=False)
class AsyncRow:
    """One row: its index in its batch, the function's argument, and the result."""

    batch: pa.RecordBatch
    index: int
    row: Any
    segment: _Segment
    done: bool = False
    result: Any = None


@dataclass(slots=True)
class _Segment:
    """Rows before the next mark."""

    #: Rows not yet emitted, in input order.
    entries: dict[AsyncRow, None] = field(default_factory=dict)
    #: The completed ones of them, in order of completion (unordered only).
    finished: list[AsyncRow] = field(default_factory=list)
    mark: Watermark | WatermarkStatus | None = None


class AsyncQueue:
    """Rows in input order; at most `capacity` calls run at a time."""

    def __init__(self, capacity: int, *, ordered: bool) -> None:
        """Make an empty queue."""
        self._capacity = capacity
        self._ordered = ordered
        self._segments: deque[_Segment] = deque([_Segment()])
        self._waiting: deque[AsyncRow] = deque()
        #: Rows with a running call; rows not yet emitted, completed or not.
        self._running = self._unemitted = 0

    @property
    def empty(self) -> bool:
        """Whether the queue has no row and no mark."""
        return len(self._segments) == 1 and not self._segments[0].entries

    @property
    def full(self) -> bool:
        """Whether further rows would only wait, possibly after completed ones that one slow call delays."""
        return self._unemitted >= self._capacity

    @property
    def running(self) -> int:
        """The number of rows with a running call."""
        return self._running

    def add(self, batch: pa.RecordBatch, rows: Iterator[Any]) -> None:
        """Take the rows of a batch."""
        segment = self._segments[-1]
        entries = [AsyncRow(batch, index, row, segment) for index, row in enumerate(rows)]
        segment.entries.update(dict.fromkeys(entries))
        self._waiting.extend(entries)
        self._unemitted += len(entries)

    def mark(self, element: Watermark | WatermarkStatus) -> None:
        """Append a mark, which must not overtake the rows before it."""
        self._segments[-1].mark = element
        self._segments.append(_Segment())

    def start(self) -> list[AsyncRow]:
        """Return the rows whose calls start now."""
        begun = []
        while self._waiting and self._running < self._capacity:
            entry = self._waiting.popleft()
            self._running += 1
            begun.append(entry)
        return begun

    def complete(self, entry: AsyncRow, result: Any) -> None:
        """Set the result of a row."""
        entry.done, entry.result = True, result
        self._running -= 1
        if not self._ordered:
            entry.segment.finished.append(entry)

    def take(self) -> list[list[AsyncRow] | Watermark | WatermarkStatus]:
        """Return the output that is ready, in order: completed rows, and marks with no pending row before them."""
        taken: list[list[AsyncRow] | Watermark | WatermarkStatus] = []
        while True:
            segment = self._segments[0]
            rows, segment.finished = segment.finished, []
            if self._ordered:
                rows = list(itertools.takewhile(operator.attrgetter("done"), segment.entries))
            for entry in rows:
                del segment.entries[entry]
            self._unemitted -= len(rows)
            if rows:
                taken.append(rows)
            if segment.entries or segment.mark is None:
                return taken
            taken.append(segment.mark)
            self._segments.popleft()

    def unemitted(self) -> list[AsyncRow]:
        """Return the rows not yet emitted, in input order."""
        return [entry for segment in self._segments for entry in segment.entries]
