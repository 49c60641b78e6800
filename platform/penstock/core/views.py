"""Arrow's view types, `string_view` and `binary_view`, as types of columns.

A view takes 16 bytes: a value of up to 12 bytes, or the position of a longer one in a pool. A source with such a pool
emits its values without a copy. Column operations pass views on, and sinks that accept views receive them. An edge
carries plain strings and binaries, since Arrow sends the whole pool with every batch. Called by `api`, `graph`,
`backfill` and connectors for schemas, by `operators`, `kernels` and `network` for rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Collection

_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
#: Bytes of a view without its pool.
VIEW_BYTES = 16
_WORDS = pa.binary(VIEW_BYTES)


def is_view(kind: pa.DataType) -> bool:
    """Return whether columns of the type are views."""
    return kind in _PLAIN


def holds_views(kind: pa.DataType) -> bool:
    """Return whether values of the type are views or contain views."""
    return is_view(kind) or any(holds_views(kind.field(i).type) for i in range(kind.num_fields))


def plain_schema(schema: pa.Schema, only: Collection[str] | None = None) -> pa.Schema:
    """Return the schema with plain types instead of views, or instead of those in `only`.

    Returns the same object if it has none.
    """
    for index, field in enumerate(schema):
        if is_view(field.type) and (only is None or field.name in only):
            schema = schema.set(index, field.with_type(_PLAIN[field.type]))
    return schema


def filter_array(column: pa.Array, mask: pa.BooleanArray) -> pa.Array:
    """Return the values whose `mask` is true.

    Arrow has no filter for views; here they keep their pool.
    """
    if not is_view(column.type):
        return column.filter(mask)
    validity, words, *pool = column.buffers()
    kept = pa.Array.from_buffers(_WORDS, len(column), [validity, words], offset=column.offset).filter(mask)
    return pa.Array.from_buffers(column.type, len(kept), [*kept.buffers(), *pool], offset=kept.offset)


def bytes_without_pools(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch, without pools of views: the bytes that combining it with others copies."""
    return sum(VIEW_BYTES * len(column) if is_view(column.type) else int(column.nbytes) for column in batch.columns)
