"""Columns of segments: names and field ids of the fixed columns, and conversion of rows to segment columns.

Used by specs, tables, freezes, migrations and the offline tools; any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from penstock.core.evolution import ENTRY_IDS, KEY_IDS, field_id
from penstock.kernels.keys.key_columns import key_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView

KEY_HASH, NAMESPACE, DELETED, SEQ = "__key_hash", "__namespace", "__deleted", "__seq"
#: Distinguishes rows of one key and time in states that hold several.
ROW = "__row"
#: Microseconds since the epoch, in states with a time-to-live.
LAST_ACCESS = "__ttl"


class StateSpec(Protocol):
    """The row description that the log of any state needs."""

    @property
    def segment_schema(self) -> pa.Schema:
        """The columns of the state's Parquet files."""


def segment_field(
    name: str, data_type: pa.DataType, number: int, *, nullable: bool = False, more: dict[bytes, bytes] | None = None
) -> pa.Field:
    """Return a column of a segment with its field id, in the metadata `id` and in Parquet's own."""
    own = {b"id": str(number).encode(), b"PARQUET:field_id": str(number).encode()}
    return pa.field(name, data_type, nullable, {**(more or {}), **own})


def state_schema(key_schema: pa.Schema, values: Sequence[pa.Field], metadata: dict[bytes, bytes] | None) -> pa.Schema:
    """Return the columns of a state's Parquet files: the fixed ones, those of the key, and `values`."""
    keys = [segment_field(f.name, f.type, KEY_IDS[i], nullable=True) for i, f in enumerate(key_schema)]
    head, namespace = segment_field(KEY_HASH, pa.int64(), 1), segment_field(NAMESPACE, pa.int64(), 2)
    tail = [segment_field(DELETED, pa.bool_(), 3), segment_field(SEQ, pa.int64(), 4)]
    return pa.schema([head, *keys, namespace, *values, *tail], metadata)


def key_names(schema: pa.Schema) -> tuple[str, ...]:
    """Return the names of the key columns in a segment's schema, by field id."""
    return tuple(field.name for field in schema if field_id(field) in KEY_IDS)


def entry_names(schema: pa.Schema) -> tuple[str, ...]:
    """Return the names of the columns that distinguish list elements or map entries of a key; else none."""
    return tuple(field.name for field in schema if field_id(field) in ENTRY_IDS)


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


def keyed_batch(table: pa.Table, key_schema: pa.Schema) -> tuple[pa.RecordBatch, KeyColumns, I64]:
    """Return rows of a segment as one batch, with the key of each row and its hash."""
    rows = one_batch(table)
    return rows, key_columns(rows, tuple(key_schema.names)), rows.column(KEY_HASH).to_numpy()


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return all rows of a table as one batch."""
    batches = table.combine_chunks().to_batches(max_chunksize=max(1, table.num_rows))
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
