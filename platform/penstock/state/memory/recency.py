"""Which keys of a row state leave memory when it is full, and when that is.

Of a slot's managed memory the keys and states of an operator in memory get half of an even share. The rest is for what
comes beside them for a while: changes that are frozen or being encoded, larger arrays while tables grow, and the new
index while keys leave. A pure decider. Used by `state.tables.row_state`, `state.panes.session_table` and, for values of
any length, `state.panes.pane_table` in the owner's thread.
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
#: Keys that come in together may take one part in so many of an even share.
_INCOMING = 8


def past_part(budget: MemoryBudget, holder: str, hot_bytes: int) -> bool:
    """Return whether so many bytes in memory are more than their part of the holder's share."""
    return hot_bytes * _HOT > budget.share_of(holder)


@dataclass(slots=True)
class Recency:
    """When each slot was touched, and how much may stay in memory."""

    budget: MemoryBudget
    holder: str
    limits: StateLimits = PRODUCTION
    _touches: Touches = field(default_factory=Touches)
    #: Bytes of a key that left, on average; 0: none has left yet.
    _key_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes of what is known of slots."""
        return self._touches.nbytes

    def touch(self, slots: I32, count: int) -> None:
        """These were touched now; there are `count` slots."""
        self._touches.touch(slots, count)

    def full(self, hot_bytes: int, keys: int) -> bool:
        """Whether so many bytes, or so many keys, are too many."""
        return keys > self.limits.hot_keys or past_part(self.budget, self.holder, hot_bytes)

    def staying(self, count: int) -> np.ndarray:
        """Return of each of `count` slots whether it stays: a part of them, those touched last."""
        return self._touches.latest(count, self.limits.kept_keys_part)

    def left(self, keys: int, freed_bytes: int) -> None:
        """So many keys have left memory."""
        if keys:
            # where small ones leave, large ones may still be there
            self._key_bytes = max(1, freed_bytes // keys, self._key_bytes // 2)

    def at_once(self, most: int) -> int:
        """Return how many keys, from 1 to `most`, may come in before it is asked again which are to leave."""
        most = min(most, self.limits.incoming_keys)
        if not self._key_bytes:
            return most
        room = self.budget.share_of(self.holder) // _INCOMING
        return max(1, min(most, room // self._key_bytes))

    def moved(self, kept: I32) -> None:
        """The slots were numbered anew: there are these alone, in this order."""
        self._touches.moved(kept)
