"""Ranged reads of one state's log in the object store: segments are opened once, row groups read on demand.

Several reads run at a time; the caller bounds the number of rows that are read together. Called by
the tiers of keys, timers, panes and join rows in the owner's thread; `base` in any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.state.log.segment_columns import LAST_ACCESS
from penstock.state.log.segment_file import RowGroup, SegmentFile, runs_of
from penstock.state.log.segment_log import covered
from penstock.state.log.segments import clip_of, conformed, newest_rows, without_hidden

if TYPE_CHECKING:
    from penstock.core.keygroup import HashRange
    from penstock.core.snapshot import FileRef, Segment, Tombstone
    from penstock.kernels.compiler.compile import I64
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.segment_columns import StateSpec

#: Runs functions, in parallel if it can, and returns their results in order.
Gather: TypeAlias = Callable[[Sequence[Callable[[], Any]]], list[Any]]

_EVER = (MIN_TIMESTAMP, MAX_TIMESTAMP)


class RemoteLog:
    """The durable segments of one state's log, opened on demand."""

    def __init__(self, source: FrozenSource[StateSpec], read: Callable[[FileRef], bytes], gather: Gather) -> None:
        """Prepare without opening segments; the state's rows are fetched, not restored.

        `read` is as for `SegmentFile`.
        """
        source.remote = True
        #: The log of the state, with its segments that are not durable.
        self.source = source
        self.limits = source.limits
        self._read_file, self._gather = read, gather
        self._files: dict[tuple[str, int, int], SegmentFile] = {}

    @property
    def rows(self) -> int:
        """The rows of all durable segments, including hidden ones."""
        return self.source.log.rows

    def files(self) -> list[SegmentFile]:
        """Return all durable segments, opened, oldest first; segments that left the log are dropped.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        segments = self.source.log.durable
        keys = [_key(segment) for segment in segments]
        missing = [i for i, key in enumerate(keys) if key not in self._files]
        opened = self._gather([partial(SegmentFile, segments[i], self._read_file, self.limits) for i in missing])
        new = {keys[i]: file for i, file in zip(missing, opened, strict=True)}
        self._files = {key: new.get(key) or self._files[key] for key in keys}
        return [self._files[key] for key in keys]

    def start_clock(self) -> None:
        """Start the clock of a time-to-live at the newest time of last access in the footers, where they have it.

        Opens all segments, as `split_points` does.
        """
        if self.source.ttl is not None:
            spans = [file.span(group, LAST_ACCESS) for file in self.files() for group in file.groups]
            self.source.ttl.clock.restored(np.array([span[1] for span in spans if span is not None], np.int64))

    def split_points(self) -> I64:
        """Return the split points of the hashes: about a row group of each segment is between two of them.

        Opens all segments; a restore reads nothing else.
        """
        large = [file for file in self.files() if len(file.groups) > 1]
        lows = np.array(sorted(group.low for file in large for group in file.groups), np.int64)
        firsts = np.array(sorted(file.groups[0].low for file in large), np.int64)
        lasts = np.array(sorted(file.groups[-1].high for file in large), np.int64)
        beside = np.searchsorted(firsts, lows, side="right") - np.searchsorted(lasts, lows, side="left")
        split_points, held = [], 0
        for low, files_there in zip(lows.tolist(), beside.tolist(), strict=True):
            if held >= files_there:
                split_points.append(low)
                held = 0
            held += 1
        return np.array(split_points, np.int64)

    def spans(self) -> I64:
        """Return the `SegmentFile.spans` of all durable segments; see `files`."""
        return np.concatenate([np.empty((5, 0), np.int64), *(file.spans for file in self.files())], axis=1)

    def tables(self, ranges: Sequence[HashRange], times: tuple[int, int] = _EVER) -> list[list[pa.Table]]:
        """Return the visible rows in some hash ranges, of each durable segment, oldest first; see `files`.

        Row groups without a namespace between two `times` are not read.
        """
        return self._read(self.files(), ranges, self.source.log.tombstones, times)

    def current(self, ranges: Sequence[HashRange], times: tuple[int, int] = _EVER) -> Iterator[pa.Table]:
        """Yield the rows of the log in some hash ranges, oldest first, also of segments that are not durable.

        `times` as for `tables`.
        """
        self.source.flush(spilled=True)
        near = None
        if times != _EVER:
            near = {place for place, low, high, _ in self.source.spans() if low <= times[1] and high >= times[0]}
        saved = iter(self.tables(ranges, times))
        for entry in self.source.log.entries:
            if entry.segment is not None:
                yield from next(saved)
            elif near is None or entry.position in near:
                yield from self.source.within(entry.position, ranges)

    def merged(self, tables: Iterable[pa.Table]) -> pa.Table:
        """Return the newest ones of these rows, oldest first, sorted by hash; any thread."""
        schema = self.source.spec.segment_schema
        rows = conformed(tables, schema)
        return newest_rows(rows, schema, keep_deleted=False) if rows.num_rows else rows

    def _read(
        self,
        files: Sequence[SegmentFile],
        ranges: Sequence[HashRange],
        tombstones: Sequence[Tombstone],
        times: tuple[int, int] = _EVER,
    ) -> list[list[pa.Table]]:
        work: list[Callable[[], list[pa.Table]]] = []
        owner: list[int] = []
        for number, file in enumerate(files):
            clips = [clip for wanted in ranges if (clip := clip_of(file.segment, wanted)) is not None]
            for run in runs_of(_groups_within(file, clips, times), self.limits.run_bytes):
                work.append(partial(_decoded, file, run, clips, tombstones))
                owner.append(number)
        tables: list[list[pa.Table]] = [[] for _ in files]
        for number, found in zip(owner, self._gather(work), strict=True):
            tables[number] += found
        return tables

    def base(self, ranges: Sequence[HashRange]) -> Callable[[], Iterator[pa.Table]]:
        """Return a function for any thread that reads rows in ranges without changes since the restore."""
        files, tombstones = self.files(), self.source.log.tombstones

        def read() -> Iterator[pa.Table]:
            yield from chain.from_iterable(self._read(files, ranges, tombstones))

        return read

    def closed(self, segment: Segment, namespace: int) -> bool:
        """Return whether a tombstone hides all rows of a namespace that a segment may have."""
        return covered(segment, self.source.log.tombstones, (namespace, namespace))


def one_by_one(work: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run functions one after another."""
    return [piece() for piece in work]


def _groups_within(file: SegmentFile, clips: Sequence[HashRange], times: tuple[int, int]) -> list[RowGroup]:
    """Return the row groups of a file that may have rows in some hash ranges and between two times."""
    groups = file.within_any(clips)
    if times == _EVER:
        return groups
    low, high = file.spans[2:4]
    near = (low <= times[1]) & (high >= times[0])
    return [group for group in groups if near[group.number]]


def _decoded(
    file: SegmentFile, run: list[RowGroup], clips: list[HashRange], tombstones: Sequence[Tombstone]
) -> list[pa.Table]:
    """Fetch neighbouring row groups and return their visible rows in the hash ranges."""
    return [without_hidden(table, file.segment.position, tombstones) for table in file.tables_of(run, clips)]


def _key(segment: Segment) -> tuple[str, int, int]:
    file = segment.file
    return (file.path or file.checksum, file.offset, segment.clip_low)


#: Returns the log of a state, whose rows are fetched from now on.
OpenLog: TypeAlias = Callable[["FrozenSource[Any]"], RemoteLog]
