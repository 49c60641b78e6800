"""The aggregates of a call of `.aggregate(...)` in the form of an operator; shared by windows and keyed streams.

An aggregate with a condition becomes one over a hidden column that is null where the condition is false, computed
before the rows are sent by key.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.api.windows.aggregates import Aggregate, aggregating
from penstock.core.errors import GraphError
from penstock.core.schema import arrow_field_of, schema_to_text
from penstock.graph.validate import require_columns, require_unique

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_HIDDEN = "__where_"


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
        raise GraphError(msg, hint="write for example .aggregate(n=ps.count(), total=ps.sum('amount'))")
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
        msg = f"{where}: {value!r} is not an aggregate"
        raise GraphError(msg, hint="there are ps.count, sum, min, max, mean, collect and others, and ps.Aggregator")
    return value if value.fn != "aggregator" else _with_output(value, where)


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
