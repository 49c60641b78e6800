"""Cold rows of a pane table: eviction to a cold file, and the merge of hot and cold rows.

Called by `pane_table` in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.kernels.rows.row_order import hash_order
from penstock.state.cells.hot_panes import CHUNK, Fired, HotPanes, rows_to_table
from penstock.state.cells.pane_memory import PaneCells
from penstock.state.cells.value_heap import ValueHeap
from penstock.state.keys.key_index import KeyIndex, columns_of
from penstock.state.log.frozen import EncodeResources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.memory.lru_eviction import EvictionPolicy
    from penstock.state.spill.cold_file import ColdFileStore
    from penstock.state.spill.cold_panes import ColdPanes

#: Batches for encoding have one part in this many of the rows: columns take several times the memory of cells.
_ENCODED_PART = 2
#: Bytes that eviction needs for each evicted key: slot, hash, position in the order and a copy.
_LEAVING_BYTES = 32


def encode_resources(policy: EvictionPolicy, source: FrozenSource) -> EncodeResources:
    """Return the resources to encode a table's segments in bounded memory."""
    rows, name = max(1, policy.batch_rows // _ENCODED_PART), f"{source.uid}-{source.state}"
    return EncodeResources(directory=source.directory, name=name, rows=rows, budget=policy.budget)


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
    for first in range(0, len(leaving), batch):
        rows = hot.rows_at(leaving[first : first + batch])
        changes.put(keys, rows.chosen((rows.cells[:, 0] & 1) == 1))
        cold.rows.put(keys, rows)
    stays = hot.rebuilt_in_batches(kept, batch)
    cold.moved(kept)
    policy.moved(kept)
    policy.budget.work(f"{policy.holder}/evict", 0)
    return stays


def fire_with_cold(hot: HotPanes, cold: ColdPanes, panes: list[int], owned: HashRange) -> Iterator[Fired]:
    """Yield fired keys as `HotPanes.fire` does, with cold rows, merging one hash range at a time."""
    keys, rows = hot.index.view(), hot.memory.present()
    hashes = keys.hashes[rows.slots]
    of_window = np.isin(rows.panes, np.array(panes, np.int64)) & (rows.cells[:, 0] > 1)
    for part in cold.parts(panes, owned):
        merged = HotPanes(hot.spec)
        for piece in cold.scan(panes, part, merged.heap):
            merged.put(*piece)
        chosen = np.nonzero(of_window & (hashes >= part.low) & (hashes <= part.high))[0]
        for first in range(0, len(chosen), CHUNK):
            at = chosen[first : first + CHUNK]
            merged.put(columns_of(keys, rows.slots[at]), hashes[at], rows.panes[at], rows.cells[at])
        yield from merged.fire(panes)


def pane_rows(table: tuple[HotPanes, ColdPanes | None], keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
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
            row = np.zeros((1, hot.spec.width), np.int64)
            cold.look_up(lookup_index.view(), pane, row, heap)
            found[pane] = row[0]
    panes = sorted(pane for pane, words in found.items() if words[0] > 1)[:most]
    if not panes:
        return hot.spec.segment_schema.empty_table()
    cells = np.stack([found[pane] for pane in panes])
    return rows_to_table(
        hot.spec, lookup_index.view(), PaneCells(np.zeros(len(panes), np.int32), np.array(panes, np.int64), cells)
    )
