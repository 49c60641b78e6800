"""Time-to-live of the rows of a table with one pane: the last word of a cell is the time of its last write.

An expired row starts empty at the next row of its key; a sweep after every batch removes expired rows in steps. Called
by `PaneTable`, in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.pane_memory import PaneMemory
    from penstock.state.log.ttl import Ttl

#: Keys that a sweep checks after every batch, and at a barrier.
SWEEP, SWEEP_AT_FREEZE = 1024, 65_536


class PaneAges:
    """The ages of one table's rows."""

    def __init__(self, ttl: Ttl, spec: PaneTableSpec) -> None:
        """Use the layout `spec` of the table."""
        self._ttl = ttl
        self._initial = spec.initial
        self._word = spec.width - 1
        self._swept = 0

    def renew(self, memory: PaneMemory, cell: I64) -> None:
        """Reset the expired ones of these cells, which are about to be written, to empty cells."""
        cells = memory.cells
        due = np.unique(cell[(cells[cell, self._word] <= self._ttl.deadline) & (cells[cell, 0] > 1)])
        if len(due):
            changed = cells[due, 0] & 1
            cells[due] = self._initial
            cells[due, 0] = changed

    def stamp(self, memory: PaneMemory, cell: I64) -> None:
        """Set the current time as the last write of these cells."""
        memory.cells[cell, self._word] = self._ttl.clock.now

    def restored(self, cells: I64) -> None:
        """Cap the restored times of these rows, and advance the clock to the newest."""
        cells[:, self._word] = self._ttl.clock.restored(cells[:, self._word])

    def leave_out(self, cells: I64) -> None:
        """Mark the expired ones of these restored rows as deleted."""
        cells[cells[:, self._word] <= self._ttl.deadline, 0] = 0

    def sweep(self, memory: PaneMemory, keys: int, limit: int) -> None:
        """Check the next `limit` of `keys` keys, in turn, and remove expired rows."""
        first = self._swept if self._swept < keys else 0
        self._swept = min(first + limit, keys)
        slots: I32 = np.arange(first, self._swept, dtype=np.int32)
        cell = memory.find(slots, 0)
        cell = cell[cell >= 0]
        due = cell[(memory.cells[cell, self._word] <= self._ttl.deadline) & (memory.cells[cell, 0] > 1)]
        blank = np.repeat(self._initial[np.newaxis], len(due), axis=0)
        blank[:, 0] = 1
        memory.rewrite(due, blank)
