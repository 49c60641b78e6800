"""Sessions of evicted keys: one record per key in the cold store, and an entry by the time it is due.

Used by `state.panes.session_table` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MIN_TIMESTAMP
from penstock.state.cells.hot_panes import table_to_rows
from penstock.state.cells.pane_memory import PaneCells
from penstock.state.cells.value_heap import ValueHeap, take_values
from penstock.state.spill.cold_records import ColdRecords
from penstock.state.spill.cold_timers import ColdTimers, DueTimers

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.keys.key_index import KeyView
    from penstock.state.spill.cold_records import LoadedRows, SpillStore

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


@dataclass(frozen=True, slots=True)
class LoadedCells:
    """Loaded cells, and the time up to which each had fired when it was evicted."""

    rows: PaneCells
    fired_to: I64


class ColdSessions:
    """The cells of sessions by key."""

    def __init__(self, spill_store: SpillStore, spec: PaneTableSpec, *, timed: bool) -> None:
        """Start without cold keys; unless `timed`, the table has timers for the keys that are due."""
        self._spec = spec
        kinds = [spec.value_words.get(word, pa.int64()) for word in range(spec.width)]
        self.records = ColdRecords(spill_store, [pa.int64()] * _HEAD + kinds)
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
            cells = rows.cells[at]
            cells[:, 0] &= ~1
            head = [np.repeat(least, counts), fired_to[at], rows.panes[at]]
            self.records.put(keys, slots[heads], counts, [*map(pa.array, head), *self._of_cells(cells)])
            if self._due is not None:
                self._due.put(keys, slots[heads], least)

    def take(self, keys: KeyView, slots: I32, heap: ValueHeap) -> LoadedCells | None:
        """Return and remove the cells of these distinct keys.

        Values that cells refer to are put into `heap`.
        """
        taken = self.records.take(keys, slots)
        if taken is None:
            return None
        if self._due is not None:
            firsts = np.cumsum(taken.counts) - taken.counts
            self._due.forget(keys, taken.slots, taken.columns[0].to_numpy()[firsts])
        return LoadedCells(self._rows(taken, heap), taken.columns[1].to_numpy())

    def look_up(self, keys: KeyView, slots: I32, heap: ValueHeap) -> PaneCells | None:
        """Return the cells of these keys without removing them; `heap` as in `take`."""
        taken = self.records.look_up(keys, slots)
        return None if taken is None else self._rows(taken, heap)

    def take_due(self, closed_to: int, keys: int) -> DueTimers | None:
        """Return about `keys` due keys, the earliest first; None if none is due, or the table has the timers."""
        return None if self._due is None else self._due.take(self._spec.key_schema, closed_to, keys)

    def columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return rows of a segment as columns of records, with an unknown due time."""
        heap = ValueHeap()
        _, _, panes, cells = table_to_rows(self._spec, pa.Table.from_batches([batch]), heap)
        head = [np.full(len(panes), MIN_TIMESTAMP, np.int64)] * (_HEAD - 1)
        return [*map(pa.array, (*head, panes)), *self._of_cells(cells)]

    def _of_cells(self, cells: I64) -> list[pa.Array]:
        """Return the words of cells as columns, with values in place of references."""
        kinds = self._spec.value_words
        return [
            take_values(words, kinds[k]) if k in kinds else pa.array(np.ascontiguousarray(words))
            for k, words in enumerate(cells.T)
        ]

    def _rows(self, taken: LoadedRows, heap: ValueHeap) -> PaneCells:
        slots = np.repeat(taken.slots, taken.counts)
        words = [
            heap.put(column) if k in self._spec.value_words else column.to_numpy()
            for k, column in enumerate(taken.columns[_HEAD:])
        ]
        return PaneCells(slots, taken.columns[2].to_numpy(), np.ascontiguousarray(np.stack(words, axis=1)))
