"""Checks of a watermark strategy against the rows of a stream; for `watermarks` and `watermark_code`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import GraphError
from penstock.eventtime.strategy import WatermarkStrategy
from penstock.graph.validation import require_columns

if TYPE_CHECKING:
    import pyarrow as pa

EXAMPLE = "for example ps.WatermarkStrategy.bounded_out_of_orderness('5s', timestamp='ts')"


def require_strategy(strategy: object, where: str) -> None:
    """Check that it is a strategy. Raises GraphError."""
    if not isinstance(strategy, WatermarkStrategy):
        raise GraphError(f"{where}: {strategy!r} is no watermark strategy", hint=EXAMPLE)


def check_strategy(strategy: WatermarkStrategy | None, schema: pa.Schema, where: str) -> bool:
    """Check the strategy against a source's rows; return whether they get event time.

    Raises:
        GraphError: the timestamp column is unknown or holds no time, or a number is out of range.
    """
    if strategy is None:
        return False
    require_strategy(strategy, where)
    if not strategy.has_event_time:
        strategy.validate(tuple(schema.names))
        return False
    strategy.validate(tuple(schema.names))
    if strategy.kind == "ingestion":
        return True
    require_columns([strategy.timestamp], schema.names, f"{where}: watermarks")
    require_time(schema.field(strategy.timestamp).type, f"column {strategy.timestamp!r}", where)
    return True


def require_time(data_type: pa.DataType, what: str, where: str) -> None:
    """Check that a column or expression is a time. Raises GraphError."""
    import pyarrow.types as pt

    if not (pt.is_timestamp(data_type) or pt.is_integer(data_type)):
        msg = f"{where}: watermarks need a time, and {what} is {data_type}"
        raise GraphError(msg, hint="declare it as datetime, or as int with unit='s', 'ms', 'us' or 'ns'")
