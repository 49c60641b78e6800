"""Polars expressions of `.select`, `.with_columns` and `.filter`, converted to a `project` operator."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from penstock.api.building.operator_nodes import NewOperator
from penstock.core.errors import GraphError, argument_text
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validation import require_columns, require_unique
from penstock.operators.rows.columns import without_ts
from penstock.operators.rows.project import output_schema_of, serialize_expressions

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.building.flow import Flow

#: The forms of a column in `.select`.
ColumnLike = str | pl.Expr
Mode = Literal["select", "with_columns", "filter"]
_SAMPLE_ROWS = 4


def project(mode: Mode, columns: Iterable[ColumnLike], named: dict[str, Any], flow: Flow) -> NewOperator:
    """Return the `project` operator of a column operation; a filter keeps the row type.

    Raises:
        GraphError: an unknown column, a wrong type, or an expression that depends on other rows.
    """
    schema = flow.schema
    expressions = [_expression(column, mode) for column in columns]
    expressions += [_named(name, value) for name, value in named.items()]
    if not expressions:
        msg = f"{mode}: no column is given"
        raise GraphError(msg, hint=f"there are: {', '.join(without_ts(schema).names)}")
    for expression in expressions:
        _check_columns(mode, expression, without_ts(schema).names)
    output = output_schema_of(mode, expressions, schema)
    require_unique(output.names, mode)
    _check_row_by_row(mode, expressions, without_ts(schema))
    shown = ", ".join(str(expression) for expression in expressions)
    spec = OperatorSpec(
        uid="",
        name=f"{mode}({shown if len(shown) <= 60 else shown[:57] + '...'})",
        kind="project",
        config={"mode": mode},
        payload=serialize_expressions(expressions),
    )
    return NewOperator(spec, output, flow.row_type if mode == "filter" else None)


def _expression(column: ColumnLike, mode: Mode) -> pl.Expr:
    if isinstance(column, str):
        return pl.col(column)
    if isinstance(column, pl.Expr):
        return column
    if isinstance(column, dict):
        raise GraphError("a dict is not a column", hint=f"give each by its name: .{mode}(x=pl.col('amount') * 2)")
    msg = f"{argument_text(column)} is not a column"
    raise GraphError(msg, hint="use a column's name or a Polars expression such as pl.col('amount') * 2")


def _named(name: str, value: Any) -> pl.Expr:
    if isinstance(value, str):
        return pl.col(value).alias(name)
    if isinstance(value, pl.Expr):
        return value.alias(name)
    return pl.lit(value).alias(name)


def _check_columns(mode: Mode, expression: pl.Expr, known: Sequence[str]) -> None:
    if expression.meta.has_multiple_outputs():  # a selector or wildcard selects from the existing columns
        return
    require_columns(expression.meta.root_names(), known, mode)


def _check_row_by_row(mode: Mode, expressions: Sequence[pl.Expr], rows: pa.Schema) -> None:
    """Evaluate the expressions on rows together and one by one: batch bounds are arbitrary, so both must agree.

    Polars cannot decide this for all expressions (it takes `pl.col("a") - pl.col("a").mean()` for row by row).
    """
    sample = _sample(rows)
    try:
        whole = sample.with_columns(expressions)
        pieces = pl.concat([sample[i : i + 1].with_columns(expressions) for i in range(_SAMPLE_ROWS)])
    except pl.exceptions.PolarsError:  # generated rows that the expression rejects (a text to parse) prove nothing
        return
    if not whole.equals(pieces):
        msg = f"{mode}: the result of an expression depends on the rows around it"
        raise GraphError(msg, hint="aggregate over windows: key_by(...).window(...); or write a row function: .map(f)")


def _sample(rows: pa.Schema) -> pl.DataFrame:
    empty = pl.DataFrame(pl.from_arrow(rows.empty_table()))
    columns = []
    for name, dtype in empty.schema.items():
        values = [_value(dtype, i) for i in range(_SAMPLE_ROWS)]
        columns.append(pl.Series(name, values, dtype=dtype, strict=False))
    return pl.DataFrame(columns) if columns else pl.DataFrame({"": range(_SAMPLE_ROWS)})


def _value(dtype: pl.DataType, index: int) -> Any:
    number = (3, 1, 7, 2)[index]
    if dtype.is_float():
        return number + 0.5
    if dtype.is_decimal():
        return decimal.Decimal(number)
    if dtype.is_integer():
        return number
    if dtype == pl.Boolean:
        return number > 2
    if dtype == pl.String:
        return f"t{number}"
    if dtype == pl.Binary:
        return bytes([number])
    if dtype == pl.Date:
        return dt.date(2024, 1, number)
    if isinstance(dtype, pl.Datetime):
        return dt.datetime(2024, 1, number, tzinfo=dt.UTC)
    return None
