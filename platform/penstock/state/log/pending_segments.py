"""What a table of row state has frozen and nobody has saved yet: kept until it is durable, offered at every barrier.

Used by the tables in the owner's thread; what is frozen here may be encoded by any.
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
    """The local disk, where segments wait that are not to wait in memory."""

    def spill(self, state: str, segment: FrozenSegment) -> None:
        """Encode a segment of a state; its file lies here until it is durable."""


class WaitingSegments:
    """Segments of one state's log that are not durable."""

    def __init__(self, source: FrozenSource) -> None:
        """Nothing waits yet."""
        self._source = source
        self._segments: list[FrozenSegment] = []

    def add(self, rows: FrozenContent | None, folder: SegmentFolder | None) -> None:
        """Put rows, if there are any, at the end of the log; with `folder` they are encoded now, and wait there."""
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
        """Return the log as it is now, with what of it is still to be saved."""
        return FrozenTable(self._source, self._source.log.view(), tuple(self._undurable()))

    @property
    def memory_bytes(self) -> int:
        """Bytes held in memory."""
        return sum(segment.memory_bytes for segment in self._undurable())

    def within(self, position: int, ranges: Sequence[HashRange], folder: SegmentFolder) -> Iterator[pa.Table]:
        """Yield the rows frozen at a position in some ranges of hashes, while they are not durable.

        What is in memory is encoded first, and waits in `folder` from then on.
        """
        for segment in self._undurable():
            if segment.position == position:
                if segment.in_memory:
                    folder.spill(self._source.state, segment)
                yield from segment.within(ranges)

    def spans(self, folder: SegmentFolder) -> Iterator[tuple[int, int, int, int]]:
        """Yield position, lowest and highest namespace and rows of what is not durable; encoded first, as `within`."""
        for segment in self._undurable():
            if segment.in_memory:
                folder.spill(self._source.state, segment)
            about = segment.about
            if about is not None:
                yield segment.position, about.namespace_min, about.namespace_max, about.rows

    def clear(self) -> None:
        """Forget all."""
        self._segments = []

    def _undurable(self) -> list[FrozenSegment]:
        self._segments = [segment for segment in self._segments if not segment.durable]
        return self._segments
