"""Splitting a batch by key group.

One compiled pass from hashes to an order, one Arrow take, then slices without a copy.

Called by the partitioner of keyed edges, and by restores that cut in-flight rows anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.kernels.compile import I32, I32_OUT, I64, I64_IN, I64_OUT, i8, kernel

if TYPE_CHECKING:
    import pyarrow as pa


@kernel(i8(I64_IN, i8, i8, I32_OUT, I64_OUT))
def split_rows(hashes: I64, key_groups: int, parallelism: int, order: I32, offsets: I64) -> int:
    """Counting sort of rows by owning subtask; stable. `offsets` (parallelism + 1) must be zero."""
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

    `order[offsets[s]:offsets[s + 1]]`.
    """
    order = np.empty(len(hashes), np.int32)
    offsets = np.zeros(parallelism + 1, np.int64)
    split_rows(hashes, key_groups, parallelism, order, offsets)
    return order, offsets


def take_split(batch: pa.RecordBatch, order: I32, offsets: I64) -> list[pa.RecordBatch | None]:
    """Return one batch a subtask, None where it has no row.

    Slices of one reordered copy (of the batch itself if one owns all).
    """
    import pyarrow as pa

    bounds = offsets.tolist()
    owners = [s for s in range(len(bounds) - 1) if bounds[s + 1] > bounds[s]]
    parts: list[pa.RecordBatch | None] = [None] * (len(bounds) - 1)
    if len(owners) == 1:
        parts[owners[0]] = batch
    elif owners:
        taken = batch.take(pa.array(order))
        for s in owners:
            parts[s] = taken.slice(bounds[s], bounds[s + 1] - bounds[s])
    return parts
