"""What a table of row state has frozen and nobody has saved yet: kept until it is durable, offered at every barrier.

Used by the tables in the owner's thread; what is frozen here may be encoded by any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.state.frozen import FrozenSegment, FrozenTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.core.keygroup import HashRange
    from penstock.state.cold_records import ColdHome
    from penstock.state.frozen import FrozenContent, FrozenSource


class WaitingSegments:
    """Segments of one state's log that are not durable."""

    def __init__(self, source: FrozenSource) -> None:
        """Nothing waits yet."""
        self._source = source
        self._segments: list[FrozenSegment] = []

    def add(self, rows: FrozenContent | None, home: ColdHome | None) -> None:
        """Put rows, if there are any, at the end of the log; with `home` they are encoded now, and wait on its disk."""
        if rows is None:
            return
        log = self._source.log
        position = log.next_position()
        log.append(position)
        source = self._source
        segment = FrozenSegment(source.spec, position, rows, wide=not source.remote, limits=source.limits)
        if home is not None:
            home.spill(self._source.state, segment)
        self._segments.append(segment)

    def frozen(self) -> FrozenTable:
        """Return the log as it is now, with what of it is still to be saved."""
        return FrozenTable(self._source, self._source.log.view(), tuple(self._undurable()))

    @property
    def memory_bytes(self) -> int:
        """Bytes held in memory."""
        return sum(segment.memory_bytes for segment in self._undurable())

    def within(self, position: int, ranges: Sequence[HashRange], home: ColdHome) -> Iterator[pa.Table]:
        """Yield the rows frozen at a position in some ranges of hashes, while they are not durable.

        What is in memory is encoded first, and waits on the disk of `home` from then on.
        """
        for segment in self._undurable():
            if segment.position == position:
                if segment.in_memory:
                    home.spill(self._source.state, segment)
                yield from segment.within(ranges)

    def spans(self, home: ColdHome) -> Iterator[tuple[int, int, int, int]]:
        """Yield position, lowest and highest namespace and rows of what is not durable; encoded first, as `within`."""
        for segment in self._undurable():
            if segment.in_memory:
                home.spill(self._source.state, segment)
            about = segment.about
            if about is not None:
                yield segment.position, about.namespace_min, about.namespace_max, about.rows

    def clear(self) -> None:
        """Forget all."""
        self._segments = []

    def _undurable(self) -> list[FrozenSegment]:
        self._segments = [segment for segment in self._segments if not segment.durable]
        return self._segments
