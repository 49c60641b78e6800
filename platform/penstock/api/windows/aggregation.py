"""The operators of aggregates: over windows, running by key, and the first or last row of a key.

An aggregate with a condition becomes one over a hidden column. Called by `api.streams`.
"""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from penstock.api.building.operator_nodes import NewOperator
from penstock.api.windows.aggregates import Aggregate, aggregating, count
from penstock.api.windows.windows import Global, Session
from penstock.core.elements import TS_COLUMN
from penstock.core.errors import GraphError, argument_text
from penstock.core.schema import arrow_field_of, schema_to_text
from penstock.functions.state_ttl import row_ttl_options
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validation import WINDOW_COLUMNS, require_columns, require_unique
from penstock.operators.aggregates.aggregate_schema import (
    ROW_FUNCTIONS,
    output_schema,
    parse,
    running_schema,
    validate_deduplicate,
)
from penstock.operators.rows.columns import with_ts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.api.building.flow import KeyedInputStream
    from penstock.api.windows.window_options import WindowedRows
    from penstock.api.windows.windows import Window
    from penstock.functions.state_ttl import TimeToLive

_HIDDEN = "__where_"
_EXAMPLE = ".aggregate(n=ps.count(), total=ps.sum('amount'))"
#: Aggregates of a column that a user may name as text.
_BY_COLUMN = frozenset(("sum", "min", "max", "mean", "collect"))


def wanted_aggregates(
    aggregates: Iterable[Any], named: dict[str, Any], columns: Sequence[str], where: str
) -> list[Aggregate]:
    """Return the aggregates of a call, positional and named, in order.

    Raises:
        GraphError: there is none, one is something else or reads a column that does not exist.
    """
    wanted = [
        *(_aggregate_of(value, where) for value in aggregates),
        *(_renamed(name, value, where) for name, value in named.items()),
    ]
    if not wanted:
        msg = f"{where}: no aggregate is given"
        raise GraphError(msg, hint=f"write for example {_EXAMPLE}")
    for value in wanted:
        if value.column is not None:
            known = [name for name in columns if not name.startswith("__")]
            require_columns([value.column], known, f"{where}: {value.fn}")
    return wanted


def hidden_columns(aggregates: list[Aggregate], where: str) -> tuple[dict[str, Any], list[Aggregate]]:
    """Return a hidden column, as an expression, for every conditional aggregate, and the aggregates over these."""
    if all(value.condition is None for value in aggregates):
        return {}, aggregates
    import polars as pl

    require_unique([value.name for value in aggregates], where)
    columns: dict[str, Any] = {}
    plain: list[Aggregate] = []
    for value in aggregates:
        if value.condition is None:
            plain.append(value)
            continue
        condition = pl.col(value.condition) if isinstance(value.condition, str) else value.condition
        if not isinstance(condition, pl.Expr):
            msg = f"{where}: where({value.condition!r}) is not a condition"
            raise GraphError(msg, hint="use a Polars expression such as pl.col('price') < 10_000, or a column's name")
        if value.fn == "aggregator" and value.column is None:
            msg = f"{where}: where(...) of {value.name!r}, which takes whole rows"
            raise GraphError(msg, hint="name the column it takes: ps.aggregating(Mean(), 'amount').where(...)")
        name = _HIDDEN + value.name
        shown = pl.lit(True) if value.column is None else pl.col(value.column)
        columns[name] = pl.when(condition).then(shown)
        plain.append(msgspec.structs.replace(value, column=name, condition=None))
    return columns, plain


def _renamed(name: str, value: Any, where: str) -> Aggregate:
    renamed: Aggregate = msgspec.structs.replace(_aggregate_of(value, f"{where}: {name}"), name=name)
    return renamed


def _aggregate_of(value: Any, where: str) -> Aggregate:
    """Return an aggregate; a user-defined one may be given directly, for whole rows."""
    if not isinstance(value, Aggregate) and not isinstance(value, type) and _is_aggregator(value):
        value = aggregating(value)
    if not isinstance(value, Aggregate):
        raise _no_aggregate(value, where)
    return value if value.fn != "aggregator" else _with_output(value, where)


def _no_aggregate(value: Any, where: str) -> GraphError:
    """Return the error of an argument that is no aggregate: a container, a text, or a function without its call."""
    if isinstance(value, (dict, list, tuple, set)):
        msg = f"{where}: a {type(value).__name__} is not an aggregate"
        return GraphError(msg, hint=f"give each by its name: {_EXAMPLE}")
    called = inspect.isfunction(value) and value.__module__ == count.__module__
    name = value.__name__ if called else str(value)
    shown = f"ps.{name} without parentheses" if called else argument_text(value)
    way = "there are ps.count(), sum, min, max, mean, collect and others, and ps.Aggregator"
    if name == count.__name__:
        way = "write ps.count()"
    elif called or name in _BY_COLUMN:
        way = f"write for example ps.{name}('COLUMN')"
    return GraphError(f"{where}: {shown} is not an aggregate", hint=way)


def _with_output(value: Aggregate, where: str) -> Aggregate:
    """Return a user-defined aggregate with the type of its results."""
    where = f"{where}: {type(value.aggregator).__name__}"
    if isinstance(value.aggregator, type) or not _is_aggregator(value.aggregator):
        way = "make one of a class with create_accumulator, add, get_result and merge, such as a ps.Aggregator"
        raise GraphError(f"{where} is no aggregator", hint=way)
    try:
        found = typing.get_type_hints(type(value.aggregator).get_result, include_extras=True).get("return")
    except (NameError, TypeError) as error:
        raise GraphError(f"{where}: its annotations cannot be read: {error}", hint="annotate get_result") from error
    if found is None or isinstance(found, typing.TypeVar):
        msg = f"{where}: the type of its result is not known"
        raise GraphError(msg, hint="annotate it: def get_result(self, accumulator) -> float")
    field = arrow_field_of(value.name, found, f"{where}: its result")
    made: Aggregate = msgspec.structs.replace(value, output=schema_to_text(pa.schema([field])))
    return made


def _is_aggregator(value: Any) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("create_accumulator", "add", "get_result"))


def window_aggregate(rows: WindowedRows, wanted: list[Aggregate], where: str) -> NewOperator:
    """Return the operator that computes aggregates of each key and window.

    Raises:
        GraphError: a name twice, or a column of a type the aggregate cannot take.
    """
    stream, window, options = rows.stream, rows.window, rows.options
    require_unique([*stream.keys, *WINDOW_COLUMNS, *(value.name for value in wanted)], where)
    chosen = options.trigger or options.evictor or isinstance(window, Global)
    plain = not chosen and not (isinstance(window, Session) and window.time != "event")
    edge = _used_columns(rows, wanted)
    if not plain or keeps_rows(wanted):
        from penstock.api.windows.window_rows import aggregate_operator

        return aggregate_operator(kept_rows(rows, wanted) if plain else rows, wanted)
    config = {**rows.config(), "aggregates": [value.to_config() for value in wanted]}
    kind = _kind(window)
    spec = OperatorSpec(uid="", name=f"Window({window.label})", kind=kind, config=config, stateful=True)
    given = stream.flow.schema if window.time == "event" else with_ts(stream.flow.schema)
    combine = kind in ("window_aggregate", "processing_window") and parse(config).combines
    late = {} if options.late_tag is None else {options.late_tag: schema_to_text(rows.visible_schema)}
    return NewOperator(spec, output_schema(config, given), side_outputs=late, edge=edge, combine=combine)


def keeps_rows(wanted: Sequence[Aggregate]) -> bool:
    """Return whether a window with these aggregates keeps its rows."""
    return any(value.fn in ROW_FUNCTIONS for value in wanted)


def kept_rows(rows: WindowedRows, wanted: Sequence[Aggregate]) -> WindowedRows:
    """Return the rows with the columns that aggregates need: all for one over whole rows."""
    whole = any(value.fn == "aggregator" and value.column is None for value in wanted)
    return rows if whole else msgspec.structs.replace(rows, edge=_used_columns(rows, wanted))


def _used_columns(rows: WindowedRows, wanted: Sequence[Aggregate]) -> pa.Schema:
    """Return the columns that the operator uses: no others are sent to it."""
    schema = rows.stream.flow.schema
    if rows.options.late_tag is not None:
        return schema
    time = {TS_COLUMN} if rows.window.time == "event" else set()
    used = {*rows.stream.keys, *(value.column for value in wanted), *time}
    return pa.schema([field for field in schema if field.name in used])


def _kind(window: Window) -> str:
    """Return the kind of the operator that supports a window."""
    if isinstance(window, Session):
        return "session_aggregate"
    if window.time != "event":
        return "processing_window"
    return "zoned_window" if "time_zone" in window.to_config() else "window_aggregate"


def running_aggregate(stream: KeyedInputStream, wanted: list[Aggregate], ttl: TimeToLive) -> NewOperator:
    """Return the operator that emits the aggregates of a key with each of its rows.

    Raises:
        GraphError: a column of a type the aggregate cannot take, or no time-to-live.
    """
    config: dict[str, Any] = {"key": list(stream.keys), "aggregates": [value.to_config() for value in wanted]}
    config |= row_ttl_options(ttl, "aggregate")
    spec = OperatorSpec(uid="", name="Aggregate", kind="running_aggregate", config=config, stateful=True)
    return NewOperator(spec, running_schema(config, stream.flow.schema))


def deduplicate(
    stream: KeyedInputStream, keep: Literal["first", "last"], by: str | None, ttl: TimeToLive
) -> NewOperator:
    """Return the operator that keeps one row of each key.

    Raises:
        GraphError: no such column, one that cannot order rows, or no time-to-live.
    """
    if by is not None:
        require_columns([by], stream.columns, "deduplicate")
    flow = stream.flow
    config = {"key": list(stream.keys), "keep": keep, "by": by, **row_ttl_options(ttl, "deduplicate")}
    validate_deduplicate(config, flow.schema)
    spec = OperatorSpec(uid="", name=f"Deduplicate(keep {keep})", kind="deduplicate", config=config, stateful=True)
    return NewOperator(spec, flow.schema, flow.row_type)
