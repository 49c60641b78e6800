"""`SessionTable`: a pane table whose panes are as long as the gap of session windows.

All rows of a key in one pane belong to one session, so adding rows is the same as for other windows. The panes of a
session are found when the watermark advances. An open session that would keep an old pane alive is moved into its
newest pane. So a session takes a few cells for any length. With a cold store, the least recently used keys are evicted
with all their sessions: one record per key, and an entry by the time it is due. Remote keys have timers. Owned by one
subtask thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.kernels.aggregates import merge
from penstock.kernels.aggregates import pages as kernels
from penstock.state.cells.hot_panes import CHUNK, Fired, cells_to_columns, columns_to_cells, overflow, rows_to_table
from penstock.state.cells.pane_memory import PaneCells
from penstock.state.cells.value_heap import ValueHeap
from penstock.state.keys.key_index import KeyIndex, columns_of
from penstock.state.log.segment_columns import NAMESPACE
from penstock.state.memory.slot_arrays import pieces, with_room
from penstock.state.panes.pane_table import PaneTable
from penstock.state.spill.cold_records import ColdTimers, DueTimers, KeyRows
from penstock.state.tables.key_space import find_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSource, FrozenTable
    from penstock.state.memory.budget import MemoryBudget
    from penstock.state.remote.range_fetcher import RangeFetcher
    from penstock.state.remote.remote_keys import RemoteKeys
    from penstock.state.spill.cold_records import SpillStore
    from penstock.state.tables.timer_table import TimerTable

#: Columns of a record before those of a cell: its due time, the time up to which it had fired, its pane.
_HEAD = 3


@dataclass(frozen=True, slots=True)
class SessionRule:
    """The gap, the words of a cell with its first and last time, and the time for which ended sessions are kept."""

    gap: int
    first_word: int
    last_word: int
    lateness: int = 0

    def due(self, rows: PaneCells, closed_to: int) -> I64:
        """Return the closed time at which each of these cells has to be in memory.

        Sessions whose last time is at most `closed_to` have fired. The result is above `closed_to` for cells whose work
        up to it is done.
        """
        last = rows.cells[:, self.last_word]
        if closed_to == MIN_TIMESTAMP:
            return last
        # ended sessions are kept for `lateness`; the rest of an open one until its pane has to be empty
        kept = np.where(last > closed_to - self.lateness, last, rows.panes + self.gap - 1) + self.lateness
        return np.where(last > closed_to, last, kept)


class ColdSessions:
    """The cells of sessions by key."""

    def __init__(self, spill_store: SpillStore, spec: PaneTableSpec, *, timed: bool) -> None:
        """Start without cold keys; unless `timed`, the table has timers for the keys that are due."""
        self._spec = spec
        self._store = spill_store
        self._packer = spill_store.add([*[pa.int64()] * _HEAD, *spec.value_types])
        self._due = ColdTimers(spill_store) if timed else None
        #: Keys that are evicted at a time: bytes take several times the memory of cells.
        self._piece = spill_store.limits.evicted_sessions

    def put(self, keys: KeyView, rows: PaneCells, due: I64, fired_to: I64) -> None:
        """Store the cells of keys that have none here, each with its due time, and the time up to which it fired."""
        order = np.lexsort((rows.panes, rows.slots, keys.hashes[rows.slots]))
        slots = rows.slots[order]
        firsts = np.flatnonzero(np.append(True, slots[1:] != slots[:-1])) if len(slots) else np.empty(0, np.int64)
        edges = np.append(firsts, len(slots))
        for piece in range(0, len(firsts), self._piece):
            heads = firsts[piece : piece + self._piece]
            stop = edges[min(piece + self._piece, len(firsts))]
            at = order[heads[0] : stop]
            counts = np.diff(np.append(heads, stop))
            least = np.minimum.reduceat(due[at], heads - heads[0])
            head = [np.repeat(least, counts), fired_to[at], rows.panes[at]]
            columns = [*map(pa.array, head), *cells_to_columns(self._spec, rows.cells[at])]
            self._store.put(keys, slots[heads], [self._packer.pack(KeyRows(counts, columns))])
            if self._due is not None:
                self._due.put(keys, slots[heads], least)

    def take(self, keys: KeyView, slots: I32, heap: ValueHeap) -> tuple[PaneCells, I64] | None:
        """Return and remove the cells of these distinct keys, and the time up to which each had fired.

        Values that cells refer to are put into `heap`.
        """
        taken = self._store.load(keys, slots)
        if taken is None:
            return None
        slots, parts = taken
        self._store.delete(keys, slots)
        rows = self._packer.unpack(*parts)
        if self._due is not None:
            firsts = np.cumsum(rows.counts) - rows.counts
            self._due.forget(keys, slots, rows.columns[0].to_numpy()[firsts])
        return self._cells_of(slots, rows, heap), rows.columns[1].to_numpy()

    def look_up(self, keys: KeyView, slots: I32, heap: ValueHeap) -> PaneCells | None:
        """Return the cells of these keys; `heap` as in `take`."""
        rows = self._store.look_up(keys, slots, self._packer)
        return None if rows is None else self._cells_of(slots, rows, heap)

    def hide(self, up_to: int, due: int) -> None:
        """Remove the cells of panes that start at `up_to` or before; keys with such cells are due by `due`."""
        for columns, hashes in () if self._due is None else self._due.keys_until(self._spec.key_schema, due):
            index = KeyIndex(self._spec.key_schema)
            index.upsert(columns, hashes)
            view = index.view()
            loaded = self._store.load(view, np.arange(index.count, dtype=np.int32))
            if loaded is None:
                continue
            slots, parts = loaded
            rows = self._packer.unpack(*parts)
            left = rows.columns[2].to_numpy() > up_to
            if left.all():
                continue
            counts = np.bincount(np.repeat(np.arange(len(slots)), rows.counts)[left], minlength=len(slots))
            kept = KeyRows(counts, [column.filter(pa.array(left)) for column in rows.columns])
            self._store.put(view, slots, [self._packer.pack(kept)])
            self._store.delete(view, slots[counts == 0])

    def take_due(self, closed_to: int, keys: int) -> DueTimers | None:
        """Return about `keys` due keys, the earliest first; None if none is due, or the table has the timers."""
        return None if self._due is None else self._due.take(self._spec.key_schema, closed_to, keys)

    def columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return rows of a segment as columns of records, with an unknown due time."""
        unknown = pa.array(np.full(batch.num_rows, MIN_TIMESTAMP, np.int64))
        own = [batch.column(name) for name, _ in self._spec.value_columns]
        return [*[unknown] * (_HEAD - 1), batch.column(NAMESPACE), *own]

    def _cells_of(self, slots: I32, rows: KeyRows, heap: ValueHeap) -> PaneCells:
        cells = columns_to_cells(self._spec, rows.columns[_HEAD:], heap)
        return PaneCells(np.repeat(slots, rows.counts), rows.columns[2].to_numpy(), cells)


#: Most due keys that are loaded together.
_DUE_KEYS = 65_536


class SessionTable(PaneTable):
    """The accumulators by key and session."""

    def __init__(
        self,
        source: FrozenSource[PaneTableSpec],
        budget: MemoryBudget,
        rule: SessionRule,
        stores: tuple[SpillStore | None, RemoteKeys | None],
    ) -> None:
        """Create an empty table; `stores` are those of evicted and of remote keys."""
        super().__init__(source, budget)
        self.rule = rule
        #: Lower bounds of the last times of open sessions, and of those that have yet to fire.
        self.least_last = self.least_open = MAX_TIMESTAMP
        #: Sessions with a last time up to this one have fired.
        self._closed_to = MIN_TIMESTAMP
        #: Panes that start before this were processed for the keys in memory.
        self._drop_to = MIN_TIMESTAMP
        self.cold, self.remote = stores
        #: With remote keys: a timer for each key, no later than its first session is due.
        self._timers: TimerTable | None = None
        self._cold_sessions = None
        if self.cold is not None:
            self._cold_sessions = ColdSessions(self.cold, self.spec, timed=self.remote is None)
        if self.remote is not None and self._cold_sessions is not None:
            self.remote.add(source, self._cold_sessions.columns)
        #: With timers, the earliest known one of each slot; without one, the end of time.
        self._due_at: I64 = np.empty(0, np.int64)
        #: With lateness, the time up to which the loaded sessions of each slot have fired; the end of time if all up to
        #: `closed_to` have.
        self._fired_to: I64 = np.empty(0, np.int64)

    @property
    def closed_to(self) -> int:
        """The time up to which sessions in memory have fired; set it after they have."""
        return self._closed_to

    @closed_to.setter
    def closed_to(self, time: int) -> None:
        self._closed_to = time
        self._fired_to[:] = MAX_TIMESTAMP

    def take_ended(self, closed_to: int) -> Iterator[Fired]:
        """Yield the merged sessions with a last time of at most `closed_to`, and remove them; exhaust it.

        Only for keys in memory. Afterwards no pane that ends by then has rows of them; `load_due` drops the panes
        after all due keys were processed.
        """
        rule, memory, keys = self.rule, self._hot.memory, self._hot.index.view()
        panes = memory.panes
        pages = memory.window_pages(panes)
        drop_below = (closed_to + 1) // rule.gap * rule.gap
        going = sum(p < drop_below for p in panes)
        numbers = np.array([rule.gap, closed_to, rule.first_word, rule.last_word, going], np.int64)
        room = max(CHUNK, len(panes) * kernels.PAGE_ROWS)
        slots, gone, kept = np.empty(room, np.int32), np.empty(room, np.int64), np.empty(room, np.int64)
        ended_cells = np.empty((room, self.spec.width), np.int64)
        kept_cells = np.empty((room, self.spec.width), np.int64)
        ended, opened = (slots, ended_cells, gone), (kept, kept_cells)
        state = np.array([0, 0, 0, 0, 0, MAX_TIMESTAMP], np.int64)
        while len(pages) and state[0] < pages.shape[1]:
            state[2:5] = 0
            count = merge.take_sessions(memory.cells, pages, (self.spec.ops, numbers), ended, opened, state)
            if state[1]:
                raise overflow("a session over several panes")
            memory.empty(gone[: state[3]])
            memory.rewrite(kept[: state[4]], kept_cells[: state[4]])
            if count:
                found = slots[:count].copy()
                yield Fired(keys.gather(found), keys.hashes[found], ended_cells[:count].copy())
        self.least_last = int(state[5])
        self._drop_to = max(self._drop_to, drop_below)

    def sessions(self, slots: I32 | None = None) -> tuple[I32, I64]:
        """Return every session of these keys (None: of all in memory), merged: its slot and its cell.

        Word 0 of a cell is the number of rows, as in `Fired`. The table does not change.
        """
        rule, memory, gap = self.rule, self._hot.memory, self.rule.gap
        slots = np.arange(self._hot.index.count, dtype=np.int32) if slots is None else slots
        lows, numbers = np.zeros(len(slots), np.int64), np.full(len(slots), -1, np.int64)
        owners: list[I64] = [np.empty(0, np.int64)]
        given: list[I64] = [np.empty((0, self.spec.width), np.int64)]
        targets: list[I64] = [np.empty(0, np.int64)]
        count = 0
        for pane in reversed(memory.panes):  # newest first: its cell may contain older panes
            cell = memory.find(slots, pane)
            there = np.flatnonzero((cell >= 0) & (memory.cells[cell, 0] > 1))
            cells = memory.cells[cell[there]]
            alone = (numbers[there] < 0) | (cells[:, rule.last_word] + gap < lows[there])
            fresh = there[alone]
            numbers[fresh] = count + np.arange(len(fresh))
            count += len(fresh)
            first = cells[:, rule.first_word]
            lows[there] = np.where(alone, first, np.minimum(lows[there], first))
            owners.append(fresh)
            given.append(cells)
            targets.append(numbers[there])
        merged = np.repeat(self.spec.initial[np.newaxis], count, axis=0)
        every = np.concatenate(given)
        if merge.merge_cells(merged, np.concatenate(targets), every, self.spec.ops):
            raise overflow("a session over several panes")
        merged[:, 0] >>= 1
        return slots[np.concatenate(owners)], merged

    def sessions_with(self, keys: KeyColumns, hashes: I64, times: I64) -> tuple[I32, I64]:
        """Return the sessions, in the form of `sessions`, that contain a row of one of these keys and times."""
        rule, slots = self.rule, self.upsert(keys, hashes).copy()
        owners, cells = self.sessions(np.unique(slots))
        count = len(owners)
        order = np.lexsort(
            (
                np.append(np.zeros(count, np.int8), np.ones(len(times), np.int8)),
                np.append(cells[:, rule.first_word], times),
                np.append(owners, slots),
            )
        )
        newest = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
        before = np.where(newest >= 0, order[newest], -1)[order >= count]  # the last session that starts before a row
        rows = order[order >= count] - count
        inside = before >= 0
        before, rows = before[inside], rows[inside]
        held = (owners[before] == slots[rows]) & (times[rows] <= cells[before, rule.last_word])
        found = np.unique(before[held])
        return owners[found], cells[found]

    def fired(self, slots: I32, cells: I64) -> Iterator[Fired]:
        """Yield sessions in chunks of at most 65 536."""
        keys = self._hot.index.view()
        for first in range(0, len(slots), CHUNK):
            piece = slots[first : first + CHUNK]
            yield Fired(keys.gather(piece), keys.hashes[piece], cells[first : first + CHUNK])

    def in_open_session(self, keys: KeyColumns, hashes: I64, times: I64) -> np.ndarray:
        """Return a mask of the rows that are in, or at most a gap from, an open session of their key."""
        rule, slots = self.rule, self.upsert(keys, hashes).copy()
        found = np.zeros(len(slots), np.bool_)
        cells = self._hot.memory.cells
        for pane in self._hot.memory.panes:
            cell = self._hot.memory.find(slots, pane)
            there = (cell >= 0) & (cells[cell, 0] > 1)
            first, last = cells[cell, rule.first_word], cells[cell, rule.last_word]
            found |= there & (times >= first - rule.gap) & (times <= last + rule.gap)
        return found

    # --- eviction ---------------------------------------------------------------------------------------------------

    @property
    def most_rows(self) -> int:
        """The most rows to pass to the table at a time."""
        return super().most_rows if self._cold_sessions is None else self._policy.batch_rows

    def load_due(self, closed_to: int) -> tuple[I32, I64] | None:
        """Evict keys if needed, then load keys that are due at `closed_to`; None if none is due.

        Loads as many keys as fit; process them, then call again. Return their slots, and for each the closed time at
        its eviction: its sessions with a last time up to that have fired.
        """
        due = None
        if self._cold_sessions is not None:
            self._check_memory()
            due = self._take_due(self._cold_sessions, closed_to, self._policy.most_incoming(_DUE_KEYS))
        if self.remote is not None:
            # keep fired sessions that are retained: the log does not say that they have fired
            self.remote.fetcher.held = due is not None and self.rule.lateness > 0
        if due is None:
            self.drop_below(self._drop_to)
            return None
        slots = np.unique(due)
        fired = self._fired_until(slots)
        for times in (self._due_at, self._fired_to):
            times[slots[slots < len(times)]] = MAX_TIMESTAMP
        return slots, fired

    def hide_loaded(self, up_to: int) -> None:
        """Drop restored panes that start at `up_to` or before, also of keys that have left memory."""
        super().hide_loaded(up_to)
        if self._cold_sessions is not None:
            self._cold_sessions.hide(up_to, up_to + self.rule.gap + self.rule.lateness)

    def _take_due(self, cold: ColdSessions, closed_to: int, most: int) -> I32 | None:
        """Return the slots of about `most` due keys, with their sessions in memory; None if none is due."""
        if self._timers is not None:
            found = self._timers.take_due(closed_to, most)
            return None if found is None else found[0]
        due = cold.take_due(closed_to, most)
        return None if due is None else self.upsert(due.keys, due.hashes)

    def look_up(self, keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
        """Return the cells of one key in its first `most` panes; see `state.store.StateTable`."""
        found = super().look_up(keys, hashes, most)
        if found.num_rows or self._cold_sessions is None:
            return found
        view, slots, _ = find_key(self, keys, hashes)
        heap = ValueHeap()
        rows = self._cold_sessions.look_up(view, slots, heap)
        if rows is None:
            return found
        first = np.argsort(rows.panes)[:most]
        return rows_to_table(self.spec, view, rows.chosen(first))

    def upsert(self, keys: KeyColumns, hashes: I64) -> I32:
        """Return the slot of every row; a key that is new to memory comes with its sessions."""
        known = self._hot.index.count
        slots = super().upsert(keys, hashes)
        count = self._hot.index.count
        if self._cold_sessions is not None:
            self._policy.lru.touch(slots, count)
            if count > known and self.remote is not None:
                self.remote.fetcher.ensure(self._hot.index.hashes[known:])
            if count > known:
                self._load_keys(self._cold_sessions, np.arange(known, count, dtype=np.int32))
        return slots

    @property
    def fetcher(self) -> RangeFetcher[Any] | None:
        """Fetches keys from the object store; None: they are in memory or on the local disk."""
        return None if self.remote is None else self.remote.fetcher

    def _load_keys(self, cold: ColdSessions, slots: I32) -> None:
        loaded = cold.take(self._hot.index.view(), slots, self.heap)
        if loaded is not None:
            rows, fired_to = loaded
            self._hot.memory.put(rows.slots, rows.panes, rows.cells, self._hot.index.count)
            if self.rule.lateness:
                self._fired_to = self._fitted(self._fired_to)
                self._fired_to[rows.slots] = fired_to
            least = int(rows.cells[:, self.rule.last_word].min())
            self.least_last, self.least_open = min(self.least_last, least), min(self.least_open, least)

    def _fired_until(self, slots: I32) -> I64:
        """Return the time up to which the sessions of each of these slots have fired."""
        if not self.rule.lateness:
            return np.full(len(slots), self._closed_to, np.int64)
        self._fired_to = self._fitted(self._fired_to)
        return np.minimum(self._fired_to[slots], self._closed_to)

    def _fitted(self, times: I64) -> I64:
        """Return times by slot with room for all slots; new ones have the end of time."""
        return with_room(times, self._hot.index.count, MAX_TIMESTAMP)

    # --- keys of the timers (`key_space.KeySpace`) ------------------------------------------------------------------

    @property
    def index(self) -> KeyIndex:
        """The keys in memory; replaced when slots are renumbered."""
        return self._hot.index

    def settle_load(self) -> None:
        """Do nothing: timers are not loaded in a restore, but when they are due."""

    # --- keys in the object store -----------------------------------------------------------------------------------

    def time_keys(self, timers: TimerTable) -> None:
        """Set the timers of remote keys, which use this table's slots; barriers freeze them after the table."""
        self._timers = timers

    def freeze(self) -> FrozenTable:
        """Freeze the table, with timers for the keys in memory, because a restore starts with no key in memory."""
        if self._timers is not None:
            rows = self._hot.memory.present()
            rows = rows.chosen(rows.cells[:, 0] > 1)
            self._register(self._timers, rows.slots, self.rule.due(rows, self._closed_to))
        return super().freeze()

    def _register(self, timers: TimerTable, slots: I32, due: I64) -> None:
        """Ensure that each of these slots has a timer that is due no later than `due`."""
        known = self._due_at = self._fitted(self._due_at)
        least = np.full(len(known), MAX_TIMESTAMP, np.int64)
        np.minimum.at(least, slots, due)
        new = np.flatnonzero(least < known).astype(np.int32)
        timers.change(new, least[new], np.zeros(len(new), np.bool_))
        known[new] = least[new]

    def scan_for_due(self) -> None:
        """Load every restored key once, for snapshots of backends without timers; it then gets one."""
        if self.remote is None:
            return
        for keys, hashes in self.remote.every_key():
            index = KeyIndex(self.spec.key_schema)
            index.upsert(keys, hashes)
            view = index.view()
            every = np.arange(index.count, dtype=np.int32)
            for piece in pieces(every, self._policy.most_incoming(_DUE_KEYS)):
                self.upsert(columns_of(view, piece), view.hashes[piece])
                self._check_memory()

    @property
    def hot_bytes(self) -> int:
        """The bytes of index and pages, without the timers."""
        return self._hot_bytes() - (0 if self._timers is None else self._timers.hot_bytes)

    def _hot_bytes(self) -> int:
        timers = 0 if self._timers is None else self._timers.hot_bytes
        return super()._hot_bytes() + self._policy.lru.nbytes + self._due_at.nbytes + self._fired_to.nbytes + timers

    def _check_memory(self) -> None:
        if self._cold_sessions is None:
            super()._check_memory()
            return
        full = self._is_full()
        while self._hot.index.count and full:
            keys, before = self._hot.index.count, self._hot_bytes()
            self._evict()
            held = self._hot_bytes()
            full = self._too_many(held)
            self._policy.record_evicted(keys - self._hot.index.count, before - held)
        self._report()

    def _too_many(self, hot_bytes: int) -> bool:
        return self._policy.full(hot_bytes, self._hot.index.count)

    @property
    def _all_in_memory(self) -> bool:
        return self._cold_sessions is None

    def _put_cold(self, rows: PaneCells, keep: np.ndarray) -> None:
        assert self._cold_sessions is not None  # noqa: S101 - else no key leaves memory
        rows = rows.chosen(rows.cells[:, 0] > 1)
        view, due = self._hot.index.view(), self.rule.due(rows, self._closed_to)
        self._cold_sessions.put(view, rows, due, self._fired_until(rows.slots))
        if self._timers is not None:
            self._register(self._timers, rows.slots, due)
            self._timers.source.gather(self._timers.unsaved(), self._policy.gathered_bytes)
            leaving = np.flatnonzero(~keep).astype(np.int32)
            self._timers.evict_keys(view, leaving[np.argsort(view.hashes[leaving])])

    def _mark_used(self, used: np.ndarray) -> None:
        super()._mark_used(used)
        if self._timers is not None:
            self._timers.mark_used(used)

    def _rebuild(self, keep: np.ndarray) -> None:
        kept = np.flatnonzero(keep).astype(np.int32)
        if self.cold is not None and self.remote is not None:  # records may have been fetched again for keys in memory
            rows, without = self._hot.memory.present(), ~keep
            without[rows.slots[rows.cells[:, 0] > 1]] = False
            self.cold.delete(self._hot.index.view(), np.flatnonzero(without).astype(np.int32))
        if self.rule.lateness and self._cold_sessions is not None:
            self._fired_to = self._fitted(self._fired_to)[kept]
        if self._timers is not None:
            self._due_at = self._fitted(self._due_at)[kept]
        super()._rebuild(keep)
        if self._timers is not None:
            numbers = np.full(len(keep), -1, np.int32)
            numbers[kept] = np.arange(len(kept), dtype=np.int32)
            self._timers.renumber(numbers)
