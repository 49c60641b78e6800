"""Operations on several hash ranges at a time; used by remote state and its readers."""

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


def even_parts(whole: HashRange, parts: int) -> list[HashRange]:
    """Split a range into `parts` ranges of the same size; fewer if it does not have so many hashes."""
    step = -(-(whole.high - whole.low + 1) // parts)
    return [HashRange(low, min(low + step - 1, whole.high)) for low in range(whole.low, whole.high + 1, step)]
