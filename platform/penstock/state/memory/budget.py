"""Managed memory of a slot: the bytes of each holder against one limit, and which keys leave memory when it is full.

The tables report from one subtask's thread; the thread that encodes a checkpoint reports its working memory. The
eviction policy belongs to a table, or to the tables of a row state: the LRU clock of its slots, when it is full, and
which keys stay in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.errors import StateTooLargeError
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.memory.slot_arrays import with_room

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32


class MemoryBudget:
    """The bytes in use by each holder, against one limit."""

    def __init__(self, limit_bytes: int) -> None:
        """Create a budget of `limit_bytes`."""
        self.limit_bytes = limit_bytes
        #: Peak of the bytes held and the working memory together.
        self.peak_bytes = 0
        self._held: dict[str, int] = {}
        self._work: dict[str, int] = {}

    def report(self, holder: str, held_bytes: int) -> None:
        """Set the bytes that `holder` holds; 0 removes the holder."""
        if held_bytes:
            self._held[holder] = held_bytes
        else:
            self._held.pop(holder, None)
        self._note()

    def work(self, what: str, size_bytes: int) -> None:
        """Set the working memory of a temporary step (copies of a freeze, eviction, encoding); it counts in the peak.

        Tables leave room for it; it does not count as used bytes. Any thread.
        """
        if size_bytes:
            self._work[what] = size_bytes
        else:
            self._work.pop(what, None)
        self._note()

    def share_of(self, holder: str) -> int:
        """Return an even share of the limit for `holder`."""
        return self.limit_bytes // max(1, len(self._held.keys() | {holder}))

    def _note(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.used_bytes + sum(tuple(self._work.values())))

    @property
    def used_bytes(self) -> int:
        """The bytes held by all holders."""
        return sum(tuple(self._held.values()))

    @property
    def exceeded(self) -> bool:
        """Whether the used bytes are above the limit."""
        return self.used_bytes > self.limit_bytes

    def error(self, what: str, hint: str) -> StateTooLargeError:
        """Return the error that `what` does not fit."""
        msg = f"{what} needs {self.used_bytes:,} bytes, managed_memory allows {self.limit_bytes:,}"
        return StateTooLargeError(msg, hint=f"raise managed_memory or the parallelism{hint}")

    def should_shrink(self, holder: str, held_bytes: int) -> bool:
        """Return whether `holder` exceeds the limit with these bytes, which are at least its fair share."""
        used = self.used_bytes - self._held.get(holder, 0) + held_bytes
        return used > self.limit_bytes and held_bytes >= self.share_of(holder)


#: Largest call number that fits the array's type.
_CALLS = (1 << 32) - 1


class LruClock:
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

    def touch(self, slots: I32, count: int) -> None:
        """Mark `slots` as used by this call; the table has `count` slots."""
        self._calls = with_room(self._calls, count)
        if self._call >= self._most_calls:
            distinct, numbers = np.unique(self._calls, return_inverse=True)
            self._calls = (numbers + (distinct[0] > 0)).astype(np.uint32)
            self._call = len(distinct)
        self._call += 1
        self._calls[slots] = self._call

    def most_recent_mask(self, count: int, part: int) -> np.ndarray:
        """Return a mask of the most recently used of `count` (> 0) slots: at most `count` / `part` of them."""
        self._calls = with_room(self._calls, count)
        calls = self._calls[:count]
        place = min(count - 1, count - count // part)
        return np.asarray(calls > np.partition(calls, place)[place])

    def oldest_half(self, slots: I32) -> I32:
        """Return the half of some slots that was not used most recently; at least one if there is any."""
        self._calls = with_room(self._calls, int(slots.max(initial=-1)) + 1)
        half = (len(slots) + 1) // 2
        return slots[np.argpartition(self._calls[slots], half - 1)[:half]] if half else slots

    def moved(self, kept: I32) -> None:
        """Adopt a compacted numbering: the slots `kept`, in this order; nothing to do if none was ever used."""
        if len(self._calls):
            self._calls = with_room(self._calls, int(kept.max(initial=-1)) + 1)[kept]


#: Keys that enter memory together may take one part in this many of an even share.
_INCOMING = 8
#: A batch has at most a row per this many bytes of managed memory, and takes at most one part in this many of it.
_BYTES_PER_ROW, _BATCH_PART = 1024, 16
#: Changes of evicted keys take at most one part in this many of an even share for each state, or so many bytes.
_GATHERED_PART, _LEAST_GATHERED = 32, 64 << 10


@dataclass(slots=True)
class EvictionPolicy:
    """The last use of each slot, and the limits for keys in memory."""

    budget: MemoryBudget
    holder: str
    limits: StateLimits = PRODUCTION
    #: Rows in memory may take one part in this many of an even share.
    hot_part: int = 2
    #: Whether rows may take more, as long as all holders together are below the limit.
    borrows: bool = False
    #: Bytes of a row in memory; 0: they are not known in advance.
    row_bytes: int = 0
    lru: LruClock = field(default_factory=LruClock)
    #: Average bytes of an evicted key; 0: none was evicted yet.
    _key_bytes: int = 0
    #: The number of keys at which to look for keys without rows.
    _check_dead_at: int = 0

    @property
    def batch_rows(self) -> int:
        """The most rows to add or evict at a time in bounded memory."""
        room = max(_BYTES_PER_ROW, self.row_bytes * _BATCH_PART)
        return max(self.limits.piece_rows, self.budget.limit_bytes // room)

    @property
    def gathered_bytes(self) -> int:
        """The most bytes of changes of evicted keys that a state holds in memory."""
        share = self.budget.share_of(self.holder)
        return min(self.limits.gathered_bytes, max(_LEAST_GATHERED, share // _GATHERED_PART))

    def full(self, hot_bytes: int, keys: int) -> bool:
        """Return whether `hot_bytes` or `keys` exceeds its limit."""
        if self.borrows and keys <= self.limits.hot_keys:
            return self.budget.should_shrink(self.holder, hot_bytes)
        return self.above_part(hot_bytes, keys)

    def above_part(self, hot_bytes: int, keys: int) -> bool:
        """Return whether `hot_bytes` exceeds its part of an even share, or `keys` its limit."""
        return keys > self.limits.hot_keys or hot_bytes * self.hot_part > self.budget.share_of(self.holder)

    def kept_mask(self, count: int, hot_bytes: int = 0) -> np.ndarray:
        """Return a mask of the slots that stay in memory: the most recently used ones of `count`.

        If `hot_bytes` exceed the limit several times, fewer stay, so that one eviction is enough.
        """
        share = max(1, self.budget.share_of(self.holder))
        part = self.limits.kept_keys_part
        return self.lru.most_recent_mask(count, max(part, part * hot_bytes * self.hot_part // share))

    def should_find_dead(self, count: int) -> bool:
        """Return whether a table with `count` keys should look for keys without rows."""
        return count >= max(self._check_dead_at, self.limits.dead_keys)

    def should_drop_dead(self, living: int, count: int) -> bool:
        """Return whether to drop the keys without rows, at least half of `count`, and set when to look again."""
        drop = 2 * living <= count
        least = self.limits.dead_keys
        self._check_dead_at = 2 * living + least if drop else count + max(least, count // 2)
        return drop

    def record_evicted(self, keys: int, freed_bytes: int) -> None:
        """Record that `keys` keys were evicted, which freed `freed_bytes`."""
        if keys:
            # the evicted keys may be small while large ones remain, so the average falls slowly
            self._key_bytes = max(1, freed_bytes // keys, self._key_bytes // 2)

    def most_incoming(self, most: int) -> int:
        """Return how many keys, from 1 to `most`, may enter memory before the next eviction check."""
        most = min(most, self.limits.incoming_keys)
        if not self._key_bytes:
            return most
        room = self.budget.share_of(self.holder) // _INCOMING
        return max(1, min(most, room // self._key_bytes))
