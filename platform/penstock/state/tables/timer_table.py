"""`TimerTable`: timers by (key, time), each at most once. Owned by one subtask thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.state.keys.key_index import KeyCounts
from penstock.state.log.segment_columns import DELETED, NAMESPACE, keyed_batch, segment_table
from penstock.state.tables.changes import ChangeLog
from penstock.state.tiers.cold_timers import ColdTimers

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSource, FrozenTable
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.tables.changes import FrozenChanges
    from penstock.state.tables.key_space import KeySpace


#: Number of low bits in which times of a bucket may differ: 1.05 s of microseconds.
_BUCKET_BITS = 20
#: A timer in a bucket is one word: offset in the bucket | slot | deleted.
_SLOT_BITS = 31
_SLOT_MASK = (1 << _SLOT_BITS) - 1


@dataclass(slots=True)
class _Bucket:
    """The timers of about a second: resolved ones in order of (time, slot), and changes appended since."""

    ready: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    added: list[I64] = field(default_factory=list)
    #: Lower bound of the timers.
    least: int = 1 << 63

    def add(self, words: I64) -> None:
        """Append registrations and deletions."""
        self.added.append(words)
        self.least = min(self.least, int(words.min()))

    def keep(self, ready: I64) -> None:
        """Set the remaining resolved timers."""
        self.ready = ready
        self.least = int(ready[0]) if len(ready) else 1 << 63

    def resolve(self) -> I64:
        """Return the timers in order of (time, slot), each once."""
        if self.added:
            words = np.concatenate([self.ready, *self.added])
            self.added = []
            if (words & 1).any():
                words = words[np.argsort(words >> 1, kind="stable")]
                last = np.append(words[1:] >> 1 != words[:-1] >> 1, True)
                self.keep(words[last & (words & 1 == 0)])
            else:
                words.sort()
                self.keep(words[np.append(words[1:] != words[:-1], True)])
        return self.ready

    @property
    def words(self) -> int:
        return len(self.ready) + sum(len(words) for words in self.added)


class TimerTable:
    """Timers by slot; the slots are those of the key index that all states of an operator share."""

    def __init__(self, source: FrozenSource[RowSpec], state: KeySpace) -> None:
        """Start without timers; `load` adds restored ones."""
        self.source = source
        self.spec = source.spec
        self._state = state
        self._buckets: dict[int, _Bucket] = {}
        self._log = ChangeLog(source.spec, source.log)
        #: The timers of keys that are not in memory.
        self.cold = None if state.cold is None else ColdTimers(state.cold, source.spec.key_schema, source)

    # --- timers -----------------------------------------------------------------------------------------------------

    def change(self, slots: I32, times: I64, deleted: np.ndarray, *, logged: bool = True) -> None:
        """Register or delete timers, in order; registering an existing timer has no effect.

        Those that are not `logged` are in no snapshot.
        """
        self._enter(slots, times, deleted)
        if logged:
            self._log.add(slots, [pa.array(times)], deleted)

    @property
    def size(self) -> int:
        """The number of timers, at most."""
        return sum(bucket.words for bucket in self._buckets.values()) + (0 if self.cold is None else self.cold.count)

    def look_up(self, keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
        """Return the next `most` timers of one key; see `state.store.StateTable`.

        Raises:
            UsageError: too many timers of other evicted keys are before them.
        """
        view, slots, here = self._state.find(keys, hashes)
        times = set[int]() if self.cold is None else set(self.cold.look_up(view, slots, most))
        for gone, deleted in self._log.deletions() if here else ():  # remote timers do not know of them
            times.difference_update(deleted[gone == slots[0]].tolist())
        for number in sorted(self._buckets) if here else ():
            if len(times) >= most and number << _BUCKET_BITS > sorted(times)[most - 1]:
                break
            ready = self._buckets[number].resolve()
            mine = ready[(ready >> 1 & _SLOT_MASK) == slots[0]]
            times |= set(((number << _BUCKET_BITS) + (mine >> (_SLOT_BITS + 1))).tolist())
        found = np.array(sorted(times)[:most], np.int64)
        owners, none = np.repeat(slots, len(found)), np.zeros(len(found), np.int64)
        return segment_table(self.spec, view, owners, namespaces=found, values=(), deleted=none)

    def counts(self) -> KeyCounts:
        """Return how many timers every key has in memory."""
        hashes = self._state.index.hashes
        _, words, _ = self._every_bucket()
        counts = np.bincount(words >> 1 & _SLOT_MASK, minlength=len(hashes))
        return KeyCounts(hashes, counts, ((self._state.index.view(), len(hashes)),))

    def next_time(self) -> int | None:
        """Return a lower bound of the next timer's time; None if there is no timer."""
        times = (self._next_in_memory(), None if self.cold is None else self.cold.least)
        return min((time for time in times if time is not None), default=None)

    def _next_in_memory(self) -> int | None:
        while self._buckets:
            number = min(self._buckets)
            if self._buckets[number].words:
                return (number << _BUCKET_BITS) + (self._buckets[number].least >> (_SLOT_BITS + 1))
            del self._buckets[number]
        return None

    def take_due(self, until: int, limit: int) -> tuple[I32, I64] | None:
        """Take the timers up to a time: (slots, times) in order of (time, slot); None if none is due.

        About `limit` of them; timers of one time are split only if they alone are more. Keys that are not in memory get
        slots.
        """
        while True:
            here = until if self.cold is None else self.cold.local_until(until)
            found = self._take_here(here, limit)
            if found is not None or self.cold is None or here >= until:
                return found
            self.cold.fetch_next()
            for slots, times in self._log.deletions():  # they are not in the log yet
                self.cold.forget(self._state.index.view(), slots, times)

    def _take_here(self, until: int, limit: int) -> tuple[I32, I64] | None:
        cold = None if self.cold is None else self.cold.take(until, limit)
        if self.cold is None or cold is None:
            return self._take_in_memory(until, limit)
        slots = self._state.upsert(cold.keys, cold.hashes)
        self._enter(slots, cold.times, np.zeros(len(slots), np.bool_))
        before = self._take_in_memory(cold.reached - 1, limit) if cold.more else None
        found = before or self._take_in_memory(cold.reached, limit)
        if cold.more and found is not None:  # one that was registered again in memory may also be in the cold store
            self.cold.forget(self._state.index.view(), *found)
        return found

    def _take_in_memory(self, until: int, limit: int) -> tuple[I32, I64] | None:
        if not self._buckets or min(self._buckets) > until >> _BUCKET_BITS:
            return None
        taken: list[tuple[int, I64]] = []
        room = limit
        for number in sorted(n for n in self._buckets if n <= until >> _BUCKET_BITS):
            bucket = self._buckets[number]
            ready = bucket.resolve()
            due = len(ready)
            if number == until >> _BUCKET_BITS:
                due = int(np.searchsorted(ready, ((until & ((1 << _BUCKET_BITS) - 1)) + 1) << (_SLOT_BITS + 1)))
            stop = _take_count(ready[:due], room, alone=not taken)
            if stop:
                taken.append((number, ready[:stop]))
                room -= stop
            bucket.keep(ready[stop:])
            if stop == len(ready):
                del self._buckets[number]
            if room <= 0 or stop < due:
                break
        if not taken:
            return None
        self._log.fire(until)
        slots = np.concatenate([words >> 1 & _SLOT_MASK for _, words in taken]).astype(np.int32)
        return slots, np.concatenate([(n << _BUCKET_BITS) + (words >> (_SLOT_BITS + 1)) for n, words in taken])

    def discard_saved(self) -> None:
        """Remove all saved timers, none of which was loaded."""
        self.source.hide(MAX_TIMESTAMP)

    def hide_loaded(self, up_to: int) -> None:
        """Remove restored timers up to a time (inclusive), which have fired."""
        while self.take_due(up_to, self.size) is not None:
            pass
        self._log.freeze(self._state.index.view())  # the log has their tombstone already

    # --- snapshots --------------------------------------------------------------------------------------------------

    def freeze(self) -> FrozenTable:
        """Freeze the timers; those that fired since the last freeze become one tombstone."""
        return self.source.frozen(self.unsaved())

    def unsaved(self) -> tuple[FrozenChanges, ...]:
        """Return the unsaved changes, which count as saved then, and hide the saved timers that fired."""
        if self._log.fired > MIN_TIMESTAMP:
            self.source.hide(self._log.fired)
        changes = self._log.freeze(self._state.index.view())
        return () if changes is None else (changes,)

    def load(self, table: pa.Table) -> None:
        """Add restored timers, newest last."""
        batch, keys, hashes = keyed_batch(table, self.spec.key_schema)
        slots = self._state.upsert(keys, hashes)
        deleted = batch.column(DELETED).to_numpy(zero_copy_only=False)
        self._enter(slots, batch.column(NAMESPACE).to_numpy(), deleted)
        self._state.settle_load()

    @property
    def hot_bytes(self) -> int:
        """The bytes of the timers in memory."""
        return 8 * sum(bucket.words for bucket in self._buckets.values()) + self._log.nbytes

    # --- eviction ---------------------------------------------------------------------------------------------------

    def evict_keys(self, keys: KeyView, slots: I32) -> None:
        """Move the timers of slots to the cold store, and gather all unsaved changes."""
        if self.cold is None:
            return
        self.source.gather(self.unsaved(), self._state.policy.gathered_bytes)
        leaving = np.zeros(self._state.index.count, np.bool_)
        leaving[slots] = True
        numbers, words, edges = self._every_bucket()
        owners = (words >> 1) & _SLOT_MASK
        gone = leaving[owners]
        begins = np.repeat(np.array(numbers, np.int64) << _BUCKET_BITS, np.diff(edges))
        times = begins[gone] + (words[gone] >> (_SLOT_BITS + 1))
        self.cold.put(keys, owners[gone].astype(np.int32), times)
        self._keep(numbers, words[~gone], edges - np.append(0, np.cumsum(gone))[edges])

    # --- slots ------------------------------------------------------------------------------------------------------

    def mark_used(self, used: np.ndarray) -> None:
        """Set the slots that have a timer or an unsaved change."""
        _, words, _ = self._every_bucket()
        used[(words >> 1) & _SLOT_MASK] = True
        self._log.reduce()
        self._log.mark_used(used)

    def renumber(self, numbers: I32) -> None:
        """Renumber slots: slot s becomes `numbers[s]`; the order is kept, so buckets stay sorted."""
        buckets, words, edges = self._every_bucket()
        slots = numbers[(words >> 1) & _SLOT_MASK].astype(np.int64)
        self._keep(buckets, (words & ~np.int64(_SLOT_MASK << 1)) | (slots << 1), edges)
        self._log.renumber(numbers)

    def _every_bucket(self) -> tuple[list[int], I64, I64]:
        """Return the numbers of all buckets, the words of all, and the edges between those of two buckets."""
        numbers = sorted(self._buckets)
        words = [self._buckets[number].resolve() for number in numbers]
        edges = np.cumsum([0, *map(len, words)])
        return numbers, np.concatenate([np.empty(0, np.int64), *words]), edges

    def _keep(self, numbers: list[int], words: I64, edges: I64) -> None:
        """Replace the words of all buckets, given as `_every_bucket` returns them; empty ones are removed."""
        for number, first, stop in zip(numbers, edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if first == stop:
                del self._buckets[number]
            else:
                self._buckets[number].keep(words[first:stop])

    def _enter(self, slots: I32, times: I64, deleted: np.ndarray) -> None:
        if len(slots) == 0:
            return
        if self.cold is not None and deleted.any():
            self.cold.forget(self._state.index.view(), slots[deleted], times[deleted])
        numbers = times >> _BUCKET_BITS
        offsets = times & ((1 << _BUCKET_BITS) - 1)
        words = (offsets << (_SLOT_BITS + 1)) | (slots.astype(np.int64) << 1) | deleted
        low = int(numbers.min())
        if low == int(numbers.max()):
            self._bucket(low).add(words)
            return
        order = np.argsort(numbers, kind="stable")
        found, first = np.unique(numbers[order], return_index=True)
        for number, part in zip(found.tolist(), np.split(words[order], first[1:]), strict=True):
            self._bucket(number).add(part)

    def _bucket(self, number: int) -> _Bucket:
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = _Bucket()
        return bucket


def _take_count(words: I64, room: int, *, alone: bool) -> int:
    """Return how many timers to take: all timers of a time, or none.

    Only a time that alone has more than `room` timers is split, and then taken alone. So no taken timer belongs to a
    key with another taken timer, whose firing could delete a remaining one.
    """
    if len(words) <= room:
        return len(words)
    time = words[room] >> (_SLOT_BITS + 1)
    start = int(np.searchsorted(words, time << (_SLOT_BITS + 1)))
    return start or (room if alone else 0)
