"""What of a pane table is not in the object store yet: frozen rows, and changed rows that have left memory.

Both become segments of the table's log. Called by `PaneTable` in the owner's thread; remote state reads from here what
it cannot fetch yet.
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
    """Changed rows of one table on their way to the object store."""

    def __init__(self, source: FrozenSource, spec: PaneTableSpec, folder: Path, bounds: Bounds | None) -> None:
        """Nothing has changed; with `bounds` rows are encoded in bounded memory."""
        self._source = source
        self._spec = spec
        self._folder = folder
        self._bounds = bounds
        self._waiting: list[FrozenSegment] = []
        #: Changed rows that left memory since the last freeze.
        self._evicted: FileRows | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows that wait for an upload."""
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
        """Freeze what has changed in memory, or all of it in place of what was saved before; None: nothing has.

        `pinned`: the memory of values that cells refer to, to be kept as long.
        """
        log = self._source.log
        if whole:  # nothing that was saved before counts any more
            log.add_tombstone(self._source.hash_range, MIN_TIMESTAMP, MAX_TIMESTAMP)
        position = log.next_position()
        rows = hot.memory.freeze(position, hot.index.view(), whole=whole)
        if rows is None:
            return None
        log.append(position)
        return self._waits(position, FrozenPanes(self._spec, rows, pinned, self._source.limits.encoded_rows))

    def freeze_evicted(self) -> None:
        """Close the place of the changed rows that left memory: it becomes a segment, older than what is in memory."""
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
        """Return where changed rows go that leave memory now."""
        if self._evicted is None:
            self._evicted = cold.for_changes()
        assert self._evicted is not None  # noqa: S101 - a file has a place for changes
        return self._evicted

    def frozen_within(self, position: int, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows frozen at a position, if they are not in the object store yet, as columns of a segment."""
        for segment in self._waiting:
            if segment.position == position:
                yield from segment.within(ranges)

    def evicted_within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the changed rows that left memory since the last freeze, as columns of a segment."""
        if self._evicted is not None:
            yield from FrozenCold(self._spec, self._evicted, self._source.hash_range).within(ranges)

    def close(self) -> None:
        """Give the memory back."""
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
