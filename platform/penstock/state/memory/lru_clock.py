"""LRU clock of a table: the number of the call that last used each slot; it selects the keys to evict.

Used by `state.memory.recency` and `state.spill.cold_panes` in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32

#: Largest call number that fits the array's type.
_CALLS = (1 << 32) - 1


class Touches:
    """The number of the last call that used each slot; 0: never."""

    def __init__(self, most_calls: int = _CALLS) -> None:
        """Start without slots; after `most_calls` calls the clock is renumbered in the same order."""
        self._most_calls = most_calls
        self._calls = np.zeros(0, np.uint32)
        self._call = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return int(self._calls.nbytes)

    def fit(self, count: int) -> None:
        """Make room for `count` slots."""
        if count > len(self._calls):
            wider = np.zeros(max(count, 2 * len(self._calls)), np.uint32)
            wider[: len(self._calls)] = self._calls
            self._calls = wider

    def touch(self, slots: I32, count: int) -> None:
        """Mark `slots` as used by this call; the table has `count` slots."""
        self.fit(count)
        if self._call >= self._most_calls:
            distinct, numbers = np.unique(self._calls, return_inverse=True)
            self._calls = (numbers + (distinct[0] > 0)).astype(np.uint32)
            self._call = len(distinct)
        self._call += 1
        self._calls[slots] = self._call

    def latest(self, count: int, part: int) -> np.ndarray:
        """Return a mask of the most recently used of `count` (> 0) slots: at most one in `part`."""
        self.fit(count)
        calls = self._calls[:count]
        place = min(count - 1, count - count // part)
        return np.asarray(calls > np.partition(calls, place)[place])

    def moved(self, kept: I32) -> None:
        """Adopt a compacted numbering: the slots `kept`, in this order."""
        self._calls = self._calls[kept]
