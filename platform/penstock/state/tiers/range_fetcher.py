"""Fetch ranges of remote state, and `RangeFetcher`, which fetches and drops them.

A fetch range is a hash range of about a row group. Fetch ranges are grouped in regions; a region is dropped as a unit
when local space runs short. This is the one mechanism of all remote tables: panes, keys and join rows say how their
rows are read, stored and dropped. Called by `state.tiers.remote_panes`, `state.tiers.cold_records` and
`state.tiers.remote_runs` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from penstock.core.keygroup import HashRange
from penstock.state.memory.slot_arrays import pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from penstock.kernels.compiler.compile import I64, Mask
    from penstock.state.memory.limits import StateLimits
    from penstock.state.tiers.remote_log import RemoteLog


class FetchRanges:
    """The fetch ranges: their bounds, which are local or were ever requested, and each region's last use."""

    def __init__(self, regions: Sequence[HashRange], split_points: I64, *, local: bool) -> None:
        """Split the hashes at `split_points` and at the regions; with `local` all ranges are local already."""
        self._owned = HashRange(regions[0].low, regions[-1].high)
        self._regions = regions
        self._region_lows = np.array([part.low for part in regions], np.int64)
        own = [cut for cut in split_points.tolist() if cut in self._owned]
        self._lows = np.union1d(self._region_lows, np.array(own, np.int64)).astype(np.int64)
        self.local = np.full(len(self._lows), local)
        #: Whether it was requested or fetched: a background read of it would be older than the local rows.
        self.requested = np.full(len(self._lows), local)
        #: Whether all of its restored rows were local at some time.
        self.fetched = np.full(len(self._lows), local)
        self._used = np.zeros(len(regions), np.int64)
        self._calls = 0
        #: Number of times that ranges were split, which changes their numbers.
        self.split_version = 0
        #: Number of times that ranges became requested.
        self.requests = 0

    @property
    def count(self) -> int:
        """The number of fetch ranges."""
        return len(self._lows)

    def of(self, hashes: I64) -> I64:
        """Return the fetch range of each hash."""
        return np.searchsorted(self._lows, hashes, side="right") - 1

    def within(self, part: HashRange) -> I64:
        """Return the fetch ranges that overlap a hash range."""
        first, last = self.of(np.array([part.low, part.high], np.int64)).tolist()
        return np.arange(first, last + 1)

    def ranges(self, fetch_ranges: I64) -> list[HashRange]:
        """Return the hash ranges of ascending fetch ranges; neighbours are joined."""
        ranges: list[HashRange] = []
        for number in fetch_ranges.tolist():
            last = number + 1 == len(self._lows)
            part = HashRange(int(self._lows[number]), self._owned.high if last else int(self._lows[number + 1]) - 1)
            if ranges and ranges[-1].high + 1 == part.low:
                part = HashRange(ranges.pop().low, part.high)
            ranges.append(part)
        return ranges

    def missing(self, fetch_ranges: I64) -> I64:
        """Return the fetch ranges that are not local, ascending."""
        asked = np.unique(fetch_ranges)
        found: I64 = asked[~self.local[asked]]
        return found

    def parts(self, hashes: I64, most: int) -> list[I64]:
        """Return the positions of hashes in groups to process together: all at once, or region by region.

        Region by region if more than `most` ranges are missing; then a region may be dropped when the next one is
        fetched.
        """
        if len(self.missing(self.of(hashes))) <= most:
            return [np.arange(len(hashes))]
        region = self.regions_of(hashes)
        order = np.argsort(region, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(region[order])) + 1)

    def unrequested(self, most: int) -> I64:
        """Return the first fetch ranges that were neither requested nor fetched."""
        return np.flatnonzero(~self.requested)[:most]

    def first_hashes(self, hashes: I64) -> I64:
        """Return the first hash of the fetch range of each hash, ascending and each once."""
        found: I64 = np.unique(self._lows[self.of(hashes)])
        return found

    def mark_requested(self, fetch_ranges: I64) -> None:
        """Mark fetch ranges as requested."""
        self.requested[fetch_ranges] = True
        self.requests += 1

    def mark_local(self, fetch_ranges: I64) -> None:
        """Mark fetch ranges as local."""
        self.mark_requested(fetch_ranges)
        self.local[fetch_ranges] = self.fetched[fetch_ranges] = True

    def regions_of(self, hashes: I64) -> I64:
        """Return the region of each hash."""
        return np.searchsorted(self._region_lows, hashes, side="right") - 1

    def touch(self, hashes: I64) -> None:
        """Mark the regions of hashes as used now."""
        self._calls += 1
        self._used[self.regions_of(hashes)] = self._calls

    def touch_range(self, part: HashRange) -> None:
        """Mark the regions of a hash range as used now."""
        self.touch(self._lows[self.within(part)])

    def to_drop(self, sizes: I64, limit: int, freed: int) -> Iterator[int]:
        """Yield the least recently used regions to drop, if the total size is above the limit.

        One part in `freed` of the limit becomes free.
        """
        taken = int(sizes.sum())
        if taken <= limit:
            return
        for region in np.argsort(self._used, kind="stable").tolist():
            if taken * freed <= limit * (freed - 1):
                return
            if sizes[region]:
                taken -= int(sizes[region])
                yield region

    def drop(self, region: int, parts: int) -> None:
        """Mark a region as dropped and split it into `parts` fetch ranges, if that is more than it had."""
        span = self.within(self._regions[region])
        first, stop = int(span[0]), int(span[-1]) + 1
        unfetched = self.ranges(span[~self.fetched[span]])
        lows = [part.low for part in self._regions[region].split(parts)]
        if len(lows) <= len(span):
            lows = self._lows[first:stop].tolist()
        self._lows = np.concatenate([self._lows[:first], np.array(lows, np.int64), self._lows[stop:]])
        gone, known = np.zeros(len(lows), np.bool_), np.ones(len(lows), np.bool_)
        self.local = np.concatenate([self.local[:first], gone, self.local[stop:]])
        self.requested = np.concatenate([self.requested[:first], known, self.requested[stop:]])
        self.fetched = np.concatenate([self.fetched[:first], known, self.fetched[stop:]])
        for part in unfetched:
            self.fetched[self.within(part)] = False
        self.split_version += 1
        self.requests += 1


_Rows = TypeVar("_Rows")

#: One part in this many of the local space is freed when it runs short.
FREED = 8


class RemoteTable(Protocol[_Rows]):
    """States that are fetched together, with a local copy by region."""

    @property
    def local_bytes(self) -> I64:
        """The approximate bytes of each region on the local disk."""

    def current(self, ranges: Sequence[HashRange]) -> Sequence[Iterable[pa.Table]]:
        """Return the current rows of each log in some hash ranges, oldest first; raises as `RangeFetcher.ensure`."""

    def merged(self, tables: Sequence[Iterable[pa.Table]]) -> _Rows:
        """Return rows of each log, oldest first, in the form that is stored locally; any thread."""

    def put_fetched(self, rows: _Rows, wanted: Callable[[I64], np.ndarray]) -> None:
        """Store rows locally; `wanted` is the mask of the hashes that belong to fetched ranges."""

    def drop(self, region: int) -> None:
        """Drop the local rows of a region."""


@dataclass(slots=True)
class BackgroundFetch(Generic[_Rows]):
    """A background fetch of ranges: `run` in any thread, then `install` in the owner's."""

    fetch_ranges: I64
    #: Number of times that the ranges had been split when this fetch was created.
    split_version: int
    read: Callable[[], _Rows]
    put: Callable[[BackgroundFetch[_Rows]], None]
    rows: _Rows | None = None

    def run(self) -> None:
        """Read the rows; raises as `RangeFetcher.ensure`."""
        self.rows = self.read()

    def install(self) -> None:
        """Store the fetched rows."""
        self.put(self)


class RangeFetcher(Generic[_Rows]):
    """The fetch ranges of one remote table."""

    _fetch_ranges: FetchRanges | None

    def __init__(
        self,
        table: RemoteTable[_Rows],
        regions: Sequence[HashRange],
        limit_bytes: int,
        limits: StateLimits,
        prefetched_rows: int,
    ) -> None:
        """Prepare; about `limit_bytes` may be taken on the local disk, prefetches read `prefetched_rows` at a time."""
        self._table, self._regions = table, regions
        self._limit, self._limits, self._prefetched_rows = limit_bytes, limits, prefetched_rows
        self._fetch_ranges = None
        #: The log of each state; all are added before the first row is requested.
        self.logs: list[RemoteLog] = []
        #: The first hash of each range that rows wait for, in the order in which they asked.
        self._awaited: dict[int, None] = {}
        #: Whether dropping of regions is suspended.
        self.held = False
        self.fetched_ranges = 0
        self.dropped_regions = 0

    @property
    def fetch_ranges(self) -> FetchRanges:
        """The fetch ranges, split by the largest state; computed on first use from the restored segments' footers."""
        if self._fetch_ranges is None:
            largest = max(self.logs, key=lambda log: log.rows, default=None)
            restored = largest is not None and largest.rows > 0
            points = largest.split_points() if largest is not None and restored else np.empty(0, np.int64)
            self._fetch_ranges = FetchRanges(self._regions, points, local=not restored)
        return self._fetch_ranges

    def together(self, rows: int) -> int:
        """Return how many ranges to fetch at a time, so that about `rows` rows of the largest state are read."""
        return max(1, rows * self.fetch_ranges.count // max(self._most_rows, self._limits.group_rows))

    def local_parts(self, hashes: I64) -> Iterator[I64]:
        """Yield the positions of hashes in groups (see `FetchRanges.parts`) whose ranges are local then.

        The ranges of a group may be dropped when the next one is fetched. Raises as `ensure`.
        """
        for places in self.fetch_ranges.parts(hashes, self.together(self._limits.fetched_rows)):
            self.ensure(hashes[places])
            yield places

    def ensure(self, hashes: I64) -> None:
        """Fetch the missing ranges of these hashes.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        self.fetch_ranges.touch(hashes)
        self.ensure_ranges(lambda: self.fetch_ranges.of(hashes))

    def ensure_ranges(self, requested: Callable[[], I64]) -> None:
        """Fetch the missing ones of the requested ranges, whose numbers may change; raises as `ensure`."""
        if len(self.fetch_ranges.missing(requested())):
            self.make_space()
            self.fetch(self.fetch_ranges.missing(requested()))

    def fetch(self, fetch_ranges: I64) -> None:
        """Fetch ranges, as many at a time as the limits allow; raises as `ensure`."""
        for some in pieces(fetch_ranges, self.together(self._limits.fetched_rows)):
            tables = self._table.current(self.fetch_ranges.ranges(some))
            self._store(self._table.merged(tables), some)

    def make_space(self) -> None:
        """Drop the least recently used regions, if local rows are above the limit."""
        if self.held:
            return
        for region in list(self.fetch_ranges.to_drop(self._table.local_bytes, self._limit, FREED)):
            self.drop(region)

    def drop(self, region: int) -> None:
        """Drop a region's local rows; afterwards its fetch ranges have about a row group each."""
        self._table.drop(region)
        self.fetch_ranges.drop(region, self._most_rows // len(self._regions) // self._limits.group_rows)
        self.dropped_regions += 1

    # --- fetches in the background ----------------------------------------------------------------------------------

    @property
    def only_rows(self) -> bool:
        """See `ArrivingState`: what else reads the state fetches it."""
        return False

    @property
    def changes(self) -> int:
        """A number that changes with the result of `unfetched`."""
        return self.fetch_ranges.requests

    @property
    def complete(self) -> bool:
        """Whether every range was requested or fetched."""
        return bool(self.fetch_ranges.requested.all())

    def unfetched(self, hashes: I64) -> Mask:
        """Return a mask of the hashes in ranges that were neither requested nor fetched: `next_fetch` fetches them.

        A range that was dropped is not among them: its rows are not those of the restore, which `next_fetch` reads.
        """
        found: Mask = ~self.fetch_ranges.requested[self.fetch_ranges.of(hashes)]
        return found

    def wait_for(self, hashes: I64) -> None:
        """Let the next fetches in the background begin with the ranges of these hashes."""
        self._awaited.update(dict.fromkeys(self.fetch_ranges.first_hashes(hashes).tolist()))

    def next_fetch(self) -> BackgroundFetch[_Rows] | None:
        """Return the next fetch for the background: of ranges that rows wait for, else a prefetch.

        None: everything was fetched, or less space is left than a drop frees and no row waits.
        """
        if not self.logs:
            return None
        some = self._next_awaited()
        if len(some) == 0 and self._has_space:
            some = self.fetch_ranges.unrequested(self.together(self._prefetched_rows))
        if len(some) == 0:
            return None
        ranges = self.fetch_ranges.ranges(some)
        read = partial(self._merged, [log.base(ranges) for log in self.logs])
        return BackgroundFetch(some, self.fetch_ranges.split_version, read, self._install)

    @property
    def _has_space(self) -> bool:
        return int(self._table.local_bytes.sum()) * (FREED + 1) <= self._limit * FREED

    def _next_awaited(self) -> I64:
        """Return the fetch ranges that rows have waited for the longest."""
        first = np.array(list(self._awaited), np.int64)
        if len(first) == 0 or not self.unfetched(first).any():
            self._awaited = {}
            return np.empty(0, np.int64)
        self.make_space()  # renumbers ranges
        first = first[self.unfetched(first)]
        self._awaited = dict.fromkeys(first.tolist())
        found: I64 = np.unique(self.fetch_ranges.of(first[: self.together(self._prefetched_rows)]))
        return found

    def _merged(self, reads: Sequence[Callable[[], Iterable[pa.Table]]]) -> _Rows:
        return self._table.merged([rows() for rows in reads])

    def _install(self, fetched: BackgroundFetch[_Rows]) -> None:
        """Store a background fetch, except for ranges that were requested or renumbered in the meantime."""
        new = fetched.fetch_ranges
        if fetched.rows is None or fetched.split_version != self.fetch_ranges.split_version:
            return
        new = new[~self.fetch_ranges.requested[new]]
        if len(new):
            self._store(fetched.rows, new)

    def _store(self, rows: _Rows, fetch_ranges: I64) -> None:
        self._table.put_fetched(rows, lambda hashes: np.isin(self.fetch_ranges.of(hashes), fetch_ranges))
        self.fetch_ranges.mark_local(fetch_ranges)
        self.fetched_ranges += len(fetch_ranges)

    @property
    def _most_rows(self) -> int:
        return max((log.rows for log in self.logs), default=0)
