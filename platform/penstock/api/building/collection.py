"""Rows of this process as a bounded source, and the rows of a stream as a result.

For tests and notebooks: `env.from_collection(...)` and `stream.execute_and_collect()`. Imported on first use,
because it needs Polars.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pyarrow as pa

from penstock.api.building.executors import current_executor, preview_executor
from penstock.api.building.operator_nodes import append_end
from penstock.config.settings import fail_fast, parse_duration_ms
from penstock.connector.source import SourceSpec
from penstock.core.errors import GraphError
from penstock.core.schema import arrow_schema_of, schema_to_text
from penstock.core.views import plain_schema
from penstock.graph.job_graph import OperatorSpec, unbounded_sources
from penstock.operators.rows.columns import ColumnError, conform, without_ts
from penstock.operators.rows.row_codec import RowEncoder
from penstock.operators.sinks.client_sinks import read_collected, read_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.api.building.flow import Flow
    from penstock.api.building.operator_nodes import JobBuilder
    from penstock.graph.executor import JobExecutor

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
    return CollectionSource(batch_of_rows(rows, schema, "from_collection"), row_type)


def batch_of_rows(rows: Any, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Return row objects, dicts, a DataFrame or an Arrow table as one batch; `where` begins error messages.

    Raises:
        GraphError: rows that do not fit the schema.
    """
    table = _table(rows)
    if table is None and not isinstance(rows, Iterable):
        msg = f"{where}: {rows!r} has no rows"
        raise GraphError(msg, hint="pass a list of rows, a Polars DataFrame or an Arrow table")
    try:
        return _encoded(list(rows), schema, where) if table is None else conform(table, schema, where)
    except ColumnError as error:
        # the rows are the caller's own, in its process
        shown = error.values.removeprefix("value: ")
        raise GraphError(f"{error.message}: {shown}" if shown else error.message, hint=error.hint) from error


def _encoded(rows: Sequence[Any], schema: pa.Schema, where: str) -> pa.RecordBatch:
    columns = RowEncoder(schema, where).columns(rows) if rows else schema.empty_table().columns
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
    table = rows.cast(pa.schema([field.with_type(_plain_type(field.type)) for field in rows.schema]))
    batches = table.combine_chunks().to_batches() or table.schema.empty_table().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that sources use: Polars has 64-bit offsets everywhere."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    return kind


def collect(
    environment: JobBuilder,
    flow: Flow,
    name: str,
    limit: int | None,
    timeout: str | float | None = None,
    executor: JobExecutor | None = None,
) -> pl.DataFrame:
    """Run the job with one stream as its only end and return its rows; their order is undefined.

    Without `executor`, the current one runs it.

    Rows and checkpoints are stored in a temporary folder of this machine, so every call starts without state. The first
    error of a user function ends the job. With `limit`, the job is cancelled at this number of rows; with `timeout`,
    after this time.

    Raises:
        GraphError: a source is not bounded, and there is no limit; the limit is below 1.
        UsageError: the timeout is not a duration.
        JobFailedError: it failed.
        PenstockError: the timeout passed.
    """
    timeout_ms = None if timeout is None else parse_duration_ms(timeout, "execute_and_collect: timeout")
    if limit is not None and limit < 1:
        msg = f"execute_and_collect: limit must be at least 1, not {limit}"
        raise GraphError(msg, hint="leave it out for all rows")
    schema = plain_schema(without_ts(flow.schema))
    with tempfile.TemporaryDirectory(prefix="penstock-collect-") as folder:
        rows = f"{folder}/rows"
        spec = OperatorSpec(
            uid="collect",
            name="Collect",
            kind="collect",
            config={"folder": rows, "schema": schema_to_text(schema), **({"limit": limit} if limit else {})},
        )
        end = append_end(environment.builder, flow, spec)
        try:
            graph = environment.job_graph(name, only=[end])
        finally:
            environment.builder.remove(end)
        if limit is None and (endless := unbounded_sources(graph)):
            msg = f"execute_and_collect would never end: {endless[0]} is not bounded"
            raise GraphError(msg, hint="give the source an end (bounded=...), or limit=100 for the first 100 rows")
        settings = msgspec.structs.replace(fail_fast(graph.settings), checkpoint_root=f"{folder}/checkpoints")
        graph = msgspec.structs.replace(graph, settings=settings)
        executor = executor or current_executor().executor
        enough = None if limit is None else lambda: read_first(rows, schema, limit).num_rows == limit
        executor.execute(graph, enough=enough, timeout_ms=timeout_ms)
        collected = read_collected(rows, schema) if limit is None else read_first(rows, schema, limit)
        return pl.DataFrame(pl.from_arrow(collected))


def show(environment: JobBuilder, flow: Flow, rows: int) -> None:
    """Print the first rows of a stream as a table; `stream.show()`. Operators need no uid: no state outlives it."""
    required, environment.require_uids = environment.require_uids, False
    try:
        found = collect(environment, flow, "show", rows, executor=preview_executor())
    finally:
        environment.require_uids = required
    with pl.Config(tbl_rows=rows, tbl_cols=-1, tbl_hide_dataframe_shape=True):
        print(found)  # noqa: T201 - the user asked for it
