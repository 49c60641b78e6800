"""Which keys of a row state leave memory when it is full, and when that is.

Of a slot's managed memory the keys and states of an operator in memory get half of an even share. The rest is for what
comes beside them for a while: changes that are frozen or being encoded, larger arrays while tables grow, and the new
index while keys leave. A pure decider. Used by `state.row_state` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from penstock.kernels.compile import I32
    from penstock.state.budget import MemoryBudget

_HOT = 2
#: One key in so many stays: those that were touched last.
_KEPT = 2


@dataclass(slots=True)
class Recency:
    """When each slot was touched, and how much may stay in memory."""

    budget: MemoryBudget
    holder: str
    _touched: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))
    _tick: int = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of what is known of slots."""
        return int(self._touched.nbytes)

    def touch(self, slots: I32, count: int) -> None:
        """These were touched now; there are `count` slots."""
        self._fit(count)
        self._tick += 1
        self._touched[slots] = self._tick

    def full(self, hot_bytes: int) -> bool:
        """Whether so many bytes are too many."""
        return hot_bytes * _HOT > self.budget.share_of(self.holder)

    def staying(self, count: int) -> np.ndarray:
        """Return of each of `count` slots whether it stays: at most one in two, those touched last."""
        self._fit(count)
        touched = self._touched[:count]
        place = min(count - 1, count - count // _KEPT)
        return np.asarray(touched > np.partition(touched, place)[place])

    def moved(self, kept: I32) -> None:
        """The slots were numbered anew: there are these alone, in this order."""
        self._touched = self._touched[kept]

    def _fit(self, count: int) -> None:
        if count > len(self._touched):
            wider = np.zeros(max(count, 2 * len(self._touched)), np.uint32)
            wider[: len(self._touched)] = self._touched
            self._touched = wider
