"""Sessions whose keys left memory: a key is one record in the cold store, and stands in the order of when it is due.

A key comes back with a row, or when the watermark closes a session of its or a pane that one of its sessions reaches
back to: from then on the pane's rows have to be in a newer one. What is here was saved for the next barrier before it
came. Used by `state.panes.session_table` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from penstock.core.elements import MIN_TIMESTAMP
from penstock.state.cells.pane_memory import Rows
from penstock.state.cells.pane_rows import table_to_rows
from penstock.state.cells.value_heap import ValueHeap, take_values
from penstock.state.spill.cold_records import ColdRecords
from penstock.state.spill.cold_timers import ColdTimers

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.keys.key_index import KeyView
    from penstock.state.spill.cold_records import ColdHome, Taken
    from penstock.state.spill.cold_timers import DueTimers

#: Columns of a record before those of a cell: when its key is due, what had been closed when it left, its pane.
_HEAD = 3


@dataclass(frozen=True, slots=True)
class SessionRule:
    """The gap, the words of a cell that hold its first and its last time, and how long ended sessions are kept."""

    gap: int
    first_word: int
    last_word: int
    lateness: int = 0

    def due(self, rows: Rows, closed_to: int) -> I64:
        """Return what the watermark has to close before each of these cells has to be in memory.

        Sessions whose last time is at most `closed_to` have fired; the result is above it wherever all of what that
        closes was done.
        """
        last = rows.cells[:, self.last_word]
        if closed_to == MIN_TIMESTAMP:
            return last
        # a session that ended is kept for a while; the rest of one that goes on, until its pane is to be empty
        kept = np.where(last > closed_to - self.lateness, last, rows.panes + self.gap - 1) + self.lateness
        return np.where(last > closed_to, last, kept)


@dataclass(frozen=True, slots=True)
class Returned:
    """Cells that came back, and what had been closed when each left."""

    rows: Rows
    closed_to: I64


class DueKeys(Protocol):
    """Keys that are not in memory, by when they are due; a key may be there more than once."""

    def put(self, keys: KeyView, slots: I32, times: I64) -> None:
        """Enter keys."""

    def forget(self, keys: KeyView, slots: I32, times: I64) -> None:
        """Take keys out that come back, if that can be done."""

    def take(self, key_schema: pa.Schema, until: int, limit: int) -> DueTimers | None:
        """Take about `limit` keys out that are due, those due first; None when none is."""


class ColdSessions:
    """Cells of sessions by key."""

    def __init__(self, home: ColdHome, spec: PaneTableSpec, due: DueKeys | None = None) -> None:
        """Nothing is cold yet; `due` knows when keys are, else the store."""
        self._spec = spec
        kinds = [spec.value_words.get(word, pa.int64()) for word in range(spec.width)]
        self.records = ColdRecords(home, [pa.int64()] * _HEAD + kinds)
        self._due = due or ColdTimers(home)
        #: Keys that leave memory at a time: as bytes they take several times what they take in a table.
        self._piece = home.limits.evicted_sessions

    def put(self, keys: KeyView, rows: Rows, due: I64, closed_to: int) -> None:
        """Take in the cells of keys that have none here, each with when it is due."""
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
            head = [np.repeat(least, counts), np.full(len(at), closed_to, np.int64), rows.panes[at]]
            self.records.put(keys, slots[heads], counts, [*map(pa.array, head), *self._of_cells(cells)])
            self._due.put(keys, slots[heads], least)

    def take(self, keys: KeyView, slots: I32, heap: ValueHeap) -> Returned | None:
        """Return the cells of these keys, each of which occurs once; they are here no more.

        What cells refer to is put into `heap`.
        """
        taken = self.records.take(keys, slots)
        if taken is None:
            return None
        firsts = np.cumsum(taken.counts) - taken.counts
        self._due.forget(keys, taken.slots, taken.columns[0].to_numpy()[firsts])
        return Returned(self._rows(taken, heap), taken.columns[1].to_numpy())

    def look_up(self, keys: KeyView, slots: I32, heap: ValueHeap) -> Rows | None:
        """Return the cells of these keys and leave them here; `heap` as in `take`."""
        taken = self.records.look_up(keys, slots)
        return None if taken is None else self._rows(taken, heap)

    def take_due(self, closed_to: int, keys: int) -> DueTimers | None:
        """Return about so many keys that are due, those due first; None when none is."""
        return self._due.take(self._spec.key_schema, closed_to, keys)

    def columns(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return rows of a segment as columns of records, of which it is not known when they are due."""
        heap = ValueHeap()
        _, _, panes, cells = table_to_rows(self._spec, pa.Table.from_batches([batch]), heap)
        head = [np.full(len(panes), MIN_TIMESTAMP, np.int64)] * (_HEAD - 1)
        return [*map(pa.array, (*head, panes)), *self._of_cells(cells)]

    def _of_cells(self, cells: I64) -> list[pa.Array]:
        """Return the words of cells as columns, and the values in place of those that refer to one."""
        kinds = self._spec.value_words
        return [
            take_values(words, kinds[k]) if k in kinds else pa.array(np.ascontiguousarray(words))
            for k, words in enumerate(cells.T)
        ]

    def _rows(self, taken: Taken, heap: ValueHeap) -> Rows:
        slots = np.repeat(taken.slots, taken.counts)
        words = [
            heap.put(column) if k in self._spec.value_words else column.to_numpy()
            for k, column in enumerate(taken.columns[_HEAD:])
        ]
        return Rows(slots, taken.columns[2].to_numpy(), np.ascontiguousarray(np.stack(words, axis=1)))
