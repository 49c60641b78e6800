"""Aggregates as values: `ps.count()`, `ps.sum("amount")`...; computed by operators of windows and `running_aggregate`.

Named (`total=ps.sum("amount")`) or positional (`ps.sum("amount").alias("total")`). The functions have the names of
Python's `sum`, `min` and `max` on purpose: their use is `ps.sum`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.core.errors import GraphError, argument_text

if TYPE_CHECKING:
    import polars as pl

    from penstock.functions.folding_states import Aggregator

AggregateFunction = Literal[
    "count",
    "sum",
    "min",
    "max",
    "mean",
    "var",
    "std",
    "first",
    "last",
    "collect",
    "count_distinct",
    "approx_count_distinct",
    "quantile",
    "aggregator",
]


class Aggregate(msgspec.Struct, frozen=True):
    """One aggregate: a function, its input column and the rows it includes; named `<function>_<column>` by default."""

    fn: AggregateFunction
    column: str | None
    name: str
    #: A Polars expression, or the name of a boolean column; None: all rows.
    condition: Any = None
    #: For `quantile`: the quantile, from 0 to 1.
    quantile: float | None = None
    #: A user-defined aggregate.
    aggregator: Any = None
    #: Its output column, as schema text.
    output: str = ""

    def __post_init__(self) -> None:
        """Raise GraphError if the column is no name."""
        if self.column is not None and not isinstance(self.column, str):
            msg = f"ps.{self.fn}: {argument_text(self.column)} is not a column's name"
            raise GraphError(msg, hint=f"compute a column first: .with_columns(x=...), then ps.{self.fn}('x')")

    def alias(self, name: str) -> Aggregate:
        """Return the same aggregate under another name."""
        return msgspec.structs.replace(self, name=name)

    def where(self, condition: pl.Expr | str) -> Aggregate:
        """Return the same aggregate over the rows for which a Polars expression (or a boolean column) is true.

        `ps.count().where(pl.col("price") < 10_000)` counts rows with such a price: SQL's `FILTER (WHERE ...)`.
        """
        return msgspec.structs.replace(self, condition=condition)

    def to_config(self) -> dict[str, Any]:
        """Return the aggregate in the form of an operator's config."""
        config: dict[str, Any] = {"fn": self.fn, "column": self.column, "alias": self.name}
        if self.quantile is not None:
            config["quantile"] = self.quantile
        if self.output:
            config["output"] = self.output
        return config


def count(column: str | None = None) -> Aggregate:
    """Return the number of rows, or of a column's non-null values."""
    return Aggregate("count", column, "count" if column is None else f"count_{column}")


def sum(column: str) -> Aggregate:  # noqa: A001
    """Return the sum of a numeric column; nulls are ignored."""
    return Aggregate("sum", column, f"sum_{column}")


def min(column: str) -> Aggregate:  # noqa: A001
    """Return the smallest value."""
    return Aggregate("min", column, f"min_{column}")


def max(column: str) -> Aggregate:  # noqa: A001
    """Return the largest value."""
    return Aggregate("max", column, f"max_{column}")


def mean(column: str) -> Aggregate:
    """Return the arithmetic mean."""
    return Aggregate("mean", column, f"mean_{column}")


def var(column: str) -> Aggregate:
    """Return the sample variance (n - 1)."""
    return Aggregate("var", column, f"var_{column}")


def std(column: str) -> Aggregate:
    """Return the sample standard deviation (n - 1)."""
    return Aggregate("std", column, f"std_{column}")


def first(column: str) -> Aggregate:
    """Return the first value in event time."""
    return Aggregate("first", column, f"first_{column}")


def last(column: str) -> Aggregate:
    """Return the last value in event time."""
    return Aggregate("last", column, f"last_{column}")


def collect(column: str) -> Aggregate:
    """Return a list of the non-null values, in order of arrival; for windows.

    A window with this aggregate keeps its rows, as with `count_distinct`, `quantile` and user-defined aggregates.
    """
    return Aggregate("collect", column, f"collect_{column}")


def count_distinct(column: str) -> Aggregate:
    """Return the exact number of distinct non-null values; for windows, which then keep their rows."""
    return Aggregate("count_distinct", column, f"count_distinct_{column}")


def approx_count_distinct(column: str) -> Aggregate:
    """Return the approximate number of distinct non-null values (HyperLogLog, standard error 4.6 %).

    Takes 512 bytes per key and pane, for any number of values.
    """
    return Aggregate("approx_count_distinct", column, f"approx_count_distinct_{column}")


def quantile(column: str, q: float) -> Aggregate:
    """Return the exact `q`-quantile (0 to 1) of numbers, interpolated; for windows, which then keep their rows.

    `quantile("amount", 0.5)` is the median. Null when there is no value.
    """
    return Aggregate("quantile", column, f"quantile_{column}", quantile=q)


def aggregating(aggregator: Aggregator[Any, Any, Any], column: str | None = None) -> Aggregate:
    """Return a user-defined aggregate over a column's non-null values, or without a column over whole rows.

    For windows, which then keep their rows: they are added, one by one, when the window fires. The output column has
    the type in the annotation of `get_result`; it has the name of the class unless named.
    """
    return Aggregate("aggregator", column, type(aggregator).__name__.lower(), aggregator=aggregator)
