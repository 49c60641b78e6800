"""Memory bounds and eviction of a table of one pane with a cold file.

The hot part of a table may take a third of its share of managed memory. The rest is for temporary data: copies of
frozen rows, encoding, larger arrays during growth, and the new table during an eviction. Rows are processed in batches
so small that none of these grows with the input batch or with the state. Called by `pane_table` in the owner's thread.
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
#: Batches for encoding have one part in this many of the rows: columns take several times the memory of cells.
_ENCODED_PART = 2
#: A batch has a row per this many bytes of managed memory.
_BYTES_PER_ROW = 1024
#: Bytes that eviction needs for each evicted key: slot, hash, position in the order and a copy.
_LEAVING_BYTES = 32


@dataclass(frozen=True, slots=True)
class Bounds:
    """The memory bounds of a table, from the budget it shares with others."""

    budget: MemoryBudget
    holder: str
    limits: StateLimits = PRODUCTION

    @property
    def piece(self) -> int:
        """The most rows to add or evict at a time."""
        return max(self.limits.piece_rows, self.budget.limit_bytes // _BYTES_PER_ROW)

    @property
    def encoded(self) -> int:
        """The most rows to encode at a time."""
        return max(1, self.piece // _ENCODED_PART)

    @property
    def hot_bytes(self) -> int:
        """The most bytes of keys and cells in memory."""
        return self.budget.share_of(self.holder) * _HOT[0] // _HOT[1]

    def full(self, hot: HotPanes, cold: ColdPanes, rows: int) -> bool:
        """Return whether keys have to be evicted before `rows` rows are added, all of which may be new keys."""
        count = hot.index.count
        if count > self.limits.hot_keys:
            return True
        return count >= self.piece and hot.bytes_with(count + rows) + cold.memory_bytes > self.hot_bytes

    def evict(self, hot: HotPanes, cold: ColdPanes, changes: FileRows) -> HotPanes:
        """Move the least recently used keys to the cold file, and their changed rows also to `changes`.

        No page may be frozen and uncopied. Return the table of the remaining keys.
        """
        # a large eviction reads and writes less of the file per key
        keep, keys = cold.recent(hot.index.count, self.limits.kept_rows_part), hot.index.view()
        kept, leaving = (np.flatnonzero(chosen).astype(np.int32) for chosen in (keep, ~keep))
        words = hot.spec.width + len(keys.columns) + 4
        beside = HotPanes(hot.spec, small=True).bytes_with(len(kept)) + self.piece * words * 8 * 2
        self.budget.work(
            f"{self.holder}/evict", max(beside, len(leaving) * _LEAVING_BYTES + self.piece * words * 8 * 4)
        )
        # in hash order, so that each batch is written to a separate stretch of the file
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
