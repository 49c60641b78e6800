"""`RangeFetcher`: fetches ranges of remote state on demand and in the background, and drops regions.

The one mechanism for all remote tables: panes, keys and join rows say how their rows are read, stored and dropped.
Called by `state.remote.remote_panes`, `state.remote.remote_keys` and `state.remote.remote_runs` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np

from penstock.state.remote.fetch_ranges import FetchRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.state.memory.limits import StateLimits
    from penstock.state.remote.remote_log import RemoteLog

_Rows = TypeVar("_Rows")

#: One part in this many of the local space is freed when it runs short.
FREED = 8


class RemoteTable(Protocol[_Rows]):
    """States that are fetched together, with a local copy by region."""

    @property
    def logs(self) -> Sequence[RemoteLog]:
        """The log of each state."""

    @property
    def local_bytes(self) -> I64:
        """The approximate bytes of each region on the local disk."""

    def read(self, ranges: Sequence[HashRange]) -> _Rows:
        """Return the current rows of the logs in some hash ranges.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """

    def base(self, ranges: Sequence[HashRange]) -> Callable[[], _Rows]:
        """Return a function for any thread that reads rows in ranges without changes since the restore."""

    def store(self, rows: _Rows, fetch_ranges: I64) -> None:
        """Store the rows of these fetch ranges locally."""

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
        """Read the rows.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
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
        #: Whether dropping of regions is suspended.
        self.held = False
        self.fetched_ranges = 0
        self.dropped_regions = 0

    @property
    def fetch_ranges(self) -> FetchRanges:
        """The fetch ranges, split by the largest state; computed on first use from the restored segments' footers."""
        if self._fetch_ranges is None:
            largest = max(self._table.logs, key=lambda log: log.rows, default=None)
            restored = largest is not None and largest.rows > 0
            points = largest.split_points() if largest is not None and restored else np.empty(0, np.int64)
            self._fetch_ranges = FetchRanges(self._regions, points, local=not restored)
        return self._fetch_ranges

    def together(self, rows: int) -> int:
        """Return how many ranges to fetch at a time, so that about `rows` rows of the largest state are read."""
        return max(1, rows * self.fetch_ranges.count // max(self._most_rows, self._limits.group_rows))

    def parts(self, hashes: I64) -> list[I64]:
        """Return the positions of hashes in groups to request together; see `FetchRanges.parts`."""
        return self.fetch_ranges.parts(hashes, self.together(self._limits.fetched_rows))

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
        step = self.together(self._limits.fetched_rows)
        for first in range(0, len(fetch_ranges), step):
            some = fetch_ranges[first : first + step]
            self._store(self._table.read(self.fetch_ranges.ranges(some)), some)

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

    def next_fetch(self) -> BackgroundFetch[_Rows] | None:
        """Return the next prefetch; None: everything was fetched, or less space is left than a drop frees."""
        taken = int(self._table.local_bytes.sum())
        if taken * (FREED + 1) > self._limit * FREED or not self._table.logs:
            return None
        some = self.fetch_ranges.unrequested(self.together(self._prefetched_rows))
        if len(some) == 0:
            return None
        read = self._table.base(self.fetch_ranges.ranges(some))
        return BackgroundFetch(some, self.fetch_ranges.split_version, read, self._install)

    def _install(self, fetched: BackgroundFetch[_Rows]) -> None:
        """Store a background fetch, except for ranges that were requested or renumbered in the meantime."""
        new = fetched.fetch_ranges
        if fetched.rows is None or fetched.split_version != self.fetch_ranges.split_version:
            return
        new = new[~self.fetch_ranges.requested[new]]
        if len(new):
            self._store(fetched.rows, new)

    def _store(self, rows: _Rows, fetch_ranges: I64) -> None:
        self._table.store(rows, fetch_ranges)
        self.fetch_ranges.mark_local(fetch_ranges)
        self.fetched_ranges += len(fetch_ranges)

    @property
    def _most_rows(self) -> int:
        return max((log.rows for log in self._table.logs), default=0)
