"""Checks of a watermark strategy against the rows of a stream; for `watermarks` and `watermark_code`."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from penstock.core.errors import GraphError
from penstock.eventtime.strategy import Unit, WatermarkStrategy
from penstock.graph.validation import require_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

EXAMPLE = "for example ps.WatermarkStrategy.bounded_out_of_orderness('5s', timestamp='ts')"


def require_strategy(strategy: object, where: str) -> None:
    """Check that it is a strategy. Raises GraphError."""
    if not isinstance(strategy, WatermarkStrategy):
        raise GraphError(f"{where}: {strategy!r} is no watermark strategy", hint=EXAMPLE)


def check_strategy(strategy: WatermarkStrategy | None, schema: pa.Schema, where: str) -> bool:
    """Check the strategy against a source's rows; return whether they get event time.

    Raises:
        GraphError: the timestamp column is unknown or holds no time, a number is out of range, or the unit is unused.
    """
    if strategy is None:
        return False
    require_strategy(strategy, where)
    strategy.validate(tuple(schema.names))
    if not strategy.has_event_time:
        return False
    if strategy.kind == "ingestion":
        return True
    require_columns([strategy.timestamp], schema.names, f"{where}: watermarks")
    data_type = schema.field(strategy.timestamp).type
    require_time(data_type, f"column {strategy.timestamp!r}", where)
    if strategy.kind != "punctuated":  # its unit is that of its watermarks, too: `watermark_code` checks it
        require_unit(strategy, f"column {strategy.timestamp!r} is", [data_type], where)
    return True


def require_time(data_type: pa.DataType, what: str, where: str) -> None:
    """Check that a column or expression is a time. Raises GraphError."""
    import pyarrow.types as pt

    if not (pt.is_timestamp(data_type) or pt.is_integer(data_type)):
        msg = f"{where}: watermarks need a time, and {what} is {data_type}"
        raise GraphError(msg, hint="declare it as datetime, or as int with unit='s', 'ms', 'us' or 'ns'")


def require_unit(strategy: WatermarkStrategy, what: str, data_types: Sequence[pa.DataType], where: str) -> None:
    """Check that the unit is known, and that there are integers to which it applies.

    Raises:
        GraphError: it is not known, or it would have no effect.
    """
    import pyarrow.types as pt

    unit, known = strategy.unit, get_args(Unit)
    if unit not in known:
        raise GraphError(f"{where}: unit={unit!r} is not known", hint=f"one of {', '.join(known)}")
    if unit == WatermarkStrategy.none().unit or any(pt.is_integer(data_type) for data_type in data_types):
        return
    way = "declare the field as int, or leave unit out"
    if unit != "ns":
        way = (
            "declare the field as int; or leave unit out, and set"
            f" timestamp_unit={unit!r} on a KafkaSource or FileSource of JSON"
        )
    raise GraphError(f"{where}: unit={unit!r} is for integers, and {what} {data_types[0]}", hint=way)
