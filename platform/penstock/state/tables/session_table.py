"""`SessionTable`: a pane table whose panes are as long as the gap of session windows.

All rows of a key in one pane belong to one session, so adding rows is the same as for other windows. The panes of a
session are found when the watermark advances. An open session that would keep an old pane alive is moved into its
newest pane. So a session takes a few cells for any length. Its keys are those of a `RowState`: full memory evicts the
least recently used ones with all their sessions, and with a timer for the time at which the first one is due. Owned by
one subtask thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.kernels.aggregates import merge
from penstock.kernels.aggregates import pages as kernels
from penstock.state.cells.pane_memory import (
    CHUNK,
    Fired,
    PaneCells,
    cells_to_columns,
    columns_to_cells,
    overflow,
    rows_to_table,
)
from penstock.state.cells.value_heap import ValueHeap
from penstock.state.log.segment_columns import NAMESPACE
from penstock.state.memory.slot_arrays import with_room
from penstock.state.tables.pane_table import FrozenPanes, PaneTable, merged_cells
from penstock.state.tiers.cold_records import KeyRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.log.frozen import FrozenSource, FrozenTable
    from penstock.state.tables.key_space import KeySpace
    from penstock.state.tables.timer_table import TimerTable


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


#: Columns of a record before those of a cell: the time of its key's timer, the time up to which it had fired, the panes
#: that were hidden before, its pane.
_HEAD = 4
#: Most due keys that are loaded together.
_DUE_KEYS = 65_536


class SessionTable(PaneTable):
    """The accumulators by key and session."""

    def __init__(
        self, source: FrozenSource[PaneTableSpec], state: KeySpace, timers: TimerTable, rule: SessionRule
    ) -> None:
        """Create an empty table whose keys are those of `state`; evicted ones have `timers`."""
        super().__init__(source, state)
        self.rule = rule
        #: Lower bounds of the last times of open sessions, and of those that have yet to fire.
        self.least_last = self.least_open = MAX_TIMESTAMP
        #: Sessions with a last time up to this one have fired.
        self._closed_to = MIN_TIMESTAMP
        #: Panes that start before this were processed for the keys in memory.
        self._drop_to = MIN_TIMESTAMP
        #: Panes that start at this time or before were hidden, also of keys that were evicted earlier.
        self._hidden_to = MIN_TIMESTAMP
        self._timers = timers
        self._packer = state.register(source, [*[pa.int64()] * _HEAD, *self.spec.value_types], self._columns)
        #: The earliest known timer of each slot; without one, the end of time.
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

    @property
    def loads_in_parts(self) -> bool:
        """See `PaneTable`: the timers of all keys are made when the operator opens."""
        return False

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
        for _, there, cells in memory.rows_of(slots):  # newest first: its cell may contain older panes
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
        rule, slots = self.rule, self._state.upsert(keys, hashes).copy()
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
        rule, slots = self.rule, self._state.upsert(keys, hashes).copy()
        found = np.zeros(len(slots), np.bool_)
        for _, there, cells in self._hot.memory.rows_of(slots):
            first, last = cells[:, rule.first_word], cells[:, rule.last_word]
            found[there] |= (times[there] >= first - rule.gap) & (times[there] <= last + rule.gap)
        return found

    # --- keys -------------------------------------------------------------------------------------------------------

    def load_due(self, closed_to: int) -> tuple[I32, I64] | None:
        """Evict keys if needed, then load keys that are due at `closed_to`; None if none is due.

        Loads as many keys as fit; process them, then call again. Return their slots, and for each the closed time at
        its eviction: its sessions with a last time up to that have fired.
        """
        due = None
        if self._state.cold is not None:
            self._settle()
            due = self._timers.take_due(closed_to, self._state.most_keys(_DUE_KEYS))
        if self._state.fetcher is not None:
            # keep fired sessions that are retained: the log does not say that they have fired
            self._state.fetcher.held = due is not None and self.rule.lateness > 0
        if due is None:
            self.drop_below(self._drop_to)
            return None
        slots = np.unique(due[0])
        fired = self._fired_until(slots)
        for times in (self._due_at, self._fired_to):
            times[slots[slots < len(times)]] = MAX_TIMESTAMP
        return slots, fired

    def scan_for_due(self) -> None:
        """Load every restored key once, for snapshots of backends without timers; it then gets one."""
        if self._state.fetcher is not None:
            for _ in self._state.every_key():
                self._settle()

    def _register(self, slots: I32, due: I64) -> None:
        """Ensure that each of these slots has a timer that is due no later than `due`."""
        known = self._due_at = self._fitted(self._due_at)
        least = np.full(len(known), MAX_TIMESTAMP, np.int64)
        np.minimum.at(least, slots, due)
        new = np.flatnonzero(least < known).astype(np.int32)
        self._timers.change(new, least[new], np.zeros(len(new), np.bool_), logged=self.source.remote)
        known[new] = least[new]

    def _fired_until(self, slots: I32) -> I64:
        """Return the time up to which the sessions of each of these slots have fired."""
        if not self.rule.lateness:
            return np.full(len(slots), self._closed_to, np.int64)
        self._fired_to = self._fitted(self._fired_to)
        return np.minimum(self._fired_to[slots], self._closed_to)

    def _fitted(self, times: I64) -> I64:
        """Return times by slot with room for all slots; new ones have the end of time."""
        return with_room(times, self.index.count, MAX_TIMESTAMP)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def freeze(self) -> FrozenTable:
        """Freeze the table; remote keys in memory get timers, because a restore starts with no key in memory."""
        if self.source.remote:
            rows = self._hot.memory.present()
            rows = rows.chosen(rows.cells[:, 0] > 1)
            self._register(rows.slots, self.rule.due(rows, self._closed_to))
        self.source.flush()  # changes of evicted keys are older than those in memory
        return super().freeze()

    def unsaved(self) -> tuple[FrozenPanes, ...]:
        """Return the unsaved changes, copied, which count as saved then."""
        rows = self._hot.memory.freeze(self.source.log.next_position(), self.index.view())
        self._hot.memory.copy_all_frozen()
        return () if rows is None else (FrozenPanes(self.spec, rows, batch_rows=self._limits.encoded_rows),)

    def hide_loaded(self, up_to: int) -> None:
        """Drop restored panes that start at `up_to` or before, also of keys that have left memory."""
        super().hide_loaded(up_to)
        self._hidden_to = max(self._hidden_to, up_to)

    def look_up(self, keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
        """Return the cells of one key in its first `most` panes; see `state.store.StateTable`."""
        view, slots, in_memory = self._state.find(keys, hashes)
        found = None if in_memory else self._state.evicted_rows(view, slots, self._packer)
        if found is None:
            return super().look_up(keys, hashes, most)
        heap = ValueHeap()  # has to outlive the cells
        rows = self._cells_from(slots, found, heap)
        return rows_to_table(self.spec, view, rows.chosen(np.argsort(rows.panes)[:most]))

    @property
    def hot_bytes(self) -> int:
        """The bytes of pages and values, without the keys."""
        hot = self._hot.memory.memory_bytes + self._hot.heap.memory_bytes
        return hot + self._due_at.nbytes + self._fired_to.nbytes

    # --- eviction ---------------------------------------------------------------------------------------------------

    def parts_at(self, slots: I32) -> list[bytes]:
        """Return the sessions of slots as parts of their keys' records; each key with any gets a timer."""
        owners, found = [np.empty(0, np.int64)], []
        for pane, there, cells in self._hot.memory.rows_of(slots):
            owners.append(there)
            found.append(PaneCells(slots[there], np.full(len(there), pane), cells))
        numbers = np.concatenate(owners)
        order = np.argsort(numbers, kind="stable")
        rows, numbers = merged_cells(found, self.spec.width).chosen(order), numbers[order]
        self._register(rows.slots, self.rule.due(rows, self._closed_to))
        head = (
            self._due_at[rows.slots],
            self._fired_until(rows.slots),
            np.full(len(numbers), self._hidden_to),
            rows.panes,
        )
        columns = [*map(pa.array, head), *cells_to_columns(self.spec, rows.cells)]
        return self._packer.pack(KeyRows(np.bincount(numbers, minlength=len(slots)), columns))

    def load_parts(self, slots: I32, parts: Sequence[bytes]) -> None:
        """Add the sessions of slots, which have none in memory, as parts of their keys' records."""
        found = self._packer.unpack(parts)
        self._state.note_changed(slots)  # their timers are registered again when they leave
        if not found.counts.any():
            return
        if self._timers.cold is not None and not self.source.remote:
            there = found.counts > 0
            firsts = (np.cumsum(found.counts) - found.counts)[there]
            self._timers.cold.forget(self.index.view(), slots[there], found.columns[0].to_numpy()[firsts])
        rows = self._cells_from(slots, found, self.heap)
        if len(rows.slots) == 0:
            return
        self._hot.memory.put(rows.slots, rows.panes, rows.cells, self.index.count)
        least = int(rows.cells[:, self.rule.last_word].min())
        self.least_last, self.least_open = min(self.least_last, least), min(self.least_open, least)
        if self.rule.lateness:
            self._fired_to = self._fitted(self._fired_to)
            self._fired_to[np.repeat(slots, found.counts)] = found.columns[1].to_numpy()

    def forget_rows(self, slots: I32) -> None:
        """Do nothing: `renumber`, which follows, leaves evicted keys out."""

    def _cells_from(self, slots: I32, rows: KeyRows, heap: ValueHeap) -> PaneCells:
        """Return the cells of slots from their records, without those hidden since they were stored."""
        cells = columns_to_cells(self.spec, rows.columns[_HEAD:], heap)
        hidden, panes = (column.to_numpy() for column in rows.columns[2:_HEAD])
        found = PaneCells(np.repeat(slots, rows.counts), panes, cells)
        return found.chosen((panes > self._hidden_to) | (hidden == self._hidden_to))

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return rows of a segment as columns of records, with an unknown due time."""
        unknown = pa.array(np.full(batch.num_rows, MIN_TIMESTAMP, np.int64))
        own = [batch.column(name) for name, _ in self.spec.value_columns]
        return [*[unknown] * (_HEAD - 1), batch.column(NAMESPACE), *own]

    # --- memory -----------------------------------------------------------------------------------------------------

    def renumber(self, numbers: I32) -> None:
        """Renumber slots: slot s becomes `numbers[s]`; numbers of unused and of evicted slots are negative."""
        kept = np.flatnonzero(numbers >= 0).astype(np.int32)
        self._due_at, self._fired_to = (
            with_room(times, len(numbers), MAX_TIMESTAMP)[kept] for times in (self._due_at, self._fired_to)
        )
        super().renumber(numbers)
