"""How a table of one pane with a cold file stays within managed memory: what it may hold, and leaving memory in pieces.

Of a slot's managed memory the hot part of a table gets a third. The rest is for what comes beside it for a while:
copies of frozen rows until they are durable, encoding them, larger arrays while it grows, and the new table while keys
are evicted. Pieces of rows are so small that none of these grows with the batch or with the state. Called by
`pane_table` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.kernels.rows.order import hash_order
from penstock.state.cells.hot_panes import HotPanes
from penstock.state.memory.limits import PRODUCTION, StateLimits

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32
    from penstock.state.keys.key_index import KeyView
    from penstock.state.memory.budget import MemoryBudget
    from penstock.state.spill.cold_file import FileRows
    from penstock.state.spill.cold_panes import ColdPanes

_HOT = (1, 3)
#: Of a piece, so many rows are encoded at a time: as columns they take several times what they take as cells.
_ENCODED_PART = 2
#: A piece has a row for so many bytes of managed memory.
_BYTES_PER_ROW = 1024
#: Bytes that evicting takes for each key that leaves: its slot, its hash, its place in order and a copy.
_LEAVING_BYTES = 32


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a table may hold, from the budget it shares with others."""

    budget: MemoryBudget
    holder: str
    limits: StateLimits = PRODUCTION

    @property
    def piece(self) -> int:
        """Most rows to be taken in or evicted at a time."""
        return max(self.limits.piece_rows, self.budget.limit_bytes // _BYTES_PER_ROW)

    @property
    def encoded(self) -> int:
        """Most rows to be encoded at a time."""
        return max(1, self.piece // _ENCODED_PART)

    @property
    def hot_bytes(self) -> int:
        """Most bytes of keys and cells in memory."""
        return self.budget.share_of(self.holder) * _HOT[0] // _HOT[1]

    def full(self, hot: HotPanes, cold: ColdPanes, rows: int) -> bool:
        """Whether keys have to leave before so many rows are taken in, all of which may be new keys."""
        count = hot.index.count
        if count > self.limits.hot_keys:
            return True
        return count >= self.piece and hot.bytes_with(count + rows) + cold.memory_bytes > self.hot_bytes

    def evict(self, hot: HotPanes, cold: ColdPanes, changes: FileRows) -> HotPanes:
        """Move the keys that were not touched for longest to the cold file, changed rows to `changes` too.

        Nothing may be frozen and uncopied. Returns the table of those that stay.
        """
        # the more leave together, the less of the file is read and written for each
        keep, keys = cold.recent(hot.index.count, self.limits.kept_rows_part), hot.index.view()
        kept, leaving = (np.flatnonzero(chosen).astype(np.int32) for chosen in (keep, ~keep))
        words = hot.spec.width + len(keys.columns) + 4
        beside = HotPanes(hot.spec, small=True).bytes_with(len(kept)) + self.piece * words * 8 * 2
        self.budget.work(
            f"{self.holder}/evict", max(beside, len(leaving) * _LEAVING_BYTES + self.piece * words * 8 * 4)
        )
        # by ranges of the hash, so that each piece is written to a stretch of the file of its own
        self._write_out(hot, keys, leaving[hash_order(keys.hashes[leaving])], (cold, changes))
        stays = hot.rebuilt_in_pieces(kept, self.piece)
        cold.moved(kept)
        self.budget.work(f"{self.holder}/evict", 0)
        return stays

    def _write_out(self, hot: HotPanes, keys: KeyView, slots: I32, files: tuple[ColdPanes, FileRows]) -> None:
        cold, changes = files
        for first in range(0, len(slots), self.piece):
            rows = hot.rows_at(slots[first : first + self.piece])
            changed = (rows.cells[:, 0] & 1) == 1
            changes.put(keys, rows.chosen(changed))
            cold.put(keys, rows)
