"""Cold rows of a pane table in the object store: reads of its log by hash range, fetched on demand into a local store.

Called by `PaneTable` in the owner's thread; base reads by a background thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.core.evolution import conform_table
from penstock.core.keygroup import ALL_HASHES
from penstock.state.cells.hot_panes import HotPanes, table_to_rows
from penstock.state.cells.pane_memory import PaneCells
from penstock.state.log.segment_columns import NAMESPACE
from penstock.state.remote.fetch_ranges import BackgroundFetch, FetchRanges, has_room
from penstock.state.remote.remote_log import RemoteLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.value_heap import ValueHeap
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.segment_file import SegmentFile
    from penstock.state.log.ttl import Ttl
    from penstock.state.memory.limits import StateLimits
    from penstock.state.remote.regions import Regions
    from penstock.state.remote.remote_log import Reader
    from penstock.state.spill.cold_file import ColdFileStore


class UndurableRows(Protocol):
    """Changed rows of one table that are not in the object store yet (`pane_changes.PaneChanges`)."""

    def frozen_within(self, position: int, ranges: Sequence[HashRange]) -> Iterable[pa.Table]:
        """Return the rows frozen at a position in some hash ranges, as columns of a segment."""

    def evicted_within(self, ranges: Sequence[HashRange]) -> Iterable[pa.Table]:
        """Return the rows in some hash ranges that were evicted since the last freeze, as columns of a segment."""


class RemotePaneLog:
    """The rows of one pane table in its log."""

    def __init__(self, source: FrozenSource, spec: PaneTableSpec, reader: Reader) -> None:
        """Prepare without opening segments."""
        self._source = source
        self._spec = spec
        self._log = RemoteLog(source, reader)

    @property
    def rows(self) -> int:
        """The rows of all durable segments, including hidden ones."""
        return self._log.rows

    @property
    def limits(self) -> StateLimits:
        """The size limits of the store."""
        return self._source.limits

    @property
    def ttl(self) -> Ttl | None:
        """The time-to-live of its rows, if they have one."""
        return self._source.ttl

    def newest_access(self) -> I64:
        """See `RemoteLog.newest_access`."""
        return self._log.newest_access()

    def split_points(self) -> I64:
        """See `RemoteLog.split_points`."""
        return self._log.split_points()

    def panes(self) -> set[int]:
        """Return the starts of the panes that may have rows in the segments."""
        found: set[int] = set()
        for file in self._log.files():
            named = _read_namespaces(file) if file.namespaces is None else file.namespaces
            found.update(pane for pane in named if not self._log.closed(file.segment, pane))
        return found

    def within(self, ranges: Sequence[HashRange], changes: UndurableRows) -> HotPanes:
        """Return the current rows in some hash ranges, except those in the table's memory, which are newer.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        merged = HotPanes(self._spec, small=True)
        found = iter(self._log.tables(ranges))
        for entry in self._source.log.entries:
            saved = entry.segment is not None
            self._add(merged, next(found) if saved else changes.frozen_within(entry.position, ranges))
        self._add(merged, changes.evicted_within(ranges))
        return merged

    def base(self, ranges: Sequence[HashRange]) -> Callable[[], HotPanes]:
        """Return a function for any thread that reads rows in ranges without changes since the restore."""
        read = self._log.base(ranges)

        def merge() -> HotPanes:
            merged = HotPanes(self._spec, small=True)
            self._add(merged, read())
            return merged

        return merge

    def _add(self, merged: HotPanes, tables: Iterable[pa.Table]) -> None:
        for table in tables:
            if table.num_rows:
                merged.put(*table_to_rows(self._spec, conform_table(table, self._spec.segment_schema), merged.heap))


def _read_namespaces(file: SegmentFile) -> set[int]:
    """Return the namespaces of a file whose footer does not list them; the whole file is read."""
    return {n for table in file.tables(ALL_HASHES) for n in np.unique(table.column(NAMESPACE).to_numpy()).tolist()}


#: Rows added at a time when none needs a fetch.
_MANY_ROWS = 1 << 20


class RemotePanes:
    """The cold rows of one table (`cold_panes.ColdPaneStore`), a part of which is on the local disk."""

    _changes: UndurableRows

    def __init__(self, spec: PaneTableSpec, segments: RemotePaneLog, local: Regions, limit_bytes: int) -> None:
        """Read the footers of the restored segments; about `limit_bytes` may be taken on the local disk."""
        self._spec = spec
        self._segments = segments
        self._local = local
        self._limit = limit_bytes
        self._limits = segments.limits
        restored = segments.rows > 0
        local.expect(segments.rows)
        self.fetch_ranges = FetchRanges(local.ranges, segments.split_points(), local=not restored)
        self._panes = ({0} if spec.single_pane else segments.panes()) if restored else set()
        self._rows = self._limits.few_rows if restored else _MANY_ROWS
        #: Whether many ranges were fetched since the last call of `next_rows`.
        self._busy = restored
        self.fetched_ranges = 0
        self.dropped_regions = 0

    def follow(self, changes: UndurableRows) -> None:
        """Set the table's changes; call it once, before the first request.

        With a time-to-live, time starts at the newest access in the footers.
        """
        self._changes = changes
        ttl = self._segments.ttl
        if ttl is not None:
            ttl.clock.restored(self._segments.newest_access())

    @property
    def bounded_memory(self) -> bool:
        """Whether local rows are in files."""
        return self._local.bounded_memory

    @property
    def panes(self) -> list[int]:
        """The panes that may have rows, local or in the object store."""
        return list(self._panes)

    @property
    def disk_bytes(self) -> int:
        """The approximate bytes taken on the local disk."""
        return sum(self._local.disk_bytes(region) for region in range(len(self._local.ranges)))

    def next_rows(self) -> int:
        """Return how many rows to add next: few while almost each of them needs a fetch."""
        few = self._limits.few_rows
        self._rows = max(few, self._rows // 4) if self._busy else min(_MANY_ROWS, self._rows * 2)
        self._busy = False
        return self._rows

    def rows_of(self, pane: int) -> int:
        """Return the number of rows of the pane, at most."""
        if pane not in self._panes:
            return 0
        return self._local.rows_of(pane) + (0 if self.fetch_ranges.local.all() else self._segments.rows)

    def for_changes(self) -> ColdFileStore | None:
        """Return an empty file for changed rows that are evicted before the next barrier; None: not supported."""
        return self._local.for_changes()

    def fetch(self, keys: KeyView, requested: tuple[I32, I64], target: tuple[I64, I64], heap: ValueHeap) -> None:
        """Copy the cells of (slots, panes) into the empty cells of `target`; fetches missing ranges.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        rows = np.flatnonzero(np.isin(requested[1], self.panes))
        if len(rows) == 0:
            return
        before = self.fetched_ranges
        for part in self.fetch_ranges.parts(keys.hashes[requested[0][rows]], self._limits.fetched_ranges):
            slots, panes, cell = requested[0][rows[part]], requested[1][rows[part]], target[1][rows[part]]
            hashes = keys.hashes[slots]
            self.fetch_ranges.touch(hashes)
            missing = self.fetch_ranges.missing(self.fetch_ranges.of(hashes))
            if len(missing):
                self._make_space()
                missing = self.fetch_ranges.missing(self.fetch_ranges.of(hashes))
            self._fetch_missing(missing)
            self._local.fetch(keys, (slots, panes), (target[0], cell), heap)
        self._busy = self._busy or self.fetched_ranges - before > self._limits.many_ranges

    def put(self, keys: KeyView, rows: PaneCells) -> None:
        """Write rows of local ranges; others are only in the table's changes and the log."""
        self._panes.update(np.unique(rows.panes).tolist())
        fetch_ranges = self.fetch_ranges.of(keys.hashes[rows.slots])
        local = self.fetch_ranges.local[fetch_ranges]
        self.fetch_ranges.requested[fetch_ranges] = True  # the restored rows are no longer complete
        if local.any():
            self._local.put(keys, rows if local.all() else rows.chosen(local))

    def forget(self, keys: KeyView, slots: I32, panes: I64) -> None:
        """Remove local rows."""
        self._local.forget(keys, slots, panes)

    def drop_below(self, pane: int) -> None:
        """Remove all panes that start before `pane`; the log's tombstone hides their remote rows."""
        self._panes = {p for p in self._panes if p >= pane}
        self._local.drop_below(pane)

    def scan(self, pane: int, part: HashRange, heap: ValueHeap) -> Iterator[tuple[KeyColumns, I64, I64, I64]]:
        """Yield (keys, hashes, panes, cells) of a pane's rows in a hash range; fetches missing ranges."""
        self.fetch_ranges.touch_range(part)
        if len(self.fetch_ranges.missing(self.fetch_ranges.within(part))):
            self._make_space()
            self._fetch_missing(self.fetch_ranges.missing(self.fetch_ranges.within(part)))
        yield from self._local.scan(pane, part, heap)

    def close(self) -> None:
        """Free the disk space."""
        self._local.close()

    # --- in the background ------------------------------------------------------------------------------------------

    def next_fetch(self) -> BackgroundFetch[HotPanes] | None:
        """Return the next prefetch; None: everything was fetched, or local space is short."""
        if not has_room(self.disk_bytes, self._limit):
            return None
        fetch_ranges = self.fetch_ranges.unrequested(self._limits.fetched_ranges)
        if len(fetch_ranges) == 0:
            return None
        return BackgroundFetch(
            fetch_ranges,
            self.fetch_ranges.split_version,
            self._segments.base(self.fetch_ranges.ranges(fetch_ranges)),
            self.install,
        )

    def install(self, fetched: BackgroundFetch[HotPanes]) -> None:
        """Store a background fetch, except for ranges that were requested in the meantime."""
        fetch_ranges = self.fetch_ranges.unrequested_of(fetched)
        if fetched.rows is not None and len(fetch_ranges):
            self._install(fetched.rows, fetch_ranges)

    # --- fetch ranges -----------------------------------------------------------------------------------------------

    def _fetch_missing(self, fetch_ranges: I64) -> None:
        step = self._limits.fetched_ranges
        for first in range(0, len(fetch_ranges), step):
            some = fetch_ranges[first : first + step]
            self._install(self._segments.within(self.fetch_ranges.ranges(some), self._changes), some)

    def _install(self, merged: HotPanes, fetch_ranges: I64) -> None:
        rows, keys = merged.memory.present(), merged.index.view()
        wanted = np.isin(self.fetch_ranges.of(keys.hashes[rows.slots]), fetch_ranges) & np.isin(rows.panes, self.panes)
        if (ttl := self._segments.ttl) is not None:  # after the merge: an expired row hides older ones
            rows.cells[:, -1] = ttl.clock.bounded(rows.cells[:, -1])
            wanted &= rows.cells[:, -1] > ttl.deadline
        self._local.put(keys, rows.chosen(wanted))
        self.fetch_ranges.mark_local(fetch_ranges)
        self.fetched_ranges += len(fetch_ranges)

    def _make_space(self) -> None:
        """Drop the least recently used regions, if local rows are above the limit."""
        sizes = np.array([self._local.disk_bytes(region) for region in range(len(self._local.ranges))])
        for region in list(self.fetch_ranges.to_drop(sizes, self._limit)):
            rows = max((self._local.rows_of(pane) for pane in self._panes), default=0) // len(self._local.ranges)
            self._local.drop(region)
            self.fetch_ranges.drop(region, rows // self._limits.group_rows)  # about a row group each
            self.dropped_regions += 1
