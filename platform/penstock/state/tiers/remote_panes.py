"""Cold rows of a pane table in the object store: reads of its log by hash range, fetched on demand into a local store.

Called by `PaneTable` in the owner's thread; base reads by a background thread.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from penstock.core.evolution import conform_table
from penstock.core.keygroup import ALL_HASHES
from penstock.state.cells.pane_memory import HotPanes, PaneCells, table_to_rows
from penstock.state.log.segment_columns import NAMESPACE
from penstock.state.tiers.cold_panes import LocalPaneStore
from penstock.state.tiers.range_fetcher import RangeFetcher

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
    from penstock.state.tiers.cold_panes import ColdFileStore
    from penstock.state.tiers.remote_log import OpenLog


def _read_namespaces(file: SegmentFile) -> set[int]:
    """Return the namespaces of a file whose footer does not list them; the whole file is read."""
    return {n for table in file.tables(ALL_HASHES) for n in np.unique(table.column(NAMESPACE).to_numpy()).tolist()}


#: Rows added at a time when none needs a fetch.
_MANY_ROWS = 1 << 20


class RemotePanes:
    """The cold rows of one table, a part of which is on the local disk.

    Its rows are fetched as one `range_fetcher.RemoteTable`.
    """

    _evicted: Callable[[Sequence[HashRange]], Iterable[pa.Table]]

    def __init__(
        self, source: FrozenSource[PaneTableSpec], open_log: OpenLog, local: LocalPaneStore, limit_bytes: int
    ) -> None:
        """Read the footers of the restored segments; about `limit_bytes` may be taken on the local disk."""
        self._source, self._spec, self._local = source, source.spec, local
        self._limits = source.limits
        self._log = open_log(source)
        restored = self._log.rows > 0
        self.fetcher: RangeFetcher[HotPanes] = RangeFetcher(
            self, local.regions, limit_bytes, source.limits, source.limits.fetched_rows
        )
        self.fetcher.logs.append(self._log)
        self._fetch_ranges = self.fetcher.fetch_ranges
        self._panes = ({0} if self._spec.single_pane else self._saved_panes()) if restored else set()
        self._rows = self._limits.few_rows if restored else _MANY_ROWS
        #: Whether many ranges were fetched since the last call of `next_rows`.
        self._busy = restored

    def follow(self, evicted: Callable[[Sequence[HashRange]], Iterable[pa.Table]]) -> None:
        """Set the source of changed rows evicted since the last freeze; call it once, before the first request.

        With a time-to-live, time starts at the newest access in the footers.
        """
        self._evicted = evicted
        self._log.start_clock()

    @property
    def panes(self) -> list[int]:
        """The panes that may have rows, local or in the object store."""
        return list(self._panes)

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
        return self._local.rows_of(pane) + (0 if self._fetch_ranges.local.all() else self._log.rows)

    def for_changes(self) -> ColdFileStore | None:
        """Return an empty file for changed rows that are evicted before the next barrier; None: not supported."""
        return self._local.for_changes()

    def fetch(self, keys: KeyView, requested: tuple[I32, I64], target: tuple[I64, I64], heap: ValueHeap) -> None:
        """Copy the cells of (slots, panes) into the empty cells of `target`; raises as `RangeFetcher.ensure`."""
        rows = np.flatnonzero(np.isin(requested[1], self.panes))
        if len(rows) == 0:
            return
        before = self.fetcher.fetched_ranges
        for part in self.fetcher.local_parts(keys.hashes[requested[0][rows]]):
            slots, panes, cell = requested[0][rows[part]], requested[1][rows[part]], target[1][rows[part]]
            self._local.fetch(keys, (slots, panes), (target[0], cell), heap)
        self._busy = self._busy or self.fetcher.fetched_ranges - before > self._limits.many_ranges

    def put(self, keys: KeyView, rows: PaneCells) -> None:
        """Write rows of local ranges; others are only in the table's changes and the log."""
        self._panes.update(np.unique(rows.panes).tolist())
        fetch_ranges = self._fetch_ranges.of(keys.hashes[rows.slots])
        local = self._fetch_ranges.local[fetch_ranges]
        self._fetch_ranges.mark_requested(fetch_ranges)  # the restored rows are no longer complete
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
        self._fetch_ranges.touch_range(part)
        self.fetcher.ensure_ranges(lambda: self._fetch_ranges.within(part))
        yield from self._local.scan(pane, part, heap)

    def close(self) -> None:
        """Free the disk space."""
        self._local.close()

    # --- fetch ranges -----------------------------------------------------------------------------------------------

    @property
    def local_bytes(self) -> I64:
        """The approximate bytes of each region on the local disk."""
        return self._local.local_bytes

    def current(self, ranges: Sequence[HashRange]) -> list[Iterable[pa.Table]]:
        """Return the current rows in some hash ranges, except those in the table's memory, which are newer."""
        return [chain(self._log.current(ranges), self._evicted(ranges))]

    def merged(self, tables: Sequence[Iterable[pa.Table]]) -> HotPanes:
        """Return the newest of these rows as cells."""
        merged = HotPanes(self._spec, small=True)
        for table in chain.from_iterable(tables):
            if table.num_rows:
                merged.put(*table_to_rows(self._spec, conform_table(table, self._spec.segment_schema), merged.heap))
        return merged

    def put_fetched(self, merged: HotPanes, wanted: Callable[[I64], np.ndarray]) -> None:
        """Store the rows of the wanted hashes, except expired ones and those of dropped panes."""
        rows, keys = merged.memory.present(), merged.index.view()
        chosen = wanted(keys.hashes[rows.slots]) & np.isin(rows.panes, self.panes)
        if (ttl := self._source.ttl) is not None:  # after the merge: an expired row hides older ones
            rows.cells[:, -1] = ttl.clock.bounded(rows.cells[:, -1])
            chosen &= rows.cells[:, -1] > ttl.deadline
        self._local.put(keys, rows.chosen(chosen))

    def drop(self, region: int) -> None:
        """Drop a region's local rows."""
        self._local.drop(region)

    def _saved_panes(self) -> set[int]:
        """Return the starts of the panes that may have rows in the segments."""
        found: set[int] = set()
        for file in self._log.files():
            named = _read_namespaces(file) if file.namespaces is None else file.namespaces
            found.update(pane for pane in named if not self._log.closed(file.segment, pane))
        return found


#: A store of the pane rows that are not in memory.
ColdPaneStore: TypeAlias = LocalPaneStore | RemotePanes
