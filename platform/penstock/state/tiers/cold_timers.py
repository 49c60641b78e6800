"""Timers of keys that are not in memory, in RocksDB in time order until they are due.

A timer may also be in memory, if its key returned. It is the same timer and fires once, because a deletion removes it
in both places. Used by `state.tables.timer_table` and by sessions, in the owner's thread.

Remote timers are in the object store until shortly before they are due. All timers before a time are local, later ones
are in the log. Footers list the first and last time of a row group, which is a span of time in segments of timers. When
the requested time reaches remote timers, the row groups with the next ones are read, of all keys. Changes since a
segment was written are later in the log, or in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.core.errors import UsageError
from penstock.core.keygroup import HashRange
from penstock.state.keys.key_index import KeyIndex, columns_of
from penstock.state.keys.sorted_keys import bound, decode_keys, encode_keys, second_numbers
from penstock.state.log.segment_columns import NAMESPACE, keyed_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.tiers.cold_records import SpillStore

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


def next_span(spans: I64, begin: int, rows: int) -> int:
    """Return the time up to which to read: about `rows` timers, and at least half of the spans completely.

    `spans` has the first time, the last time and the number of timers of each row group or waiting segment with timers
    at `begin` or later, one per column; at least one.
    """
    lows, highs, counts = spans[:, np.argsort(spans[0], kind="stable")]
    later = np.flatnonzero((np.cumsum(counts) - counts >= rows) & (lows > begin))
    if len(later) == 0:
        return MAX_TIMESTAMP
    number = int(later[0])
    return max(int(lows[number]) - 1, int(np.sort(highs[:number])[number // 2]))


class ColdTimers:
    """The timers of one kind of time of one operator."""

    def __init__(
        self, spill_store: SpillStore, key_schema: pa.Schema, source: FrozenSource[RowSpec] | None = None
    ) -> None:
        """Start without local timers; remote ones are in the log of `source`, and read on demand."""
        self._key_schema = key_schema
        self.spill_store = spill_store
        number = spill_store.number()
        self._prefix, self._stop = bound(number)[:_PREFIX], bound(number + 1)[:_PREFIX]
        #: Lower bound of the names; those of taken timers are below it until they are deleted together.
        self._first, self._taken = self._prefix, 0
        #: Lower bound of the times of local timers; None: no timer.
        self.local_least: int | None = None
        #: Upper bound of the number of local timers.
        self._count = 0
        self._log = None if source is None or spill_store.open_log is None else spill_store.open_log(source)
        #: All timers before this time are local; None: all timers are.
        self._reached = MIN_TIMESTAMP if self._log is not None and self._log.rows else None
        #: Lower bound of the times of remote timers; None: not known yet.
        self._remote_least: int | None = None

    @property
    def count(self) -> int:
        """The number of timers, at most."""
        return self._count + (0 if self._log is None or self._reached is None else self._log.rows)

    @property
    def least(self) -> int | None:
        """Lower bound of the times; None: no timer; raises as `RemoteLog.files`."""
        return min((time for time in (self.local_least, self.remote_least) if time is not None), default=None)

    def put(self, keys: KeyView, slots: I32, times: I64) -> None:
        """Store timers, except those that the log has; storing one twice has no effect."""
        if self._reached is not None:
            local = times < self._reached
            if self._remote_least is not None and not local.all():
                self._remote_least = min(self._remote_least, int(times[~local].min()))
            slots, times = slots[local], times[local]
        self._put(keys, slots, times)

    def _put(self, keys: KeyView, slots: I32, times: I64) -> None:
        if len(slots) == 0:
            return
        names = self._names(keys, slots, times)
        lowest = min(names)
        if lowest < self._first:
            self._delete_taken()
            self._first = lowest
        self.spill_store.store.put(names, [b""] * len(names))
        low = int(times.min())
        self.local_least = low if self.local_least is None else min(low, self.local_least)
        self._count += len(names)

    def forget(self, keys: KeyView, slots: I32, times: I64) -> None:
        """Delete timers that may or may not be in the store."""
        if self.local_least is None:
            return
        there = times >= self.local_least
        if there.any():
            self.spill_store.store.delete(self._names(keys, slots[there], times[there]))

    def look_up(self, keys: KeyView, slots: I32, most: int) -> list[int]:
        """Return the times of timers of one key without removing them, among them the first `most`.

        Raises:
            UsageError: too many timers of other keys are before them.
        """
        times = self._look_up_local(keys, slots, most)
        if self._log is None or self._reached is None or len(times) >= most:
            return times
        key_hash = int(keys.hashes[slots[0]])
        index, owners, found = self._rows_of(self._log.current([HashRange(key_hash, key_hash)]), self._reached)
        own = index.find(columns_of(keys, slots), keys.hashes[slots])
        return times + (found[owners == own[0]].tolist() if len(own) else [])

    def _look_up_local(self, keys: KeyView, slots: I32, most: int) -> list[int]:
        key, times, looked = encode_keys(keys, slots, np.zeros(1, np.int64))[0][_PREFIX:], list[int](), 0
        for names in self._names_until(MAX_TIMESTAMP, _LOOKED_PIECE):
            found = [name for name in names if name[2 * _PREFIX :] == key]
            times += second_numbers(found).tolist()
            looked += len(names)
            if len(times) >= most:
                break
            if looked >= self.spill_store.limits.searched_timers:
                msg = f"the first {looked:,} timers of keys on disk do not include enough of this key"
                raise UsageError(msg, hint="take a savepoint and read its state (ps.snapshots.read)")
        return times[:most]

    def _names_until(self, until: int, piece: int) -> Iterator[list[bytes]]:
        """Yield the names of the local timers up to a time in order, `piece` at a time."""
        if self.local_least is not None and self.local_least <= until:
            first = max(self._first, self._bound(self.local_least))
            end = self._stop if until >= MAX_TIMESTAMP else self._bound(until + 1)
            for names, _ in self.spill_store.store.scan(first, end, piece):
                yield names

    def take(self, until: int, limit: int) -> DueTimers | None:
        """Return the first local timers up to a time, about `limit`: all of a time, or a part of a single time."""
        if self.local_least is None or self.local_least > until:
            return None
        names = next(self._names_until(until, limit + 1), [])
        if not names:
            self._look(until)
            return None
        times = second_numbers(names)
        stop, reached, more = len(names), until, False
        if stop > limit:
            reached = int(times[-1]) - 1
            stop = int(np.searchsorted(times, times[-1]))
            if stop == 0:
                stop, reached, more = limit, int(times[-1]), True
            self.local_least = int(times[stop])
        self._first = names[stop - 1] + b"\0"
        self._taken += stop
        if self._taken >= _MOST_TAKEN:
            self._delete_taken()
        self._count = max(0, self._count - stop)
        if len(names) <= limit:
            self._look(until)
        columns, hashes, due = decode_keys(self._key_schema, [name[_PREFIX:] for name in names[:stop]])
        return DueTimers(columns, hashes, due, reached, more)

    def _delete_taken(self) -> None:
        if self._taken:
            self.spill_store.store.delete_range(self._prefix, self._first)
            self._taken = 0

    def _look(self, until: int) -> None:
        """Find the first timer after `until`, up to which there is none."""
        self.local_least = None
        if until < MAX_TIMESTAMP:
            names, _ = next(self.spill_store.store.scan(self._bound(until + 1), self._stop, 1), ([], []))
            if names:
                self.local_least = int(second_numbers(names)[0])
        if self.local_least is None:
            self._count = 0

    def _names(self, keys: KeyView, slots: I32, times: I64) -> list[bytes]:
        return [self._prefix + name for name in encode_keys(keys, slots, times)]

    def _bound(self, time: int) -> bytes:
        return self._prefix + bound(time)[:_PREFIX]

    # --- remote timers ----------------------------------------------------------------------------------------------

    @property
    def remote_least(self) -> int | None:
        """A lower bound of the times of remote timers; None: all timers are local; raises as `RemoteLog.files`."""
        if self._reached is not None and self._remote_least is None:
            spans = self._spans(self._reached)
            if spans.size == 0:
                self._reached = None
                return None
            self._remote_least = max(self._reached, int(spans[0].min()))
        return None if self._reached is None else self._remote_least

    def local_until(self, until: int) -> int:
        """Return the time, at most `until`, up to which all timers are local; the caller takes those out."""
        least = self.remote_least
        if least is None or self._reached is None:
            return until
        here = min(until, least - 1)
        # timers that fire now are in the log as well and must not be read again
        self._reached = max(self._reached, here + 1)
        return here

    def fetch_next(self) -> None:
        """Fetch the next remote timers, also those deleted in memory since the last freeze.

        Raises as `RemoteLog.files`.
        """
        begin, log = self.remote_least, self._log
        if begin is None or self._reached is None or log is None:
            return
        spans = self._spans(self._reached)
        until = next_span(spans, begin, log.limits.fetched_rows)
        tables = log.current([log.source.hash_range], (begin, until))
        index, slots, times = self._rows_of(tables, begin, until)
        self._put(index.view(), slots, times)
        self._reached = None if spans[1].max() <= until else until + 1
        self._remote_least = None

    def _spans(self, begin: int) -> I64:
        """Return the spans of remote timers, which are at `begin` or later, as for `next_span`."""
        assert self._log is not None  # noqa: S101 - callers check it
        source = self._log.source
        source.flush(spilled=True)
        waiting = np.array([span for _, *span in source.spans()], np.int64).reshape(-1, 3).T
        spans = np.concatenate([self._log.spans()[2:], waiting], axis=1)
        return spans[:, (spans[1] >= begin) & (spans[0] <= spans[1])]

    def _rows_of(self, tables: Iterable[pa.Table], begin: int, until: int = MAX_TIMESTAMP) -> tuple[KeyIndex, I32, I64]:
        """Return the timers of the log between two times that have not fired: an index of keys, slots and times."""
        assert self._log is not None  # noqa: S101 - callers check it
        rows = self._log.merged(_between(table, begin, until) for table in tables)
        batch, keys, hashes = keyed_batch(rows, self._key_schema)
        index = KeyIndex(self._key_schema)
        return index, index.upsert(keys, hashes).copy(), batch.column(NAMESPACE).to_numpy()


def _between(table: pa.Table, begin: int, until: int) -> pa.Table:
    times = table.column(NAMESPACE).to_numpy()
    wanted = (times >= begin) & (times <= until)
    return table if wanted.all() else table.filter(pa.array(wanted))
