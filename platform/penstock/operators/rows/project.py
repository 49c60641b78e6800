"""Column operations in Polars expressions: `select`, `with_columns`, `filter`.

The payload is a msgpack list of serialized expressions. Polars receives only the columns that an expression names,
`__ts` bypasses it, and a filter computes only its mask and leaves the rows in Arrow. The API computes its output
schemas with the same functions.
"""

# ruff: noqa: ARG002 - the protocol sets the parameters of hooks

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.elements import TS_COLUMN, Batch
from penstock.core.errors import GraphError, PenstockError
from penstock.core.schema import schema_from_text
from penstock.core.views import is_view
from penstock.kernels.rows.row_filter import filter_rows
from penstock.operators.operator import Capabilities, Operator
from penstock.operators.rows.columns import TS_FIELD, conform_array, ts_of, with_ts, without_ts
from penstock.operators.rows.integer_expressions import compile_integers, to_arrow
from penstock.operators.rows.row_text import batch_text, numbered_row, short_text
from penstock.operators.rows.user_functions import UserFunctionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.operators.operator import Collector, OperatorContext

Mode = Literal["select", "with_columns", "filter"]


def serialize_expressions(expressions: Sequence[pl.Expr]) -> bytes:
    """Return the payload of a `project` operator."""
    return msgspec.msgpack.encode([expression.meta.serialize() for expression in expressions])


def deserialize_expressions(payload: bytes) -> tuple[pl.Expr, ...]:
    """Inverse of `serialize_expressions`."""
    parts = msgspec.msgpack.decode(payload, type=list[bytes])
    return tuple(pl.Expr.deserialize(io.BytesIO(part)) for part in parts)


def output_schema_of(mode: Mode, expressions: Sequence[pl.Expr], input_schema: pa.Schema) -> pa.Schema:
    """Return the schema after the operation; it contains `__ts` exactly if the input does.

    Raises:
        GraphError: an unknown column, a type that does not fit, or an expression that looks at more than its own row.
    """
    rows = without_ts(input_schema)
    for expression in expressions:
        _require_row_by_row(expression)
    try:
        result = _null_frame(rows).select(expressions)
    except pl.exceptions.PolarsError as error:
        msg = f"{mode}: {str(error).splitlines()[0]}"
        raise GraphError(msg, hint=f"columns: {', '.join(rows.names)}") from error
    if TS_COLUMN in result.columns:
        msg = f"{mode}: {TS_COLUMN!r} is reserved"
        raise GraphError(msg, hint="event time follows its row by itself; choose another name")
    if mode == "filter":
        if any(dtype != pl.Boolean for dtype in result.dtypes):
            msg = f"filter: the condition is {result.dtypes[0]}, not Boolean"
            raise GraphError(msg, hint="write a comparison, for example pl.col('amount') > 10")
        return input_schema
    computed = [_output_field(field, expressions, rows) for field in result.head(0).to_arrow().schema]
    if mode == "select":
        fields = computed
    else:
        new = {field.name: field for field in computed}
        fields = [new.pop(field.name, field) for field in rows] + list(new.values())
    schema = pa.schema(fields)
    return schema.append(TS_FIELD) if TS_COLUMN in input_schema.names else schema


def _require_row_by_row(expression: pl.Expr) -> None:
    """Reject expressions without a meaning on a stream: `sum()`, `shift()`, `over()` see one arbitrary batch."""
    try:
        row_by_row = expression.meta.is_row_separable() or expression.meta.is_literal()
    except pl.exceptions.InvalidOperationError:  # a selector or wildcard, which Polars checks only after expanding it
        return
    if not row_by_row:
        msg = f"the expression `{expression}` looks at more than its own row"
        raise GraphError(msg, hint="aggregate with key_by(...).window(...), or write a row function: .map(f)")


def _output_field(field: pa.Field, expressions: Sequence[pl.Expr], rows: pa.Schema) -> pa.Field:
    for expression in expressions:
        if expression.meta.is_column() and expression.meta.output_name() == field.name:
            return rows.field(field.name)
        name = _passthrough_name(expression)
        if name is not None and expression.meta.output_name() == field.name and is_view(rows.field(name).type):
            return pa.field(field.name, rows.field(name).type)
    return pa.field(field.name, _plain_type(field.type))


def _plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the plain type of one of Polars' large and view types."""
    if pa.types.is_large_string(arrow_type) or arrow_type == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(arrow_type) or arrow_type == pa.binary_view():
        return pa.binary()
    if pa.types.is_large_list(arrow_type):
        return pa.list_(_plain_type(arrow_type.value_type))
    if pa.types.is_struct(arrow_type):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in arrow_type])
    if pa.types.is_dictionary(arrow_type):
        return _plain_type(arrow_type.value_type)
    return arrow_type


class ProjectOperator(Operator):
    """Applies Polars expressions batch by batch; stateless."""

    def open(self, context: OperatorContext) -> Capabilities:
        self._mode: Mode = context.spec.config["mode"]
        self._expressions = deserialize_expressions(context.spec.payload)
        self._where = f"{self._mode} {context.spec.uid!r}"
        input_schema = context.input_schemas[0]
        text = context.spec.output_schema
        self._schema = schema_from_text(text) if text else output_schema_of(self._mode, self._expressions, input_schema)
        rows = without_ts(input_schema)
        #: Output columns that are unchanged input columns: Polars would convert strings twice.
        self._passthrough = {} if self._mode == "filter" else _passthrough_columns(self._expressions)
        if self._passthrough:
            self._expressions = tuple(e for e in self._expressions if _passthrough_name(e) is None)
        self._roots = _root_columns(self._expressions, rows)
        self._computed = _computed_names(self._expressions, rows)
        self._integers = compile_integers(self._expressions, rows)
        if self._mode == "filter" and len(self._computed) > 1:
            self._expressions = (pl.all_horizontal(*self._expressions),)
        self._rows = without_ts(self._schema)
        self._with_ts = with_ts(self._rows)
        self._timed = True
        #: The columns that a filter emits; None: all.
        self._output_columns: list[str] | None = None
        return Capabilities(required_columns=self.required_columns)

    def required_columns(self, downstream_columns: frozenset[str] | None) -> frozenset[str] | None:
        if downstream_columns is None and self._mode != "select":
            return None
        required = set(self._roots)
        if self._mode == "filter":
            assert downstream_columns is not None  # noqa: S101 - distinguished above
            names = [name for name in self._schema.names if name in downstream_columns]
            if not names:  # a batch without columns would have no rows
                return None
            self._output_columns = names if len(names) < len(self._schema) else None
            return frozenset(required.union(names))
        if downstream_columns is not None:
            wanted = [field for field in self._rows if field.name in downstream_columns or field.name in self._computed]
            if wanted:
                self._rows = pa.schema(wanted)
                self._with_ts = with_ts(self._rows)
                self._timed = TS_COLUMN in downstream_columns
        required.update(self._passthrough.get(name, name) for name in self._rows.names if name not in self._computed)
        return frozenset(required | {TS_COLUMN}) if self._timed else frozenset(required)

    def process_batch(self, batch: Batch, input_index: int, out: Collector) -> None:
        try:
            data = self._apply(batch.data)
        except Exception as error:
            failure = self._failed(batch.data, error)
            if failure is error:
                raise
            raise failure from error
        if data.num_rows:
            out.batch(Batch(data))

    def _apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._filter(batch) if self._mode == "filter" else self._compute(batch)

    def _failed(self, batch: pa.RecordBatch, error: Exception) -> PenstockError:
        """Return the error with the first row that raises: halves of the batch are computed until one row is left."""
        names = without_ts(batch.schema).names
        low, high = 0, batch.num_rows
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._raises(batch.slice(low, middle - low)) else (middle, high)
        alone = high > low and self._raises(batch.slice(low, 1))
        shown = numbered_row(batch, low, names) if alone else batch_text(batch, names)
        if isinstance(error, PenstockError):
            error.values = shown
            return error
        first_line, _, _ = str(error).partition("\n")
        msg = f"{self._where}: {type(error).__name__}: {short_text(first_line)}"
        cast = isinstance(error, pl.exceptions.InvalidOperationError) and "conversion" in str(error)
        hint = "leave such rows out before, or cast with strict=False, which gives null" if cast else ""
        return UserFunctionError(msg, hint=hint, values=shown)

    def _raises(self, part: pa.RecordBatch) -> bool:
        try:
            self._apply(part)
        except Exception:  # noqa: BLE001 - as `_apply` of the whole batch
            return True
        return False

    def _filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        conditions = None if self._integers is None else self._integers.of(batch)
        if conditions is None:
            mask = self._evaluated(batch).to_series().fill_null(value=False).to_numpy()
        else:
            mask = functools.reduce(np.logical_and, [condition.values for condition in conditions])
        return filter_rows(batch if self._output_columns is None else batch.select(self._output_columns), mask)

    def _compute(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        computed = self._columns(batch) if self._computed else {}
        columns = []
        for field in self._rows:
            if field.name in self._computed:
                source = computed[field.name]
            else:
                source = batch.column(self._passthrough.get(field.name, field.name))
            columns.append(conform_array(source, field, self._where))
        ts = ts_of(batch) if self._timed else None
        if ts is None:
            return pa.RecordBatch.from_arrays(columns, schema=self._rows)
        return pa.RecordBatch.from_arrays([*columns, ts], schema=self._with_ts)

    def _columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        values = None if self._integers is None else self._integers.of(batch)
        if values is not None:
            return dict(zip(self._computed, map(to_arrow, values), strict=True))
        table = self._evaluated(batch).rechunk().to_arrow()
        return {name: _one_chunk(table.column(name)) for name in self._computed}

    def _evaluated(self, batch: pa.RecordBatch) -> pl.DataFrame:
        """Compute the expressions' columns, in their order."""
        if not self._roots:
            # literals only: add a column of the right length to broadcast them to
            frame = pl.DataFrame({"": pl.zeros(batch.num_rows, pl.Int8, eager=True)})
            return frame.with_columns(self._expressions).select(self._computed)
        return pl.DataFrame(pl.from_arrow(batch.select(self._roots))).select(self._expressions)


def _passthrough_columns(expressions: Sequence[pl.Expr]) -> dict[str, str]:
    """Return columns that are only selected, also under another name: output name to input name."""
    return {e.meta.output_name(): name for e in expressions if (name := _passthrough_name(e)) is not None}


def _passthrough_name(expression: pl.Expr) -> str | None:
    """Return the one input column that the expression selects; None if it computes or selects several."""
    if expression.meta.has_multiple_outputs() or not expression.meta.undo_aliases().meta.is_column():
        return None
    return expression.meta.root_names()[0]


def _root_columns(expressions: Sequence[pl.Expr], rows: pa.Schema) -> list[str]:
    """Return the columns that the expressions read; all if there is a selector or wildcard."""
    names: set[str] = set()
    for expression in expressions:
        if expression.meta.has_multiple_outputs():
            return list(rows.names)
        names.update(expression.meta.root_names())
    return [name for name in rows.names if name in names]


def _computed_names(expressions: Sequence[pl.Expr], rows: pa.Schema) -> list[str]:
    return _null_frame(rows).select(expressions).columns


def _null_frame(rows: pa.Schema) -> pl.DataFrame:
    """Return one row of nulls, for Polars to resolve names and types."""
    nulls = [pa.nulls(1, field.type) for field in rows]
    return pl.DataFrame(pl.from_arrow(pa.RecordBatch.from_arrays(nulls, names=rows.names)))


def _one_chunk(array: pa.ChunkedArray) -> pa.Array:
    return array.chunk(0) if array.num_chunks == 1 else pa.concat_arrays(array.chunks)
