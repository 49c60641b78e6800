"""Merge of panes that are partly in memory and partly cold; rows in memory are newer than cold ones.

Called by `state.panes.pane_table` in the owner's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.state.cells.hot_panes import CHUNK, Fired, HotPanes, canonical
from penstock.state.cells.pane_memory import Rows
from penstock.state.cells.pane_rows import rows_to_table
from penstock.state.cells.value_heap import ValueHeap
from penstock.state.keys.key_index import KeyIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.spill.cold_panes import ColdPanes


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
            hot_keys = canonical(hot.spec, keys.gather(rows.slots[at]))
            merged.put(hot_keys, hashes[at], rows.panes[at], rows.cells[at])
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
    asked, heap = KeyIndex(hot.spec.key_schema), ValueHeap()
    asked.upsert(keys, hashes)
    for pane in [] if cold is None else cold.panes:
        if cold is not None and pane not in found:
            row = np.zeros((1, hot.spec.width), np.int64)
            cold.look_up(asked.view(), pane, row, heap)
            found[pane] = row[0]
    panes = sorted(pane for pane, words in found.items() if words[0] > 1)[:most]
    if not panes:
        return hot.spec.segment_schema.empty_table()
    cells = np.stack([found[pane] for pane in panes])
    return rows_to_table(hot.spec, asked.view(), Rows(np.zeros(len(panes), np.int32), np.array(panes, np.int64), cells))
