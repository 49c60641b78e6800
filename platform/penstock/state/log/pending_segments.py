"""Segments of a row state that are frozen but not durable: kept, and offered again at every barrier.

Used by the tables in the owner's thread; frozen rows may be encoded in any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.state.log.frozen import FrozenSegment, FrozenTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.core.keygroup import HashRange
    from penstock.state.log.frozen import FrozenContent, FrozenSource


class SegmentFolder(Protocol):
    """The folder on the local disk for segments that must not wait in memory."""

    def spill(self, state: str, segment: FrozenSegment) -> None:
        """Encode a segment of a state to a local file, which stays until the segment is durable."""


class WaitingSegments:
    """The segments of one state's log that are not durable."""

    def __init__(self, source: FrozenSource) -> None:
        """Start without segments."""
        self._source = source
        self._segments: list[FrozenSegment] = []

    def add(self, rows: FrozenContent | None, folder: SegmentFolder | None) -> None:
        """Append rows, if any, to the log as a segment; with `folder` they are encoded to disk now."""
        if rows is None:
            return
        log = self._source.log
        position = log.next_position()
        log.append(position)
        source = self._source
        segment = FrozenSegment(source.spec, position, rows, wide=not source.remote, limits=source.limits)
        if folder is not None:
            folder.spill(self._source.state, segment)
        self._segments.append(segment)

    def frozen(self) -> FrozenTable:
        """Return the log at this moment, with the segments that are not durable."""
        return FrozenTable(self._source, self._source.log.view(), tuple(self._undurable()))

    @property
    def memory_bytes(self) -> int:
        """The bytes held in memory."""
        return sum(segment.memory_bytes for segment in self._undurable())

    def within(self, position: int, ranges: Sequence[HashRange], folder: SegmentFolder) -> Iterator[pa.Table]:
        """Yield the rows frozen at a position in some hash ranges, until they are durable.

        Segments in memory are first encoded into `folder` and stay there.
        """
        for segment in self._undurable():
            if segment.position == position:
                if segment.in_memory:
                    folder.spill(self._source.state, segment)
                yield from segment.within(ranges)

    def spans(self, folder: SegmentFolder) -> Iterator[tuple[int, int, int, int]]:
        """Yield position, lowest and highest namespace and rows of each segment that is not durable.

        Segments in memory are first encoded into `folder`, as in `within`.
        """
        for segment in self._undurable():
            if segment.in_memory:
                folder.spill(self._source.state, segment)
            about = segment.about
            if about is not None:
                yield segment.position, about.namespace_min, about.namespace_max, about.rows

    def clear(self) -> None:
        """Forget all segments."""
        self._segments = []

    def _undurable(self) -> list[FrozenSegment]:
        self._segments = [segment for segment in self._segments if not segment.durable]
        return self._segments
