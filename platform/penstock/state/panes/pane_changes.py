"""Changes of a pane table that are not in the object store yet: frozen rows, and evicted changed rows.

Both become segments of the table's log. Called by `PaneTable` in the owner's thread; remote state reads from here the
rows that it cannot fetch yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.state.log.frozen import EncodeRoom, FrozenSegment
from penstock.state.panes.frozen_cold import FrozenCold
from penstock.state.panes.frozen_panes import FrozenPanes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.hot_panes import HotPanes
    from penstock.state.log.frozen import FrozenContent, FrozenSource
    from penstock.state.panes.pane_eviction import Bounds
    from penstock.state.spill.cold_file import FileRows
    from penstock.state.spill.cold_panes import ColdPanes


class Changes:
    """The changed rows of one table before their upload."""

    def __init__(self, source: FrozenSource, spec: PaneTableSpec, folder: Path, bounds: Bounds | None) -> None:
        """Start without changes; with `bounds` rows are encoded in bounded memory."""
        self._source = source
        self._spec = spec
        self._folder = folder
        self._bounds = bounds
        self._waiting: list[FrozenSegment] = []
        #: Changed rows that were evicted since the last freeze.
        self._evicted: FileRows | None = None

    @property
    def memory_bytes(self) -> int:
        """The bytes of rows that wait for an upload."""
        return sum(s.memory_bytes for s in self.undurable())

    @property
    def pending(self) -> bool:
        """Whether segments may wait for an upload."""
        return bool(self._waiting)

    def undurable(self) -> tuple[FrozenSegment, ...]:
        """Return the segments that are not in the object store yet."""
        self._waiting = [s for s in self._waiting if not s.durable]
        return tuple(self._waiting)

    def freeze(self, hot: HotPanes, *, whole: bool, pinned: tuple[I64, ...] = ()) -> FrozenSegment | None:
        """Freeze the changed rows in memory, or all rows to replace saved ones; None if no row has changed.

        `pinned`: the memory of values that cells refer to, kept as long as the frozen rows.
        """
        log = self._source.log
        if whole:  # hide all rows that were saved before
            log.add_tombstone(self._source.hash_range, MIN_TIMESTAMP, MAX_TIMESTAMP)
        position = log.next_position()
        rows = hot.memory.freeze(position, hot.index.view(), whole=whole)
        if rows is None:
            return None
        log.append(position)
        return self._waits(position, FrozenPanes(self._spec, rows, pinned, self._source.limits.encoded_rows))

    def freeze_evicted(self) -> None:
        """Turn the evicted changed rows into a segment, which is older than the rows in memory."""
        if self._evicted is not None and self._evicted.panes:
            log = self._source.log
            position = log.next_position()
            log.append(position)
            self._waits(position, FrozenCold(self._spec, self._evicted, self._source.hash_range))
            self._evicted = None

    def spill(self, segment: FrozenSegment) -> None:
        """Keep a frozen segment on the local disk instead of in memory."""
        segment.spill(self._folder / f"{self._source.state}-{segment.position}.parquet")

    def place(self, cold: ColdPanes) -> FileRows:
        """Return the file for changed rows that are evicted now."""
        if self._evicted is None:
            self._evicted = cold.for_changes()
        assert self._evicted is not None  # noqa: S101 - cold rows in files support it
        return self._evicted

    def frozen_within(self, position: int, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows frozen at a position as columns of a segment, until they are durable."""
        for segment in self._waiting:
            if segment.position == position:
                yield from segment.within(ranges)

    def evicted_within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the changed rows evicted since the last freeze, as columns of a segment."""
        if self._evicted is not None:
            yield from FrozenCold(self._spec, self._evicted, self._source.hash_range).within(ranges)

    def close(self) -> None:
        """Drop all waiting segments."""
        self._waiting = []
        self._evicted = None

    def _waits(self, position: int, content: FrozenContent) -> FrozenSegment:
        room, limits = self._encode_room(), self._source.limits
        segment = FrozenSegment(self._spec, position, content, room, wide=not self._source.remote, limits=limits)
        self._waiting.append(segment)
        return segment

    def _encode_room(self) -> EncodeRoom | None:
        bounds = self._bounds
        if bounds is None:
            return None
        name = f"{self._source.uid}-{self._source.state}"
        return EncodeRoom(directory=self._folder, name=name, rows=bounds.encoded, budget=bounds.budget)
