"""Rows of a pane table out of its pages: frozen ones, cold ones, and the merge of hot and cold ones.

Called by `state.panes.pane_table` in the owner's thread; frozen rows are encoded in any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.kernels.aggregates import cold_cells as kernels
from penstock.kernels.rows.row_order import hash_order
from penstock.state.cells.hot_panes import CHUNK, Fired, HotPanes, rows_to_table, rows_to_tables
from penstock.state.cells.pane_memory import PaneCells
from penstock.state.cells.value_heap import ValueHeap
from penstock.state.keys.key_index import KeyIndex, columns_of
from penstock.state.log.segment_file import inside
from penstock.state.memory.limits import PRODUCTION
from penstock.state.memory.slot_arrays import pieces, with_room

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.pane_memory import FrozenCells
    from penstock.state.keys.key_index import KeyView
    from penstock.state.memory.budget import EvictionPolicy
    from penstock.state.remote.remote_panes import ColdPaneStore
    from penstock.state.spill.cold_panes import ColdFileStore

#: Bytes that eviction needs for each evicted key: slot, hash, position in the order and a copy.
_LEAVING_BYTES = 32


class ColdPanes:
    """The cold part of one table, and which slots may have rows in it."""

    def __init__(self, rows: ColdPaneStore) -> None:
        """Start without cold rows."""
        #: The cold rows; changes of those that are put there are already in a segment, or in the file of changes.
        self.rows = rows
        self._maybe = np.zeros(0, np.uint8)
        self._known = 0

    @property
    def memory_bytes(self) -> int:
        """The bytes of the slot table."""
        return int(self._maybe.nbytes)

    def note_slots(self, count: int) -> None:
        """Record new slots, up to `count`: they may have cold rows if the store has any."""
        self._maybe = with_room(self._maybe, count)
        self._maybe[self._known : count] = 1 if self.rows.panes else 0
        self._known = count

    def moved(self, kept: I32) -> None:
        """Adopt the numbering of a rebuilt table: only these slots, in this order."""
        self._maybe = self._maybe[kept]
        self._known = len(kept)

    def fetch(self, keys: KeyView, requested: tuple[I32, I64], target: tuple[I64, I64], heap: ValueHeap) -> None:
        """Load the cold rows of (slots, panes) into the new cells of `target` = (cells, cell of each).

        Values that they refer to are put into `heap`.
        """
        if not self.rows.panes:
            return
        slots, panes = requested
        cells, cell = target
        out = np.empty(len(slots), np.int64)
        rows = out[: kernels.absent_rows(cells, cell, slots, self._maybe, out)]
        if len(rows):
            self.rows.fetch(keys, (slots[rows], panes[rows]), (cells, cell[rows]), heap)


def evict_to_file(policy: EvictionPolicy, hot: HotPanes, cold: ColdPanes, changes: ColdFileStore) -> HotPanes:
    """Move the least recently used keys to the cold file, and their changed rows also to `changes`.

    No page may be frozen and uncopied. Return the table of the remaining keys. Cells go to the file as they are, a
    batch at a time: converted to rows of a segment first, they would take several times the memory.
    """
    keep, keys, batch = policy.kept_mask(hot.index.count), hot.index.view(), policy.batch_rows
    kept, leaving = (np.flatnonzero(chosen).astype(np.int32) for chosen in (keep, ~keep))
    words = hot.spec.width + len(keys.columns) + 4
    beside = HotPanes(hot.spec, small=True).bytes_with(len(kept)) + batch * words * 8 * 2
    working = max(beside, len(leaving) * _LEAVING_BYTES + batch * words * 8 * 4)
    policy.budget.work(f"{policy.holder}/evict", working)
    # in hash order, so that each batch is written to a separate stretch of the file
    leaving = leaving[hash_order(keys.hashes[leaving])]
    for piece in pieces(leaving, batch):
        rows = hot.rows_at(piece)
        changes.put(keys, rows.chosen((rows.cells[:, 0] & 1) == 1))
        cold.rows.put(keys, rows)
    stays = hot.rebuilt(kept, batch)
    cold.moved(kept)
    policy.lru.moved(kept)
    policy.budget.work(f"{policy.holder}/evict", 0)
    return stays


#: Cold rows that are merged with hot ones at a time.
_PART_ROWS = 200_000


def fire_with_cold(hot: HotPanes, cold: ColdPaneStore, panes: list[int], owned: HashRange) -> Iterator[Fired]:
    """Yield fired keys as `HotPanes.fire` does, with cold rows, merging one hash range at a time."""
    keys, rows = hot.index.view(), hot.memory.present()
    hashes = keys.hashes[rows.slots]
    of_window = np.isin(rows.panes, np.array(panes, np.int64)) & (rows.cells[:, 0] > 1)
    cold_panes = sorted(set(panes).intersection(cold.panes))
    for part in owned.split(-(-sum(map(cold.rows_of, cold_panes)) // _PART_ROWS)):
        merged = HotPanes(hot.spec)
        for pane in cold_panes:
            for piece in cold.scan(pane, part, merged.heap):
                merged.put(*piece)
        chosen = np.nonzero(of_window & (hashes >= part.low) & (hashes <= part.high))[0]
        for at in pieces(chosen, CHUNK):
            merged.put(columns_of(keys, rows.slots[at]), hashes[at], rows.panes[at], rows.cells[at])
        yield from merged.fire(panes)


def pane_rows(table: tuple[HotPanes, ColdPaneStore | None], keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
    """Return the rows of one key in the first `most` panes of a table; rows in memory override cold ones."""
    hot, cold = table
    found: dict[int, I64] = {}
    slots = hot.index.find(keys, hashes)
    for pane in hot.memory.panes if len(slots) else ():
        cell = int(hot.memory.find(slots, pane)[0])
        if cell >= 0 and hot.memory.cells[cell, 0]:
            found[pane] = hot.memory.cells[cell].copy()
    lookup_index, heap = KeyIndex(hot.spec.key_schema), ValueHeap()
    lookup_index.upsert(keys, hashes)
    for pane in [] if cold is None else cold.panes:
        if cold is not None and pane not in found:
            row, key = np.zeros((1, hot.spec.width), np.int64), (np.zeros(1, np.int32), np.array([pane], np.int64))
            cold.fetch(lookup_index.view(), key, (row, np.zeros(1, np.int64)), heap)
            found[pane] = row[0]
    panes = sorted(pane for pane, words in found.items() if words[0] > 1)[:most]
    if not panes:
        return hot.spec.segment_schema.empty_table()
    cells = np.stack([found[pane] for pane in panes])
    return rows_to_table(
        hot.spec, lookup_index.view(), PaneCells(np.zeros(len(panes), np.int32), np.array(panes, np.int64), cells)
    )


@dataclass(frozen=True, slots=True)
class FrozenPanes:
    """The frozen cells of a pane table; their pages may still have to be copied."""

    spec: PaneTableSpec
    rows: FrozenCells
    #: Memory of variable-length values, kept only to keep it alive.
    pinned: tuple[I64, ...] = ()
    #: Rows of a batch if memory is not bounded: its columns stay in the cache, and the next batch reuses their memory.
    batch_rows: int = PRODUCTION.encoded_rows

    @property
    def memory_bytes(self) -> int:
        """The bytes of the copies."""
        return self.rows.memory_bytes

    @property
    def ordered_rows(self) -> int:
        """The number of all copied rows."""
        return sum(len(part.slots) for part in self.rows.copied)

    def whole(self) -> Iterator[pa.Table]:
        """Yield the cells as columns of a segment, in tables of `batch_rows`."""
        self._check_copied()
        merged = merged_cells(self.rows.copied, self.spec.width)
        return rows_to_tables(self.spec, self.rows.keys, merged, self.batch_rows)

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """Yield the cells as columns of a segment, sorted by hash, `rows` at a time."""
        self._check_copied()
        parts = self.rows.copied
        slots = np.concatenate([np.empty(0, np.int32), *(p.slots for p in parts)])
        order = hash_order(self.rows.keys.hashes[slots])  # the array of hashes is freed again
        chosen = np.zeros(len(order), np.bool_)
        for piece in pieces(order, rows):
            chosen[piece] = True
            yield rows_to_table(self.spec, self.rows.keys, _chosen_of(parts, chosen, self.spec.width))
            chosen[piece] = False

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the copied cells in some hash ranges; uncopied ones are unchanged in the table's memory."""
        for part in tuple(self.rows.copied):
            found = inside(self.rows.keys.hashes[part.slots], ranges)
            if found.any():
                yield rows_to_table(self.spec, self.rows.keys, part.chosen(found))

    def _check_copied(self) -> None:
        if self.rows.left:
            left = self.rows.left
            raise RuntimeError(f"{left} frozen pages are not copied yet: call copy_pages until it returns True")


def _chosen_of(parts: list[PaneCells], chosen: NDArray[np.bool_], width: int) -> PaneCells:
    """Return the chosen rows of several parts, in their order there."""
    found, first = [], 0
    for part in parts:
        found.append(part.chosen(np.flatnonzero(chosen[first : first + len(part.slots)])))
        first += len(part.slots)
    return merged_cells(found, width)


def merged_cells(parts: list[PaneCells], width: int) -> PaneCells:
    """Return the rows of several parts, in order."""
    if len(parts) == 1:
        return parts[0]
    return PaneCells(
        np.concatenate([np.empty(0, np.int32), *(p.slots for p in parts)]),
        np.concatenate([np.empty(0, np.int64), *(p.panes for p in parts)]),
        np.concatenate([np.empty((0, width), np.int64), *(p.cells for p in parts)]),
    )


_WHOLE_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class FrozenCold:
    """Rows of a file that is no longer written, each key once (`frozen.FrozenContent`, `frozen.BatchedContent`)."""

    spec: PaneTableSpec
    rows: ColdFileStore
    owned: HashRange

    @property
    def memory_bytes(self) -> int:
        """Return 0: the rows are on disk."""
        return 0

    @property
    def ordered_rows(self) -> int:
        """Return 0: the rows are in order."""
        return 0

    def whole(self) -> Iterator[pa.Table]:
        """Yield the rows as columns of a segment, sorted by hash."""
        return self.tables(_WHOLE_ROWS)

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows in some hash ranges."""
        for wanted in ranges:
            part = wanted.intersect(self.owned)
            if part is not None:
                for pane in self.rows.panes:
                    yield from self._of(self.rows.scan(pane, part))

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """Yield the rows as columns of a segment, one hash range at a time."""
        for pane in self.rows.panes:
            for part in self.owned.split(-(-self.rows.rows_of(pane) // rows)):
                yield from self._of(self.rows.scan(pane, part, most=rows))

    def _of(self, chunks: Iterable[tuple[KeyColumns, I64, I64, I64]]) -> Iterator[pa.Table]:
        index = KeyIndex(self.spec.key_schema, small=True)
        parts = [PaneCells(index.upsert(keys, hashes).copy(), panes, cells) for keys, hashes, panes, cells in chunks]
        if parts:
            yield rows_to_table(self.spec, index.view(), merged_cells(parts, self.spec.width))
