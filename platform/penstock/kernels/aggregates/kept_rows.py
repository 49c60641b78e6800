"""Filtering of a batch by a mask.

Columns of 8 bytes without nulls use a compiled loop, views keep their pool, Arrow filters the rest. Called by
`operators.rows.project` for every batch of a filter, by `source` and `source_watermarks` for rows without a valid time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.views import kept_of
from penstock.kernels.compiler.compile import I64, I64_OUT, U8, U8_IN, i8, kernel, load8, word_at
from penstock.kernels.compiler.words import address_of, column_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EIGHT_KEPT = np.uint64(0x0101010101010101)
_NONE, _ONE, _EIGHT = np.uint64(0), np.uint64(1), np.uint64(8)


@kernel(i8(i8, U8_IN, I64_OUT))
def keep_words(source: int, mask: U8, out: I64) -> int:
    """Write the words at address `source` whose byte of `mask` is 1 to `out`, which has room for one more.

    Eight rows that are all kept or all dropped take one branch. Of others each is written, and the next one overwrites
    it if it is not kept: that branch could not be predicted.
    """
    rows = np.uint64(len(mask))
    at = count = np.uint64(0)
    while at + _EIGHT <= rows:
        eight = load8(mask, at)
        if eight == _EIGHT_KEPT:
            for j in range(_NONE, _EIGHT):
                out[count + j] = word_at(source + np.int64(_EIGHT * (at + j)))
            count += _EIGHT
        elif eight != _NONE:
            for j in range(_NONE, _EIGHT):
                out[count] = word_at(source + np.int64(_EIGHT * (at + j)))
                count += np.uint64(mask[at + j])
        at += _EIGHT
    while at < rows:
        out[count] = word_at(source + np.int64(_EIGHT * at))
        count += np.uint64(mask[at])
        at += _ONE
    return int(count)


def keep_rows(batch: pa.RecordBatch, mask: NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the rows whose mask is true; free if all are, or none."""
    kept = int(np.count_nonzero(mask))
    if kept == batch.num_rows:
        return batch
    if not kept:
        return batch.slice(0, 0)
    columns: list[Any] = []
    bits = None
    for column in batch.columns:
        address = address_of(column)
        if address is None:
            bits = pa.array(mask) if bits is None else bits
            columns.append(kept_of(column, bits))
        else:
            out = np.empty(kept + 1, np.int64)
            keep_words(address, mask.view(np.uint8), out)
            columns.append(column_of(out, kept, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
