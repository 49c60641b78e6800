"""Splitting a batch by key group: one compiled pass from keys to an order, one copy, then slices without a copy.

A compiled loop reorders columns of 8 bytes without nulls, Arrow the others. Called by the partitioner of keyed edges
and by the backfill.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.kernels.compiler.compile import I32, I32_IN, I32_OUT, I64, I64_IN, I64_OUT, i8, kernel, word_at
from penstock.kernels.keys.hashing import hash_key_columns, split_integers
from penstock.kernels.keys.key_columns import FixedColumn, key_columns
from penstock.kernels.rows.row_filter import address_of, column_of

if TYPE_CHECKING:
    import pyarrow as pa


@kernel(i8(i8, I32_IN, I64_OUT))
def take_words(source: int, order: I32, out: I64) -> int:
    """Write the words at address `source`, in the given order, to `out`."""
    for i in range(np.uint64(0), np.uint64(len(order))):
        out[i] = word_at(source + 8 * np.int64(order[i]))
    return len(order)


@kernel(i8(I64_IN, i8, i8, I32_OUT, I64_OUT))
def split_rows(hashes: I64, key_groups: int, parallelism: int, order: I32, offsets: I64) -> int:
    """Sort rows by owning subtask with a stable counting sort; `offsets` (parallelism + 1) must be zero."""
    n = len(hashes)
    targets = np.empty(n, np.int32)
    for i in range(n):
        group = (((hashes[i] >> 32) + (1 << 31)) * key_groups) >> 32
        target = group * parallelism // key_groups
        targets[i] = target
        offsets[target + 1] += 1
    for t in range(parallelism):
        offsets[t + 1] += offsets[t]
    cursor = offsets.copy()
    for i in range(n):
        target = targets[i]
        order[cursor[target]] = i
        cursor[target] += 1
    return n


def split_by_key_group(hashes: I64, key_groups: int, parallelism: int) -> tuple[I32, I64]:
    """Return row indices ordered by subtask, and where each subtask's rows begin.

    Subtask s has the rows `order[offsets[s]:offsets[s + 1]]`.
    """
    order = np.empty(len(hashes), np.int32)
    offsets = np.zeros(parallelism + 1, np.int64)
    split_rows(hashes, key_groups, parallelism, order, offsets)
    return order, offsets


@lru_cache(maxsize=64)
def owners_of(key_groups: int, parallelism: int) -> I32:
    """Return the subtask that owns each key group; a division per row would take longer than the rest of a split."""
    return (np.arange(key_groups, dtype=np.int64) * parallelism // key_groups).astype(np.int32)


def order_by_owner(
    batch: pa.RecordBatch, columns: tuple[str, ...], key_groups: int, parallelism: int
) -> tuple[I32, I64]:
    """Do the work of `split_by_key_group` with the key columns.

    Raises:
        GraphError: a column's type cannot be a key.
    """
    keys = key_columns(batch, columns)
    rows = int(batch.num_rows)
    if len(keys) == 1 and isinstance(keys[0], FixedColumn) and not keys[0].nullable:
        order = np.empty(rows, np.int32)
        offsets = np.zeros(parallelism + 1, np.int64)
        split_integers(keys[0].values, owners_of(key_groups, parallelism), order, offsets)
        return order, offsets
    return split_by_key_group(hash_key_columns(keys, rows), key_groups, parallelism)


def take_rows(batch: pa.RecordBatch, order: I32) -> pa.RecordBatch:
    """Return a copy of the batch with its rows in the given order, which holds each row once."""
    import pyarrow as pa

    rows = len(order)
    columns: list[Any] = []
    indices = None
    for column in batch.columns:
        address = address_of(column)
        if address is None:
            indices = pa.array(order) if indices is None else indices
            columns.append(column.take(indices))
        else:
            out = np.empty(rows, np.int64)
            take_words(address, order, out)
            columns.append(column_of(out, rows, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def take_split(batch: pa.RecordBatch, order: I32, offsets: I64) -> list[pa.RecordBatch | None]:
    """Return one batch per subtask, None if it has no row.

    The batches are slices of one reordered copy (of the batch itself if one subtask owns all).
    """
    bounds = offsets.tolist()
    owners = [s for s in range(len(bounds) - 1) if bounds[s + 1] > bounds[s]]
    parts: list[pa.RecordBatch | None] = [None] * (len(bounds) - 1)
    if len(owners) == 1:
        parts[owners[0]] = batch
    elif owners:
        taken = take_rows(batch, order)
        for s in owners:
            parts[s] = taken.slice(bounds[s], bounds[s + 1] - bounds[s])
    return parts
