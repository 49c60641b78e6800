"""Remote rows of joins, fetched from the object store on demand for `state.tables.join_buffer`.

Rows of a side are numbered in order of arrival. Rows below a certain number belong to the log. They are local if their
fetch range was fetched, and may be dropped again. Later rows are in memory or in the table's own files. Above the disk
limit, rows that are already durable are dropped locally and re-read from the log. A range is fetched for both sides,
when one of its keys is used or rows of one of its times are requested. Called by `state.tables.join_buffer` and
`state.tables.row_state` in the owner's thread.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.keygroup import ALL_HASHES, HashRange
from penstock.kernels.keys.key_columns import key_columns
from penstock.state.keys.key_index import KeyIndex
from penstock.state.log.segment_columns import KEY_HASH, NAMESPACE, ROW, one_batch
from penstock.state.log.segments import conformed
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.tiers import join_runs
from penstock.state.tiers.join_runs import Merge, Run, RunFiles
from penstock.state.tiers.range_fetcher import RangeFetcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from penstock.kernels.compiler.compile import I64
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.log.segment_file import SegmentFile
    from penstock.state.tiers.remote_log import OpenLog, RemoteLog

#: A new file of a region takes one part in this many of the bytes written before.
_LARGER = 2
#: Estimated bytes of a row that is not local, for planning memory.
_ROW_BYTES = 128


class RemoteSide:
    """The rows of one side that belong to the log."""

    def __init__(self, log: RemoteLog, spec: RowSpec, owner: RemoteRuns) -> None:
        """Read the footers of the restored segments."""
        self.log, self._spec, self.owner = log, spec, owner
        #: Callback that receives the times of fetched rows.
        self.on_fetched: Callable[[I64], None] = lambda _: None
        #: The time up to which rows were removed.
        self._cleaned = MIN_TIMESTAMP
        #: Rows with lower numbers belong to the log.
        self.below = 1 + max((_last_row(file) for file in self.log.files()), default=-1)
        #: The local rows, by region.
        self.local: list[list[Run]] = [[] for _ in owner.regions]

    @property
    def runs(self) -> Iterator[Run]:
        """The local runs."""
        return (run for runs in self.local for run in runs)

    def clean(self, up_to: int) -> None:
        """Drop runs that have no row later than `up_to`."""
        self._cleaned = up_to
        self.local = [[run for run in runs if run.high > up_to] for runs in self.local]

    def put(self, tables: Iterable[pa.Table], wanted: Callable[[I64], np.ndarray]) -> None:
        """Store rows of the log in local files; `wanted` selects them by hash."""
        rows = self._chosen(tables, wanted)
        if rows is None:
            return
        index, spec = KeyIndex(self._spec.key_schema), self._spec
        hashes = rows.column(KEY_HASH).to_numpy()
        slots = index.upsert(key_columns(rows, tuple(spec.key_schema.names)), hashes).copy()
        times, values = rows.column(NAMESPACE).to_numpy(), [rows.column(name) for name in spec.value_names]
        regions = self.owner.fetcher.fetch_ranges.regions_of(hashes)
        for region in np.unique(regions).tolist():
            mine = np.flatnonzero(regions == region)
            run = Run.of(slots[mine], times[mine], [value.take(pa.array(mine)) for value in values])
            run_files = self.owner.run_files_by_region[region]
            local = self.local[region]
            local.append(join_runs.written(run, index.view(), run_files, run_files.new_group()))
            if inputs := join_runs.to_merge(local, 2, run_files.limits.merged_run_bytes):
                merge = Merge(inputs, run_files, lambda: self._cleaned, 1)
                while merge.write_next():
                    pass
                self.local[region] = merge.replace_inputs(local, self._cleaned)
        self.on_fetched(times)

    def _chosen(self, tables: Iterable[pa.Table], wanted: Callable[[I64], np.ndarray]) -> pa.RecordBatch | None:
        """Return the rows that belong to the log and were not cleaned, in order of arrival; None: no rows."""
        table = conformed(tables, self._spec.segment_schema)
        numbers = table.column(ROW).to_numpy()
        kept = (numbers < self.below) & (table.column(NAMESPACE).to_numpy() > self._cleaned)
        kept &= wanted(table.column(KEY_HASH).to_numpy())
        rows = np.flatnonzero(kept)
        rows = rows[np.argsort(numbers[rows], kind="stable")]
        if len(rows) == 0:
            return None
        return one_batch(table.take(pa.array(rows)))


class RemoteRuns:
    """The rows of both sides that belong to the log, fetched together (`range_fetcher.RemoteTable`)."""

    def __init__(
        self, folder: Path, owned: HashRange, open_log: OpenLog, limit_bytes: int, limits: StateLimits = PRODUCTION
    ) -> None:
        """Start without sides; about `limit_bytes` may be taken on the local disk."""
        self._limits = limits
        self.regions = owned.split(limits.regions)
        self._folder = folder
        self.run_files_by_region = [self._new_run_files() for _ in self.regions]
        self._open_log = open_log
        #: The bytes on the local disk; the rows that do not belong to the log should take at most half of them.
        self.limit_bytes = limit_bytes
        self._sides: list[RemoteSide] = []
        self.fetcher: RangeFetcher[list[list[pa.Table]]] = RangeFetcher(
            self, self.regions, limit_bytes, limits, limits.prefetched_rows
        )

    def follow(self, source: FrozenSource[RowSpec]) -> RemoteSide:
        """Add a side; both are added before the first key is used."""
        side = RemoteSide(self._open_log(source), source.spec, self)
        self._sides.append(side)
        self.fetcher.logs.append(side.log)
        return side

    def fetch_span(self, low: int, high: int, part: HashRange = ALL_HASHES) -> None:
        """Fetch the missing ranges with rows between two times and in a hash range; raises as `RangeFetcher.ensure`."""
        if not self.fetcher.fetch_ranges.local.all():
            self.fetcher.ensure_ranges(lambda: self._ranges_between(low, high, part))

    def fetch_until(self, up_to: int) -> None:
        """Fetch all rows up to `up_to`, so that the join tables have seen them; raises as `fetch_span`.

        Fetched ranges may be dropped again.
        """
        fetch_ranges = self.fetcher.fetch_ranges
        while not fetch_ranges.fetched.all():
            requested = self._ranges_between(MIN_TIMESTAMP, up_to, ALL_HASHES)
            unseen = requested[~fetch_ranges.fetched[requested]]
            if len(unseen) == 0:
                return
            rows = min(self._limits.fetched_rows, self.limit_bytes // _ROW_BYTES)
            self.fetcher.fetch(unseen[: self.fetcher.together(rows)])
            self.fetcher.make_space()  # this renumbers fetch ranges

    def _ranges_between(self, low: int, high: int, part: HashRange) -> I64:
        """Return the fetch ranges that may have rows between two times and in a hash range."""
        fetch_ranges = self.fetcher.fetch_ranges
        low_hash, high_hash = max(part.low, self.regions[0].low), min(part.high, self.regions[-1].high)
        wanted = np.zeros(fetch_ranges.count + 1, np.int64)
        for side in self._sides:
            hash_low, hash_high, first, last, _ = side.log.spans()
            some = (last >= low) & (first <= high) & (hash_high >= low_hash) & (hash_low <= high_hash)
            np.add.at(wanted, fetch_ranges.of(np.maximum(hash_low[some], low_hash)), 1)
            np.add.at(wanted, fetch_ranges.of(np.minimum(hash_high[some], high_hash)) + 1, -1)
        return np.flatnonzero(np.cumsum(wanted[:-1]) > 0)

    def remote_bytes(self, low: int, high: int) -> int:
        """Return the approximate bytes of rows between two times that may not be local."""
        if self.fetcher.fetch_ranges.local.all():
            return 0
        total = 0
        for side in self._sides:
            _, _, first, last, rows = side.log.spans()
            total += int(rows[(last >= low) & (first <= high)].sum())
        return total * _ROW_BYTES

    def drop_local(self) -> None:
        """Drop all local rows: more rows belong to the log than at their fetch."""
        for region in range(len(self.regions)):
            self.fetcher.drop(region)

    def close(self) -> None:
        """Free the disk space."""
        for side in self._sides:
            side.local = [[] for _ in self.regions]
        for run_files in self.run_files_by_region:
            run_files.close()

    # --- fetch ranges -----------------------------------------------------------------------------------------------

    @property
    def local_bytes(self) -> I64:
        """The bytes of each region in local files."""
        return np.array(
            [sum(r.length for side in self._sides for r in side.local[n]) for n in range(len(self.regions))]
        )

    def current(self, ranges: Sequence[HashRange]) -> list[Iterable[pa.Table]]:
        """Return the durable rows of each side in some hash ranges."""
        return [chain.from_iterable(side.log.tables(ranges)) for side in self._sides]

    def merged(self, tables: Sequence[Iterable[pa.Table]]) -> list[list[pa.Table]]:
        """Return the rows as they are: each is in one segment."""
        return [list(rows) for rows in tables]

    def put_fetched(self, rows: list[list[pa.Table]], wanted: Callable[[I64], np.ndarray]) -> None:
        """Store the rows of the wanted hashes in local files."""
        for side, tables in zip(self._sides, rows, strict=True):
            side.put(tables, wanted)

    def drop(self, region: int) -> None:
        """Drop the files of a region."""
        for side in self._sides:
            side.local[region] = []
        self.run_files_by_region[region].close()
        self.run_files_by_region[region] = self._new_run_files()

    def _new_run_files(self) -> RunFiles:
        return RunFiles(self._folder, self._limits.region_file_bytes, _LARGER, limits=self._limits)


def _last_row(file: SegmentFile) -> int:
    """Return the highest row number; a file whose footer has no statistics is read."""
    spans = [file.span(group, ROW) for group in file.groups]
    told = [span[1] for span in spans if span is not None]
    if len(told) == len(spans):
        return max(told, default=-1)
    return max((int(table.column(ROW).to_numpy().max()) for table in file.tables(ALL_HASHES)), default=-1)
