"""Fetch ranges of remote state: hash ranges of about a row group each, and which of them are local.

Fetch ranges are grouped in regions; a region is dropped as a unit when local space runs short. Bookkeeping only,
without I/O. Used by `state.remote.range_fetcher` and remote tables in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.core.keygroup import HashRange
from penstock.state.keys.hash_ranges import even_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.kernels.compiler.compile import I64


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

    def mark_local(self, fetch_ranges: I64) -> None:
        """Mark fetch ranges as local."""
        self.local[fetch_ranges] = self.requested[fetch_ranges] = self.fetched[fetch_ranges] = True

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
        lows = [part.low for part in even_parts(self._regions[region], max(1, parts))]
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
