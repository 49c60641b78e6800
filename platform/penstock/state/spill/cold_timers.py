"""Timers of keys that are not in memory, in RocksDB in time order until they are due.

A timer may also be in memory, if its key returned. It is the same timer and fires once, because a deletion removes it
in both places. Used by `state.tables.timer_table` and by sessions, in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.elements import MAX_TIMESTAMP
from penstock.core.errors import UsageError
from penstock.state.keys.sorted_keys import bound, decode_keys, encode_keys, second_numbers

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.spill.cold_records import SpillStore

_PREFIX = 8
#: Timers that a query reads between two checks of its limit.
_LOOKED_PIECE = 4096
#: Taken timers that are deleted together: one range costs about as much as one timer.
_MOST_TAKEN = 65_536


@dataclass(frozen=True, slots=True)
class DueTimers:
    """Timers in time order that were taken out of the store."""

    keys: KeyColumns
    hashes: I64
    times: I64
    #: All remaining timers are later than this; with `more`, some at this time remain, and all taken ones are at it.
    reached: int
    more: bool = False


class ColdTimers:
    """The timers of one kind of time of one operator."""

    def __init__(self, spill_store: SpillStore) -> None:
        """Start without timers."""
        self.spill_store = spill_store
        number = spill_store.number()
        self._prefix, self._stop = bound(number)[:_PREFIX], bound(number + 1)[:_PREFIX]
        #: Lower bound of the names; those of taken timers are below it until they are deleted together.
        self._first, self._taken = self._prefix, 0
        #: Lower bound of the times; None: no timer.
        self.least: int | None = None
        #: Upper bound of the number of timers.
        self.count = 0

    def put(self, keys: KeyView, slots: I32, times: I64) -> None:
        """Store timers; storing one twice has no effect."""
        if len(slots) == 0:
            return
        names = self._names(keys, slots, times)
        lowest = min(names)
        if lowest < self._first:
            self._delete_taken()
            self._first = lowest
        self.spill_store.store.put(names, [b""] * len(names))
        low = int(times.min())
        self.least = low if self.least is None else min(low, self.least)
        self.count += len(names)

    def forget(self, keys: KeyView, slots: I32, times: I64) -> None:
        """Delete timers that may or may not be in the store."""
        if self.least is None:
            return
        there = times >= self.least
        if there.any():
            self.spill_store.store.delete(self._names(keys, slots[there], times[there]))

    def look_up(self, keys: KeyView, slots: I32, most: int) -> list[int]:
        """Return the times of the first `most` timers of one key, ascending, without removing them.

        Raises:
            UsageError: too many timers of other keys are before them.
        """
        if self.least is None:
            return []
        key, times, looked = encode_keys(keys, slots, np.zeros(1, np.int64))[0][_PREFIX:], list[int](), 0
        first = max(self._first, self._bound(self.least))
        for names, _ in self.spill_store.store.scan(first, self._stop, _LOOKED_PIECE):
            found = [name for name in names if name[2 * _PREFIX :] == key]
            times += second_numbers(found).tolist()
            looked += len(names)
            if len(times) >= most:
                break
            if looked >= self.spill_store.limits.searched_timers:
                msg = f"the first {looked:,} timers of keys on disk do not include enough of this key"
                raise UsageError(msg, hint="take a savepoint and read its state (ps.snapshots.read)")
        return times[:most]

    def _span(self, least: int, until: int) -> tuple[bytes, bytes]:
        """Return the names from the first timer to those up to a time."""
        end = self._stop if until >= MAX_TIMESTAMP else self._bound(until + 1)
        return max(self._first, self._bound(least)), end

    def take(self, key_schema: pa.Schema, until: int, limit: int) -> DueTimers | None:
        """Return the first timers up to a time, about `limit`: all of a time, or a part of a single time."""
        if self.least is None or self.least > until:
            return None
        names, _ = next(self.spill_store.store.scan(*self._span(self.least, until), limit + 1), ([], []))
        if not names:
            self._look(until)
            return None
        columns, hashes, times = decode_keys(key_schema, [name[_PREFIX:] for name in names])
        stop, reached, more = len(names), until, False
        if stop > limit:
            reached = int(times[-1]) - 1
            stop = int(np.searchsorted(times, times[-1]))
            if stop == 0:
                stop, reached, more = limit, int(times[-1]), True
            self.least = int(times[stop])
        self._first = names[stop - 1] + b"\0"
        self._taken += stop
        if self._taken >= _MOST_TAKEN:
            self._delete_taken()
        self.count = max(0, self.count - stop)
        if len(names) <= limit:
            self._look(until)
        if stop < len(names):
            columns, hashes, times = decode_keys(key_schema, [name[_PREFIX:] for name in names[:stop]])
        return DueTimers(columns, hashes, times, reached, more)

    def _delete_taken(self) -> None:
        if self._taken:
            self.spill_store.store.delete_range(self._prefix, self._first)
            self._taken = 0

    def _look(self, until: int) -> None:
        """Find the first timer after `until`, up to which there is none."""
        self.least = None
        if until < MAX_TIMESTAMP:
            names, _ = next(self.spill_store.store.scan(self._bound(until + 1), self._stop, 1), ([], []))
            if names:
                self.least = int(second_numbers(names)[0])
        if self.least is None:
            self.count = 0

    def _names(self, keys: KeyView, slots: I32, times: I64) -> list[bytes]:
        return [self._prefix + name for name in encode_keys(keys, slots, times)]

    def _bound(self, time: int) -> bytes:
        return self._prefix + bound(time)[:_PREFIX]
