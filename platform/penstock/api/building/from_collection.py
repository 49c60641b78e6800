"""`env.from_collection(rows, Row)`: rows of this process as a bounded source; for tests, notebooks and small tables."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from penstock.connector.source import SourceSpec
from penstock.core.errors import GraphError
from penstock.core.schema import arrow_schema_of, schema_to_text
from penstock.operators.rows.columns import ColumnError, conform
from penstock.operators.rows.rows import RowEncoder

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The rows travel in the job graph, which is limited to 64 MiB.
_MOST_BYTES = 16 << 20
_FACTORY = "penstock_connectors.collection:CollectionSourceFactory"


@dataclass(frozen=True)
class CollectionSource:
    """A source that contains its rows."""

    rows: pa.RecordBatch
    row_schema: Any

    def spec(self) -> SourceSpec:
        """Return the source's specification.

        Raises:
            GraphError: more than 16 MiB of rows.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.rows.schema) as writer:
            writer.write_batch(self.rows)
        data = sink.getvalue()
        if data.size > _MOST_BYTES:
            msg = f"from_collection: the rows take {data.size:,} bytes, more than {_MOST_BYTES:,}"
            raise GraphError(msg, hint="write them to a Parquet file and read it with FileSource")
        return SourceSpec(
            factory=_FACTORY,
            config={"rows": base64.b64encode(data).decode()},
            schema=schema_to_text(self.rows.schema),
            bounded=True,
        )


def collection_source(rows: Any, row_type: Any) -> CollectionSource:
    """Return rows as a source: row objects or dicts of a row type, or a DataFrame or Arrow table.

    Raises:
        GraphError: no row type where it is needed, or rows that do not fit it.
    """
    table = _table(rows)
    if row_type is None:
        if table is None:
            msg = "from_collection: the row type is not known"
            raise GraphError(msg, hint="give it: env.from_collection(rows, Order), or pass a Polars DataFrame")
        return CollectionSource(table, table.schema)
    schema = row_type if isinstance(row_type, pa.Schema) else arrow_schema_of(row_type)
    if table is None and not isinstance(rows, Iterable):
        msg = f"from_collection: {rows!r} has no rows"
        raise GraphError(msg, hint="pass a list of rows, a Polars DataFrame or an Arrow table")
    try:
        batch = _encoded(list(rows), schema) if table is None else conform(table, schema, "from_collection")
    except ColumnError as error:
        raise GraphError(error.message, hint=error.hint) from error
    return CollectionSource(batch, row_type)


def _encoded(rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    columns = RowEncoder(schema, "from_collection").columns(rows) if rows else schema.empty_table().columns
    arrays = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _table(rows: Any) -> pa.RecordBatch | None:
    """Return a frame or table as one batch with plain strings; None for other rows."""
    if isinstance(rows, pl.DataFrame):
        rows = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if not isinstance(rows, pa.Table):
        return None
    table = rows.cast(pa.schema([field.with_type(_plain(field.type)) for field in rows.schema]))
    batches = table.combine_chunks().to_batches() or table.schema.empty_table().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type that sources use: Polars has 64-bit offsets everywhere."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    return kind
