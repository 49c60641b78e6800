"""When each slot of a table was last touched, in calls: what says which of its keys leave memory.

Used by `state.memory.recency` and `state.spill.cold_panes` in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32

#: What a number of a call holds.
_CALLS = (1 << 32) - 1


class Touches:
    """The number of the call in which each slot was touched last, 0 for never."""

    def __init__(self, most_calls: int = _CALLS) -> None:
        """There is no slot yet; behind `most_calls` times are numbered anew, in the same order."""
        self._most_calls = most_calls
        self._calls = np.zeros(0, np.uint32)
        self._call = 0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return int(self._calls.nbytes)

    def fit(self, count: int) -> None:
        """There are `count` slots."""
        if count > len(self._calls):
            wider = np.zeros(max(count, 2 * len(self._calls)), np.uint32)
            wider[: len(self._calls)] = self._calls
            self._calls = wider

    def touch(self, slots: I32, count: int) -> None:
        """These were touched now; there are `count` slots."""
        self.fit(count)
        if self._call >= self._most_calls:
            distinct, numbers = np.unique(self._calls, return_inverse=True)
            self._calls = (numbers + (distinct[0] > 0)).astype(np.uint32)
            self._call = len(distinct)
        self._call += 1
        self._calls[slots] = self._call

    def latest(self, count: int, part: int) -> np.ndarray:
        """Return which of `count` slots (at least one) were touched last: at most one in `part` of them."""
        self.fit(count)
        calls = self._calls[:count]
        place = min(count - 1, count - count // part)
        return np.asarray(calls > np.partition(calls, place)[place])

    def moved(self, kept: I32) -> None:
        """The slots were numbered anew: there are these alone, in this order."""
        self._calls = self._calls[kept]
