"""Conversion of rows to columns of a segment, from slots and values in memory or from named columns.

Called by freezes of tables, by migrations, and by state queries; any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.state.log.segment_columns import DELETED, KEY_HASH, NAMESPACE, SEQ

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.segment_columns import StateSpec

#: System columns of a row that no function wrote.
_PLAIN = {KEY_HASH: 0, NAMESPACE: 0, DELETED: False}


def rows_of(schema: pa.Schema, given: Mapping[str, pa.Array], rows: int) -> pa.Table:
    """Return `rows` rows of a segment with the given columns; missing value columns are null."""
    columns = []
    for field in schema:
        if field.name in given:
            columns.append(given[field.name].cast(field.type))
        elif field.name == SEQ:
            columns.append(pa.array(np.arange(rows)))
        else:
            columns.append(pa.repeat(pa.scalar(_PLAIN.get(field.name), field.type), rows))
    return pa.Table.from_arrays(columns, schema=schema)


def segment_table(
    spec: StateSpec,
    keys: KeyView,
    slots: I32,
    *,
    values: Sequence[pa.Array],
    deleted: np.ndarray,
    namespaces: I64 | None = None,
) -> pa.Table:
    """Return rows, already sorted by hash, as columns of a segment; without `namespaces` in namespace 0."""
    columns = [
        pa.array(keys.hashes[slots]),
        *keys.gather(slots),
        pa.array(np.zeros(len(slots), np.int64) if namespaces is None else namespaces),
        *values,
        pa.array(deleted.astype(np.bool_)),
        pa.array(np.arange(len(slots))),
    ]
    return pa.Table.from_arrays(columns, schema=spec.segment_schema)
