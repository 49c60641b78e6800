"""The state of running aggregates and deduplication: a pane table with one pane that never closes, and time-to-live.

Owned by one subtask thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.kernels.aggregates import merge
from penstock.kernels.aggregates import running_kernels as running
from penstock.state.cells.pane_memory import overflow, run_input
from penstock.state.tables.pane_table import PaneTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.kernels.compiler.compile import I32, I64, U8
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import AccumulatorInput, PaneTableSpec
    from penstock.state.log.frozen import FrozenSegment, FrozenSource
    from penstock.state.log.ttl import Ttl
    from penstock.state.tables.key_space import KeySpace
    from penstock.state.tiers.remote_panes import ColdPaneStore


class RunningTable(PaneTable):
    """The accumulators by key."""

    def __init__(
        self,
        source: FrozenSource[PaneTableSpec],
        state: KeySpace,
        cold: ColdPaneStore | None = None,
        ttl: Ttl | None = None,
    ) -> None:
        """Create an empty table; `load` fills it during a restore. `ttl` is given if the spec says that rows expire."""
        source.ttl = self._ttl = ttl
        super().__init__(source, state, cold)
        #: Rows that have become dirty since the last freeze.
        self._changed = 0
        self._zeros = np.zeros(0, np.int64)
        #: Memory that the words of the last result refer to.
        self._answered: tuple[I64, ...] = ()

    def batches(self, data: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Start a batch: yield its rows in slices that the table takes at a time; add each before the next."""
        if self._ttl is not None:
            self._ttl.clock.tick()
        done = 0
        while done < data.num_rows:
            part = data.slice(done, self.most_rows)
            yield part
            done += part.num_rows

    def run(self, keys: KeyColumns, hashes: I64, inputs: Sequence[AccumulatorInput | None]) -> I64:
        """Add a batch as `update` does, into the one pane; return the words after each row: `[word, row]`.

        Words that refer to strings and the like are valid until the next call.

        Raises:
            PenstockError: as `update`.
        """
        cell = self._cells_of_one_pane(keys, hashes)
        self._stamp(cell)
        words = np.empty((self.spec.width, len(cell)), np.int64)
        self._changed += int(running.run_rows(self._hot.memory.cells, cell, words[0]))
        for accumulator, word, values in zip(self.spec.accumulators, self.spec.words, inputs, strict=True):
            if values is not None and run_input(accumulator, (self._hot.memory, words), word, cell, values):
                raise overflow(accumulator.name)
        self._answered = self.heap.pinned
        self._settle()
        return words

    def keep(self, keys: KeyColumns, hashes: I64, order: I64, *, last: bool) -> U8:
        """Return a mask of the rows that replace their key's row; the one accumulator is the kept row's order.

        Raises:
            PenstockError: the state does not fit the managed memory (hashmap backend).
        """
        cell = self._cells_of_one_pane(keys, hashes)
        kept = np.empty(len(cell), np.uint8)
        op = merge.LAST if last else merge.FIRST
        self._changed += int(running.keep_rows(self._hot.memory.cells, op, cell, order, kept))
        if self._ttl is not None:
            self._stamp(cell[kept.view(np.bool_)])
        self._settle()
        return kept

    def _freeze_dirty(self) -> FrozenSegment | None:
        segment = super()._freeze_dirty()
        self._changed = 0
        return segment

    def _cells_of_one_pane(self, keys: KeyColumns, hashes: I64) -> I64:
        rows = len(hashes)
        self._make_room(rows)
        if rows > len(self._zeros):
            self._zeros = np.zeros(max(rows, 2 * len(self._zeros)), np.int64)
        cell, cells = self._cells_of(keys, hashes, self._zeros[:rows]), self._hot.memory.cells
        if self._ttl is not None:
            self._reset(cells, np.unique(self._expired(self._ttl, cell)))
        return cell

    def _reset(self, cells: I64, at: np.ndarray) -> None:
        """Remove rows from cells, which stay changed or unchanged; the next row of a key is added to these words."""
        changed = cells[at, 0] & 1
        cells[at] = self.spec.initial
        cells[at, 0] = changed

    def _stamp(self, cell: I64) -> None:
        """Set the current time as the last write of these cells, in their last word."""
        if self._ttl is not None:
            self._hot.memory.cells[cell, -1] = self._ttl.clock.now

    def _expired(self, ttl: Ttl, cell: I64) -> I64:
        """Return the expired ones of these cells."""
        cells = self._hot.memory.cells
        found: I64 = cell[(cells[cell, -1] <= ttl.deadline) & (cells[cell, 0] > 1)]
        return found

    def _restored(self, cells: I64) -> None:
        if self._ttl is not None:
            cells[:, -1] = self._ttl.clock.restored(cells[:, -1])
            if self.cold is not None:  # `remove_expired` does not reach cold rows
                self._reset(cells, cells[:, -1] <= self._ttl.deadline)

    def remove_expired(self, slots: I32) -> None:
        """Remove the expired rows of these slots in memory; cold ones stay until their key has a row."""
        if self._ttl is not None and self.cold is None:
            cell = self._hot.memory.find(slots, 0)
            self._hot.memory.empty(self._expired(self._ttl, cell[cell >= 0]))

    def _most_changed(self) -> bool:
        return 2 * self._changed >= self.index.count and self._changed > 0
