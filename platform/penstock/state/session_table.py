"""`SessionTable`: a pane table whose panes are as long as the gap of session windows.

Rows of one pane are always of one session, so adding rows is what it is for any window; which panes of a key belong
together is found when the watermark advances. An open session that would keep an old pane alive is moved into its
newest pane, so a session takes a few cells however long it lasts. Owned by one subtask thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.elements import MAX_TIMESTAMP
from penstock.kernels import merge
from penstock.kernels import pages as kernels
from penstock.state.hot import CHUNK, Fired, overflow
from penstock.state.pane_table import PaneTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kernels.columns import KeyColumns
    from penstock.kernels.compile import I32, I64


@dataclass(frozen=True, slots=True)
class SessionRule:
    """The gap, and the words of a cell that hold its first and its last time."""

    gap: int
    first_word: int
    last_word: int


class SessionTable(PaneTable):
    """Accumulators by key and session."""

    #: No open session's last time is below this.
    least_last = MAX_TIMESTAMP

    def take_ended(self, rule: SessionRule, closed_to: int) -> Iterator[Fired]:
        """Yield the sessions whose last time is at most `closed_to`, merged, and forget them; to be exhausted.

        Afterwards no pane that ends by then holds anything.
        """
        memory, keys = self._hot.memory, self._hot.index.view()
        panes = memory.panes
        pages = memory.window_pages(panes)
        drop_below = (closed_to + 1) // rule.gap * rule.gap
        going = sum(p < drop_below for p in panes)
        numbers = np.array([rule.gap, closed_to, rule.first_word, rule.last_word, going], np.int64)
        room = max(CHUNK, len(panes) * kernels.PAGE_ROWS)
        slots, gone, kept = np.empty(room, np.int32), np.empty(room, np.int64), np.empty(room, np.int64)
        ended_cells = np.empty((room, self.spec.width), np.int64)
        kept_cells = np.empty((room, self.spec.width), np.int64)
        ended = (slots, ended_cells, ended_cells.view(np.float64), gone)
        opened = (kept, kept_cells, kept_cells.view(np.float64))
        state = np.array([0, 0, 0, 0, 0, MAX_TIMESTAMP], np.int64)
        while len(pages) and state[0] < pages.shape[1]:
            state[2:5] = 0
            views = (memory.cells, memory.float_cells)
            count = merge.take_sessions(views, pages, (self.spec.ops, numbers), ended, opened, state)
            if state[1]:
                raise overflow("a session over several panes")
            self._empty(gone[: state[3]])
            memory.rewrite(kept[: state[4]], kept_cells[: state[4]])
            if count:
                found = slots[:count].copy()
                yield Fired(keys.gather(found), keys.hashes[found], ended_cells[:count].copy())
        self.least_last = int(state[5])
        self.drop_below(drop_below)

    def sessions(self, rule: SessionRule, slots: I32 | None = None) -> tuple[I32, I64]:
        """Return every session of these keys (None: of all), merged: its slot and its cell; nothing is changed.

        Word 0 of a cell is the number of rows, as in `Fired`.
        """
        memory, gap = self._hot.memory, rule.gap
        slots = np.arange(self._hot.index.count, dtype=np.int32) if slots is None else slots
        lows, numbers = np.zeros(len(slots), np.int64), np.full(len(slots), -1, np.int64)
        owners: list[I64] = [np.empty(0, np.int64)]
        given: list[I64] = [np.empty((0, self.spec.width), np.int64)]
        targets: list[I64] = [np.empty(0, np.int64)]
        count = 0
        for pane in reversed(memory.panes):  # the newest first, as its cell may have taken up older ones
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
        views = (merged, merged.view(np.float64))
        if merge.merge_cells(views, np.concatenate(targets), (every, every.view(np.float64)), self.spec.ops):
            raise overflow("a session over several panes")
        merged[:, 0] >>= 1
        return slots[np.concatenate(owners)], merged

    def sessions_with(self, keys: KeyColumns, hashes: I64, times: I64, rule: SessionRule) -> tuple[I32, I64]:
        """Return the sessions, as `sessions` does, that hold a row of one of these keys and times."""
        slots = self._hot.index.upsert(keys, hashes).copy()
        owners, cells = self.sessions(rule, np.unique(slots))
        count = len(owners)
        order = np.lexsort(
            (
                np.append(np.zeros(count, np.int8), np.ones(len(times), np.int8)),
                np.append(cells[:, rule.first_word], times),
                np.append(owners, slots),
            )
        )
        newest = np.maximum.accumulate(np.where(order < count, np.arange(len(order)), -1))
        before = np.where(newest >= 0, order[newest], -1)[order >= count]  # the session that begins last before a row
        rows = order[order >= count] - count
        inside = before >= 0
        before, rows = before[inside], rows[inside]
        held = (owners[before] == slots[rows]) & (times[rows] <= cells[before, rule.last_word])
        found = np.unique(before[held])
        return owners[found], cells[found]

    def fired(self, slots: I32, cells: I64) -> Iterator[Fired]:
        """Yield sessions in pieces of at most 65 536."""
        keys = self._hot.index.view()
        for first in range(0, len(slots), CHUNK):
            piece = slots[first : first + CHUNK]
            yield Fired(keys.gather(piece), keys.hashes[piece], cells[first : first + CHUNK])

    def hashes(self, slots: I32) -> I64:
        """Return the key hashes of slots."""
        found: I64 = self._hot.index.view().hashes[slots]
        return found

    def touching(self, keys: KeyColumns, hashes: I64, times: I64, rule: SessionRule) -> np.ndarray:
        """Return which rows lie in, or at most a gap from, an open session of their key."""
        slots = self._hot.index.upsert(keys, hashes).copy()
        found = np.zeros(len(slots), np.bool_)
        cells = self._hot.memory.cells
        for pane in self._hot.memory.panes:
            cell = self._hot.memory.find(slots, pane)
            there = (cell >= 0) & (cells[cell, 0] > 1)
            first, last = cells[cell, rule.first_word], cells[cell, rule.last_word]
            found |= there & (times >= first - rule.gap) & (times <= last + rule.gap)
        return found

    def _empty(self, cell: I64) -> None:
        """Forget single cells; the next segment says so."""
        blank = np.repeat(self.spec.initial[np.newaxis], len(cell), axis=0)
        blank[:, 0] = 1
        self._hot.memory.rewrite(cell, blank)
