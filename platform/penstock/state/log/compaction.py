"""Background compaction: merges a run of committed segments of one state in bounded memory. Made by `state.store`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.keygroup import ALL_HASHES
from penstock.state.log.segment_file import SegmentFile
from penstock.state.log.segments import SegmentWriter, merge_segments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.core.snapshot import FileRef, Segment
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.segments import EncodedSegment


class CompactionJob:
    """A run of committed segments of one tier to be merged.

    Call `run` in the background, then `KeyedState.compacted` in the owner's thread.
    """

    def __init__(self, source: FrozenSource, inputs: tuple[Segment, ...], tier: int, folder: Path) -> None:
        """Record the tombstones of this moment; later ones hide rows of the merged segment by their position."""
        self.state = source.state
        self._folder = folder
        self._limits = source.limits
        self._inputs = inputs
        self._tier = tier
        self._schema = source.spec.segment_schema
        self._tombstones = source.log.tombstones
        self._oldest = source.log.is_oldest(inputs)
        self._expired = None if source.ttl is None else source.ttl.deadline
        self.result: EncodedSegment | None = None

    @property
    def inputs(self) -> tuple[Segment, ...]:
        """The segments that are merged, oldest first."""
        return self._inputs

    def run(self, read: Callable[[FileRef], bytes]) -> EncodedSegment:
        """Read, merge and encode, one hash range at a time; the result gets the position of the newest input."""
        files = [SegmentFile(segment, read, self._limits) for segment in self._inputs]
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self.state}-{self._inputs[-1].position}.merging"
        writer = SegmentWriter(self._schema, self._inputs[-1].position, self._tier, path=path, limits=self._limits)
        try:
            for table in merge_segments(
                files,
                self._tombstones,
                self._schema,
                within=ALL_HASHES,
                keep_deleted=not self._oldest,
                expired=self._expired,
            ):
                writer.add(table)
            self.result = writer.finish()
        finally:
            writer.close()
            path.unlink(missing_ok=True)
        return self.result
