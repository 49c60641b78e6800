"""Eviction policy: when a row state is full, and which keys stay in memory.

Keys and states of an operator in memory may take half of an even share of a slot's managed memory. The rest is for
temporary data: frozen changes, larger arrays while tables grow, and the new index during an eviction. No I/O and no
side effects. Used by `state.tables.row_state`, `state.panes.session_table` and, for values of any length,
`state.panes.pane_table` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.memory.lru_clock import Touches

if TYPE_CHECKING:
    import numpy as np

    from penstock.kernels.compiler.compile import I32
    from penstock.state.memory.budget import MemoryBudget

_HOT = 2
#: Keys that enter memory together may take one part in this many of an even share.
_INCOMING = 8


def past_part(budget: MemoryBudget, holder: str, hot_bytes: int) -> bool:
    """Return whether `hot_bytes` exceeds the part of the holder's share that memory may take."""
    return hot_bytes * _HOT > budget.share_of(holder)


@dataclass(slots=True)
class Recency:
    """The last use of each slot, and the limits for keys in memory."""

    budget: MemoryBudget
    holder: str
    limits: StateLimits = PRODUCTION
    _touches: Touches = field(default_factory=Touches)
    #: Average bytes of an evicted key; 0: none was evicted yet.
    _key_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """The bytes of the LRU clock."""
        return self._touches.nbytes

    def touch(self, slots: I32, count: int) -> None:
        """Mark `slots` as used now; the table has `count` slots."""
        self._touches.touch(slots, count)

    def full(self, hot_bytes: int, keys: int) -> bool:
        """Return whether `hot_bytes` or `keys` exceeds its limit."""
        return keys > self.limits.hot_keys or past_part(self.budget, self.holder, hot_bytes)

    def staying(self, count: int) -> np.ndarray:
        """Return a mask of the slots that stay in memory: the most recently used ones of `count`."""
        return self._touches.latest(count, self.limits.kept_keys_part)

    def left(self, keys: int, freed_bytes: int) -> None:
        """Record that `keys` keys were evicted, which freed `freed_bytes`."""
        if keys:
            # the evicted keys may be small while large ones remain, so the average falls slowly
            self._key_bytes = max(1, freed_bytes // keys, self._key_bytes // 2)

    def at_once(self, most: int) -> int:
        """Return how many keys, from 1 to `most`, may enter memory before the next eviction check."""
        most = min(most, self.limits.incoming_keys)
        if not self._key_bytes:
            return most
        room = self.budget.share_of(self.holder) // _INCOMING
        return max(1, min(most, room // self._key_bytes))

    def moved(self, kept: I32) -> None:
        """Adopt a compacted numbering: the slots `kept`, in this order."""
        self._touches.moved(kept)
