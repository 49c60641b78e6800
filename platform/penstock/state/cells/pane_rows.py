"""Conversion between cells of a pane table and columns of a segment.

Called by freeze, restore and remote state; any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.errors import StateMismatchError
from penstock.kernels.aggregates import pages as kernels
from penstock.kernels.keys.key_columns import KeyColumns, key_columns
from penstock.kernels.rows.order import hash_order
from penstock.state.cells.value_heap import take_values
from penstock.state.log.segment_columns import DELETED, KEY_HASH, NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kernels.compiler.compile import I64
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.pane_memory import Rows
    from penstock.state.cells.value_heap import ValueHeap
    from penstock.state.keys.key_index import KeyView


def rows_to_table(spec: PaneTableSpec, keys: KeyView, rows: Rows) -> pa.Table:
    """Return cells as columns of a segment, sorted by hash."""
    hashes = keys.hashes[rows.slots]
    return _arranged(spec, keys, rows, hashes, hash_order(hashes))


def rows_to_tables(spec: PaneTableSpec, keys: KeyView, rows: Rows, most: int) -> Iterator[pa.Table]:
    """Yield cells as columns of a segment in tables of `most` rows, which bounds the memory for columns."""
    hashes = keys.hashes[rows.slots]
    order = hash_order(hashes)
    for first in range(0, len(order), most):
        yield _arranged(spec, keys, rows, hashes, order[first : first + most])


def _arranged(spec: PaneTableSpec, keys: KeyView, rows: Rows, hashes: I64, order: I64) -> pa.Table:
    count = len(order)
    words = np.empty((spec.width, count), np.int64)
    out = (np.empty(count, np.int64), np.empty(count, np.int32), words)
    kernels.arrange(order, (hashes, rows.slots, rows.cells), out)
    panes = np.zeros(count, np.int64) if spec.single_pane else rows.panes[order]
    values = [
        take_values(w, spec.value_words[i]) if i in spec.value_words else pa.array(w.view(np.dtype(dtype)))
        for i, (w, (_, dtype)) in enumerate(zip(words, spec.value_columns, strict=True))
    ]
    columns = [
        pa.array(out[0]),
        *keys.gather(out[1]),
        pa.array(panes),
        *values,
        pa.array(words[0] == 0),  # a single cell that was cleared, not by a tombstone
        pa.array(np.arange(count)),
    ]
    return pa.Table.from_arrays(columns, schema=spec.segment_schema)


def table_to_rows(spec: PaneTableSpec, table: pa.Table, heap: ValueHeap) -> tuple[KeyColumns, I64, I64, I64]:
    """Return (keys, hashes, panes, cells) of rows read from a segment; a deleted row gives an empty cell.

    Values of any length are put into `heap`.

    Raises:
        StateMismatchError: the file's columns differ from those of the job's operator.
    """
    wanted = spec.segment_schema
    if table.schema.names != wanted.names or table.schema.types != wanted.types:
        raise StateMismatchError(
            f"saved state has columns ({_describe(table.schema)}), the job keeps ({_describe(wanted)})",
            hint="keep key columns and aggregates as they were, or give the operator a new uid",
        )
    batch = table.combine_chunks().to_batches(max_chunksize=max(1, table.num_rows))[0]
    cells = np.empty((batch.num_rows, spec.width), np.int64)
    for word, (name, _) in enumerate(spec.value_columns):
        column = batch.column(name)
        cells[:, word] = heap.put(column) if word in spec.value_words else column.to_numpy().view(np.int64)
    cells[:, 0] <<= 1
    cells[batch.column(DELETED).to_numpy(zero_copy_only=False), 0] = 0
    keys = key_columns(batch, tuple(spec.key_schema.names))
    return keys, batch.column(KEY_HASH).to_numpy(), batch.column(NAMESPACE).to_numpy(), cells


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)
