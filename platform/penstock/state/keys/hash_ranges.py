"""Several hash ranges at a time, and the bytes of each on the local disk; used by cold stores and remote state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.core.keygroup import HashRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kernels.compiler.compile import I64


def inside(hashes: I64, ranges: Sequence[HashRange]) -> np.ndarray:
    """Return a mask of the hashes that are in one of the ranges, which are ascending and do not overlap."""
    if not ranges:
        return np.zeros(len(hashes), np.bool_)
    lows = np.array([r.low for r in ranges], np.int64)
    highs = np.array([r.high for r in ranges], np.int64)
    place = np.searchsorted(lows, hashes, side="right") - 1
    return np.asarray((place >= 0) & (hashes <= highs[np.maximum(place, 0)]))


#: Approximate overhead of a record in a store on the local disk.
RECORD_BYTES = 48


class LocalBytes:
    """The approximate bytes on the local disk by region, an even part of the hashes."""

    def __init__(self, owned: HashRange, regions: int) -> None:
        """Start at zero for `regions` regions."""
        self.regions = owned.split(regions)
        self._lows = np.array([part.low for part in self.regions], np.int64)
        self.sizes = np.zeros(len(self.regions), np.int64)

    def regions_of(self, hashes: I64) -> I64:
        """Return the region of each hash."""
        return np.searchsorted(self._lows, hashes, side="right") - 1

    def add(self, hashes: I64, sizes: I64) -> None:
        """Add the bytes of rows with these hashes; negative ones were removed."""
        np.add.at(self.sizes, self.regions_of(hashes), sizes)
        np.maximum(self.sizes, 0, out=self.sizes)
