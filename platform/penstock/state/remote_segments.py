"""What remote state reads: the rows that a table's log means in some ranges of hashes, by ranged reads of its segments.

Several reads are under way at a time; of what is read at once the number of rows is bounded by the caller, who asks for
few pieces at a time. Called by `state.remote` in the owner's thread; `base` by a background thread too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.evolution import conform
from penstock.core.keygroup import ALL_HASHES
from penstock.state.accumulators import KEY_HASH, NAMESPACE
from penstock.state.hash_ranges import inside
from penstock.state.hot import HotPanes
from penstock.state.pane_rows import table_to_rows
from penstock.state.segment_file import SegmentFile, runs_of
from penstock.state.segments import clip_of, read_visible, without_hidden
from penstock.state.values import ValueHeap

if TYPE_CHECKING:
    from penstock.core.keygroup import HashRange
    from penstock.core.snapshot import FileRef, Segment, Tombstone
    from penstock.kernels.compile import I64
    from penstock.state.accumulators import PaneTableSpec
    from penstock.state.changes import Changes
    from penstock.state.frozen import FrozenSource
    from penstock.state.segment_file import RowGroup

#: Runs pieces of work, several at a time if it can, and returns what each returned, in order.
Gather: TypeAlias = Callable[[Sequence[Callable[[], Any]]], list[Any]]


class RemoteSegments:
    """The segments of one table's log, opened as they are needed."""

    def __init__(
        self, source: FrozenSource, spec: PaneTableSpec, read: Callable[[FileRef], bytes], gather: Gather
    ) -> None:
        """Open nothing; `read` as for `SegmentFile`."""
        self._source = source
        self._spec = spec
        self._read = read
        self._gather = gather
        #: No cell refers to a value of any length: such aggregates are refused.
        self._heap = ValueHeap()
        self._files: dict[tuple[str, int, int], SegmentFile] = {}

    @property
    def rows(self) -> int:
        """Rows of all durable segments, of which some may hide others."""
        return self._source.log.rows

    def cuts(self) -> I64:
        """Return the hashes at which to cut: about a row group of each segment lies between two of them.

        Opens all segments, which is all that a restore reads.
        """
        files = self._open(self._durable())
        large = [file for file in files if len(file.groups) > 1]
        lows = np.array(sorted(group.low for file in large for group in file.groups), np.int64)
        firsts = np.array(sorted(file.groups[0].low for file in large), np.int64)
        lasts = np.array(sorted(file.groups[-1].high for file in large), np.int64)
        beside = np.searchsorted(firsts, lows, side="right") - np.searchsorted(lasts, lows, side="left")
        cuts, held = [], 0
        for low, files_there in zip(lows.tolist(), beside.tolist(), strict=True):
            if held >= files_there:
                cuts.append(low)
                held = 0
            held += 1
        return np.array(cuts, np.int64)

    def panes(self) -> set[int]:
        """Return the starts of the panes that the segments may have rows of."""
        found: set[int] = set()
        for file in self._open(self._durable()):
            named = _read_namespaces(file) if file.namespaces is None else file.namespaces
            found.update(pane for pane in named if not self._closed(file.segment, pane))
        return found

    def within(self, ranges: Sequence[HashRange], changes: Changes) -> HotPanes:
        """Return the rows in some ranges as of now, but for those in the table's own memory, which are newer.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        merged = HotPanes(self._spec, small=True)
        log = self._source.log
        found = iter(self._tables(self._open(self._durable()), log.tombstones, ranges))
        for entry in log.entries:
            saved = entry.segment is not None
            self._add(merged, next(found) if saved else changes.frozen_within(entry.position, ranges))
        self._add(merged, changes.evicted_within(ranges))
        return merged

    def base(self, ranges: Sequence[HashRange]) -> Callable[[], HotPanes]:
        """Return work for any thread: the rows in ranges in which nothing has changed since the restore."""
        files, tombstones = self._open(self._durable()), self._source.log.tombstones

        def read() -> HotPanes:
            merged = HotPanes(self._spec, small=True)
            for file in files:
                for wanted in ranges:
                    self._add(merged, read_visible(file, tombstones, wanted))
            return merged

        return read

    def _closed(self, segment: Segment, pane: int) -> bool:
        """Whether a tombstone hides all that a segment may have of a pane."""
        low, high = max(segment.hash_min, segment.clip_low), min(segment.hash_max, segment.clip_high)
        return any(
            t.position > segment.position
            and t.hash_low <= low
            and high <= t.hash_high
            and t.namespace_low <= pane <= t.namespace_high
            for t in self._source.log.tombstones
        )

    def _durable(self) -> list[Segment]:
        return [entry.segment for entry in self._source.log.entries if entry.segment is not None]

    def _open(self, segments: Sequence[Segment]) -> list[SegmentFile]:
        """Return the files of segments, opened; those that are not asked for are forgotten."""
        keys = [_key(segment) for segment in segments]
        missing = [i for i, key in enumerate(keys) if key not in self._files]
        opened = self._gather([partial(SegmentFile, segments[i], self._read) for i in missing])
        new = {keys[i]: file for i, file in zip(missing, opened, strict=True)}
        self._files = {key: new.get(key) or self._files[key] for key in keys}
        return [self._files[key] for key in keys]

    def _tables(
        self, files: Sequence[SegmentFile], tombstones: Sequence[Tombstone], ranges: Sequence[HashRange]
    ) -> list[list[pa.Table]]:
        """Return the visible rows of each file."""
        work: list[Callable[[], list[pa.Table]]] = []
        owner: list[int] = []
        for number, file in enumerate(files):
            clips = [c for wanted in ranges if (c := clip_of(file.segment, wanted)) is not None]
            groups = sorted({g.number for clip in clips for g in file.within(clip)})
            for run in runs_of([file.groups[n] for n in groups]):
                work.append(partial(_decoded, file, run, clips, tombstones))
                owner.append(number)
        tables: list[list[pa.Table]] = [[] for _ in files]
        for number, found in zip(owner, self._gather(work), strict=True):
            tables[number] += found
        return tables

    def _add(self, merged: HotPanes, tables: Iterable[pa.Table]) -> None:
        for table in tables:
            if table.num_rows:
                merged.put(*table_to_rows(self._spec, conform(table, self._spec.segment_schema), self._heap))


def one_by_one(work: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do pieces of work one after another."""
    return [piece() for piece in work]


def _decoded(
    file: SegmentFile, run: list[RowGroup], clips: list[HashRange], tombstones: Sequence[Tombstone]
) -> list[pa.Table]:
    """Fetch neighbouring row groups and return the visible rows of them that lie in the ranges."""
    tables = []
    for table in file.decode(run, file.fetch(run)):
        chosen = inside(table.column(KEY_HASH).to_numpy(), clips)
        part = table if chosen.all() else table.filter(pa.array(chosen))
        tables.append(without_hidden(part, file.segment.position, tombstones))
    return tables


def _read_namespaces(file: SegmentFile) -> set[int]:
    """Return the namespaces of a file that has too many to name them; the whole file is read."""
    return {n for table in file.tables(ALL_HASHES) for n in np.unique(table.column(NAMESPACE).to_numpy()).tolist()}


def _key(segment: Segment) -> tuple[str, int, int]:
    file = segment.file
    return (file.path or file.checksum, file.offset, segment.clip_low)
