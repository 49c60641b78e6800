"""Arrow columns of 8 bytes a row without nulls as words in memory, and back; no copy either way.

Used where compiled loops move rows of any type: `penstock.kernels.keys.split`, `penstock.kernels.aggregates.kept_rows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I64


def address_of(column: pa.Array) -> int | None:
    """Return the address of a column's words; None if the column has another layout."""
    kind = column.type
    if not pa.types.is_primitive(kind) or kind.bit_width != 64 or column.null_count:
        return None
    return int(column.buffers()[1].address) + 8 * int(column.offset)


def column_of(words: I64, rows: int, kind: pa.DataType) -> pa.Array:
    """Return the first `rows` words as a column of that type."""
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(words)], 0)
