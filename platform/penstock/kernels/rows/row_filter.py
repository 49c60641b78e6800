"""Filtering of a batch by a mask, and Arrow columns of 8 bytes as words in memory and back.

Called by filters and sources for every batch; the split by key group uses the words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.views import filter_array
from penstock.kernels.compiler.compile import I64, I64_OUT, U8, U8_IN, i8, kernel, load8, word_at

if TYPE_CHECKING:
    from numpy.typing import NDArray


def address_of(column: pa.Array) -> int | None:
    """Return the address of a column's words; None if the column has another layout."""
    kind = column.type
    if not pa.types.is_primitive(kind) or kind.bit_width != 64 or column.null_count:
        return None
    return int(column.buffers()[1].address) + 8 * int(column.offset)


def column_of(words: I64, rows: int, kind: pa.DataType) -> pa.Array:
    """Return the first `rows` words as a column of that type."""
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(words)], 0)


_EIGHT_KEPT = np.uint64(0x0101010101010101)
_NONE, _ONE, _EIGHT = np.uint64(0), np.uint64(1), np.uint64(8)


@kernel(i8(i8, U8_IN, I64_OUT))
def filter_words(source: int, mask: U8, out: I64) -> int:
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


def filter_rows(batch: pa.RecordBatch, mask: NDArray[np.bool_]) -> pa.RecordBatch:
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
            columns.append(filter_array(column, bits))
        else:
            out = np.empty(kept + 1, np.int64)
            filter_words(address, mask.view(np.uint8), out)
            columns.append(column_of(out, kept, column.type))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
