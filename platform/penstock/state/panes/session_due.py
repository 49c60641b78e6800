"""Due times of sessions with remote state: timers by key, in a separate log.

The log has a timer for each key that is not in memory, due no later than any of the key's sessions. So a watermark
reads only the keys that it closes. When a session continues, its timer stays. When the timer is due, the key is
checked, and gets another timer at the next barrier or eviction. Used by `state.panes.session_table` in the owner's
thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.core.elements import MAX_TIMESTAMP
from penstock.kernels.keys.key_columns import key_column
from penstock.state.spill.cold_timers import DueTimers

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.keys.key_index import KeyView
    from penstock.state.tables.row_state import RowState
    from penstock.state.tables.timer_table import TimerTable

#: Timers that are removed at a time.
_MANY = 65_536


class LoggedDue:
    """The timers of the keys of sessions; see `session_cold.DueKeys`."""

    _timers: TimerTable

    def __init__(self, state: RowState) -> None:
        """Use `state` for the timers only."""
        self._state = state
        #: The earliest known timer of every slot of the session table; without one, the end of time.
        self._asked: I64 = np.empty(0, np.int64)

    def declare(self) -> None:
        """Declare and restore the timers; call it after the table, because barriers freeze states in that order."""
        self._timers = self._state.timers("due")

    def put(self, keys: KeyView, slots: I32, times: I64) -> None:
        """Register a timer for each of these keys."""
        if len(slots):
            arrays = keys.gather(slots)
            names = self._state.index.schema.names
            columns = tuple(key_column(array, name) for array, name in zip(arrays, names, strict=True))
            own = self._state.upsert(columns, keys.hashes[slots]).copy()
            self._timers.change(own, times, np.zeros(len(own), np.bool_))
            self._state.settle()

    def forget(self, keys: KeyView, slots: I32, times: I64) -> None:
        """Do nothing: timers stay, so a key may be checked once too often."""

    def take(self, key_schema: pa.Schema, until: int, limit: int) -> DueTimers | None:
        """Take about `limit` due timers out; None if none is due."""
        found = self._timers.take_due(until, limit)
        if found is None:
            return None
        slots, times = found
        arrays = self._state.keys(slots)
        columns = tuple(key_column(array, name) for array, name in zip(arrays, key_schema.names, strict=True))
        due = DueTimers(columns, self._state.index.view().hashes[slots], times, until)
        self._state.settle()
        return due

    def save(self, keys: KeyView, slots: I32, due: I64) -> None:
        """Ensure that each of these slots in memory has a timer that is due no later than `due`."""
        self._fit(len(keys.hashes))
        least = np.full(len(self._asked), MAX_TIMESTAMP, np.int64)
        np.minimum.at(least, slots, due)
        new = np.flatnonzero(least < self._asked).astype(np.int32)
        self.put(keys, new, least[new])
        self._asked[new] = least[new]

    def came(self, slots: I32, count: int) -> None:
        """Record that the timers of these slots were taken out; there are `count` slots."""
        self._fit(count)
        self._asked[slots] = MAX_TIMESTAMP

    def moved(self, kept: I32) -> None:
        """Adopt a compacted numbering: the slots `kept`, in this order."""
        self._fit(int(kept.max(initial=-1)) + 1)
        self._asked = self._asked[kept]

    def clear(self) -> None:
        """Remove all timers, which other backends neither need nor maintain."""
        while self._timers.take_due(MAX_TIMESTAMP, _MANY) is not None:
            self._state.settle()

    def _fit(self, count: int) -> None:
        missing = count - len(self._asked)
        if missing > 0:
            self._asked = np.concatenate([self._asked, np.full(missing, MAX_TIMESTAMP, np.int64)])
