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
    from penstock.state.log.segment_columns import StateSpec
    from penstock.state.log.segments import EncodedSegment


class CompactionJob:
    """A run of committed segments of one tier to be merged.

    Call `run` in the background, then `KeyedState.compacted` in the owner's thread.
    """

    def __init__(self, source: FrozenSource[StateSpec], inputs: tuple[Segment, ...], tier: int, folder: Path) -> None:
        """Record the tombstones of this moment; later ones hide rows of the merged segment by their position."""
        self.state = source.state
        self._folder = folder
        self._limits = source.limits
        #: The segments that are merged, oldest first.
        self.inputs = inputs
        self._tier = tier
        self._schema = source.spec.segment_schema
        self._tombstones = source.log.tombstones
        self._oldest = source.log.is_oldest(inputs)
        self._expired = source.deadline
        self.result: EncodedSegment | None = None

    def run(self, read: Callable[[FileRef], bytes]) -> EncodedSegment:
        """Read, merge and encode, one hash range at a time; the result gets the position of the newest input."""
        files = [SegmentFile(segment, read, self._limits) for segment in self.inputs]
        self._folder.mkdir(parents=True, exist_ok=True)
        position, limits = self.inputs[-1].position, self._limits
        keep_deleted, expired = not self._oldest, self._expired
        merged = merge_segments(
            files, self._tombstones, self._schema, within=ALL_HASHES, keep_deleted=keep_deleted, expired=expired
        )
        writer = SegmentWriter(self._schema, position, self._tier, folder=self._folder, limits=limits)
        self.result = writer.write(merged)
        return self.result
