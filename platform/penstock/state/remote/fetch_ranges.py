"""The hashes of remote state cut into pieces, about a row group each: which of them are on the local disk.

Pieces lie in regions; a region is what is given back at a time when local space runs short. Bookkeeping alone, without
I/O. Used by `state.remote.remote_panes` (tables of panes), `state.remote.remote_keys` (keys of process functions,
windows and sessions) and `state.remote.remote_runs` (rows of joins) in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from penstock.core.keygroup import HashRange
from penstock.state.keys.hash_ranges import even_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.kernels.compiler.compile import I64

_Rows = TypeVar("_Rows")

#: When local space runs short, this part of it is made free.
FREED = 8


@dataclass(slots=True)
class Fetched(Generic[_Rows]):
    """Pieces to be fetched in the background: `run` in any thread, then `install` in the owner's."""

    pieces: I64
    #: How often pieces had been cut anew when this was made.
    cut: int
    read: Callable[[], _Rows]
    put: Callable[[Fetched[_Rows]], None]
    rows: _Rows | None = None

    def run(self) -> None:
        """Read the rows.

        Raises:
            StorageError: the object store cannot be read.
            SnapshotDamagedError: a file is missing or damaged.
        """
        self.rows = self.read()

    def install(self) -> None:
        """Put the rows in."""
        self.put(self)


def has_room(taken: int, limit: int) -> bool:
    """Return whether pieces that nobody has asked for may be fetched too: less is taken than making space leaves."""
    return taken * (FREED + 1) <= limit * FREED


class Pieces:
    """Where the pieces begin, which are here, which were ever asked for, and when each region was."""

    def __init__(self, regions: Sequence[HashRange], cuts: I64, *, here: bool) -> None:
        """Cut at `cuts` and where regions begin; `here`: nothing has to be fetched."""
        self._owned = HashRange(regions[0].low, regions[-1].high)
        self._regions = regions
        self._region_lows = np.array([part.low for part in regions], np.int64)
        own = [cut for cut in cuts.tolist() if cut in self._owned]
        self._lows = np.union1d(self._region_lows, np.array(own, np.int64)).astype(np.int64)
        self.here = np.full(len(self._lows), here)
        #: Whether anybody asked for it, or it was fetched: what the background reads is older than what is there.
        self.been = np.full(len(self._lows), here)
        self._used = np.zeros(len(regions), np.int64)
        self._calls = 0
        #: How often pieces were cut anew: their numbers are others then.
        self.cut = 0

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return len(self._lows)

    def of(self, hashes: I64) -> I64:
        """Return the piece of each hash."""
        return np.searchsorted(self._lows, hashes, side="right") - 1

    def within(self, part: HashRange) -> I64:
        """Return the pieces that a range of hashes touches."""
        first, last = self.of(np.array([part.low, part.high], np.int64)).tolist()
        return np.arange(first, last + 1)

    def ranges(self, pieces: I64) -> list[HashRange]:
        """Return the ranges of ascending pieces, neighbours as one."""
        ranges: list[HashRange] = []
        for piece in pieces.tolist():
            last = piece + 1 == len(self._lows)
            part = HashRange(int(self._lows[piece]), self._owned.high if last else int(self._lows[piece + 1]) - 1)
            if ranges and ranges[-1].high + 1 == part.low:
                part = HashRange(ranges.pop().low, part.high)
            ranges.append(part)
        return ranges

    def missing(self, pieces: I64) -> I64:
        """Return those that are not here, ascending."""
        asked = np.unique(pieces)
        found: I64 = asked[~self.here[asked]]
        return found

    def parts(self, hashes: I64, most: int) -> list[I64]:
        """Return the places of hashes, cut up by what is to be here together: all, or a region after the other.

        The latter if more than `most` pieces are missing. What a region had may be dropped when the next one comes.
        """
        if len(self.missing(self.of(hashes))) <= most:
            return [np.arange(len(hashes))]
        region = self.regions_of(hashes)
        order = np.argsort(region, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(region[order])) + 1)

    def unasked(self, most: int) -> I64:
        """Return the first pieces that nobody has asked for yet."""
        return np.flatnonzero(~self.been)[:most]

    def unasked_of(self, fetched: Fetched[_Rows]) -> I64:
        """Return those that were fetched and nobody has asked for meanwhile; none if pieces have other numbers now."""
        if fetched.cut != self.cut:
            return np.empty(0, np.int64)
        unasked: I64 = fetched.pieces[~self.been[fetched.pieces]]
        return unasked

    def came(self, pieces: I64) -> None:
        """These are here now."""
        self.here[pieces] = self.been[pieces] = True

    def regions_of(self, hashes: I64) -> I64:
        """Return the region of each hash."""
        return np.searchsorted(self._region_lows, hashes, side="right") - 1

    def touch(self, hashes: I64) -> None:
        """These were asked for now."""
        self._calls += 1
        self._used[self.regions_of(hashes)] = self._calls

    def touch_range(self, part: HashRange) -> None:
        """All of a range was asked for now."""
        self.touch(self._lows[self.within(part)])

    def to_drop(self, sizes: I64, limit: int) -> Iterator[int]:
        """Yield the regions to be dropped, if what they take is more than the limit: those not asked for longest."""
        taken = int(sizes.sum())
        if taken <= limit:
            return
        for region in np.argsort(self._used, kind="stable").tolist():
            if taken * FREED <= limit * (FREED - 1):
                return
            if sizes[region]:
                taken -= int(sizes[region])
                yield region

    def drop(self, region: int, parts: int) -> None:
        """A region is here no more; it is cut into so many pieces, if that is more than it had."""
        span = self.within(self._regions[region])
        first, stop = int(span[0]), int(span[-1]) + 1
        lows = [part.low for part in even_parts(self._regions[region], max(1, parts))]
        if len(lows) <= len(span):
            lows = self._lows[first:stop].tolist()
        self._lows = np.concatenate([self._lows[:first], np.array(lows, np.int64), self._lows[stop:]])
        gone, been = np.zeros(len(lows), np.bool_), np.ones(len(lows), np.bool_)
        self.here = np.concatenate([self.here[:first], gone, self.here[stop:]])
        self.been = np.concatenate([self.been[:first], been, self.been[stop:]])
        self.cut += 1
