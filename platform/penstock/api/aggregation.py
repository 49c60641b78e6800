"""From `.aggregate(...)` as written to the aggregates an operator computes; windows and keyed streams share it.

An aggregate with a condition becomes one over a hidden column that is null where the condition does not hold, computed
before the rows are sent to their keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.api.aggregates import Aggregate
from penstock.core.errors import GraphError
from penstock.graph.validate import require_columns, require_unique

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.api.keyed_stream import KeyedStream

_HIDDEN = "__where_"


def wanted_aggregates(
    aggregates: Iterable[Any], named: dict[str, Any], stream: KeyedStream, where: str
) -> list[Aggregate]:
    """Return the aggregates of a call, positional and named, in order.

    Raises:
        GraphError: there is none, one is something else or reads a column that does not exist.
    """
    wanted = [*aggregates, *(_renamed(name, value, where) for name, value in named.items())]
    if not wanted:
        msg = f"{where}: no aggregate is given"
        raise GraphError(msg, hint="write for example .aggregate(n=ps.count(), total=ps.sum('amount'))")
    for value in wanted:
        _require_aggregate(value, where)
        if value.column is not None:
            require_columns([value.column], stream.columns, f"{where}: {value.fn}")
    return wanted


def with_conditions(
    stream: KeyedStream, aggregates: list[Aggregate], where: str
) -> tuple[KeyedStream, list[Aggregate]]:
    """Return the stream with a hidden column for every conditional aggregate, and the aggregates over these."""
    if all(value.condition is None for value in aggregates):
        return stream, aggregates
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
        name = _HIDDEN + value.name
        shown = pl.lit(True) if value.column is None else pl.col(value.column)
        columns[name] = pl.when(condition).then(shown)
        plain.append(msgspec.structs.replace(value, column=name, condition=None))
    return stream.with_hidden_columns(columns), plain


def _renamed(name: str, value: Any, where: str) -> Aggregate:
    _require_aggregate(value, f"{where}: {name}")
    renamed: Aggregate = msgspec.structs.replace(value, name=name)
    return renamed


def _require_aggregate(value: Any, where: str) -> None:
    if not isinstance(value, Aggregate):
        msg = f"{where}: {value!r} is not an aggregate"
        raise GraphError(msg, hint="there are ps.count, sum, min, max, mean, var, std, first and last")
