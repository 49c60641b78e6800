"""What is under way in an asynchronous function, and what of it may be emitted: a decider without clock or thread.

Watermarks and statuses wait for the rows before them, so that no row becomes late by being under way. Rows come out in
the order they came in, or (unordered) as they are done, though never past such a mark. Used by
`operators.rows.map_async`.
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
class Entry:
    """One row: its place in the batch it came with, what the function is given, and what came of it."""

    batch: pa.RecordBatch
    index: int
    row: Any
    segment: _Segment
    done: bool = False
    result: Any = None


@dataclass(slots=True)
class _Segment:
    """Rows up to the next mark."""

    #: Rows that were not emitted, in the order they came.
    entries: dict[Entry, None] = field(default_factory=dict)
    #: Those of them that are done, in that order (unordered only).
    finished: list[Entry] = field(default_factory=list)
    mark: Watermark | WatermarkStatus | None = None


class AsyncQueue:
    """Rows in the order they came; at most `capacity` of them are under way at a time."""

    def __init__(self, capacity: int, *, ordered: bool) -> None:
        """Nothing is under way."""
        self._capacity = capacity
        self._ordered = ordered
        self._segments: deque[_Segment] = deque([_Segment()])
        self._waiting: deque[Entry] = deque()
        #: Rows under way; rows that were not emitted, be they done or not.
        self._running = self._held = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is held, no row and no mark."""
        return len(self._segments) == 1 and not self._segments[0].entries

    @property
    def full(self) -> bool:
        """Whether more rows would only wait, be it behind done ones that one slow call holds up."""
        return self._held >= self._capacity

    @property
    def running(self) -> int:
        """Rows under way."""
        return self._running

    def add(self, batch: pa.RecordBatch, rows: Iterator[Any]) -> None:
        """Take the rows of a batch."""
        segment = self._segments[-1]
        entries = [Entry(batch, index, row, segment) for index, row in enumerate(rows)]
        segment.entries.update(dict.fromkeys(entries))
        self._waiting.extend(entries)
        self._held += len(entries)

    def mark(self, element: Watermark | WatermarkStatus) -> None:
        """Take what must not overtake the rows before it."""
        self._segments[-1].mark = element
        self._segments.append(_Segment())

    def start(self) -> list[Entry]:
        """Return the rows to begin with now."""
        begun = []
        while self._waiting and self._running < self._capacity:
            entry = self._waiting.popleft()
            self._running += 1
            begun.append(entry)
        return begun

    def complete(self, entry: Entry, result: Any) -> None:
        """A row is done."""
        entry.done, entry.result = True, result
        self._running -= 1
        if not self._ordered:
            entry.segment.finished.append(entry)

    def take(self) -> list[list[Entry] | Watermark | WatermarkStatus]:
        """Return what may be emitted now, in order: rows that are done, and marks with no row before them any more."""
        taken: list[list[Entry] | Watermark | WatermarkStatus] = []
        while True:
            segment = self._segments[0]
            rows, segment.finished = segment.finished, []
            if self._ordered:
                rows = list(itertools.takewhile(operator.attrgetter("done"), segment.entries))
            for entry in rows:
                del segment.entries[entry]
            self._held -= len(rows)
            if rows:
                taken.append(rows)
            if segment.entries or segment.mark is None:
                return taken
            taken.append(segment.mark)
            self._segments.popleft()

    def held(self) -> list[Entry]:
        """Return the rows that were not emitted, in the order they came."""
        return [entry for segment in self._segments for entry in segment.entries]
