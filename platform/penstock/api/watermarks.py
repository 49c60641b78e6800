"""`ps.WatermarkStrategy`: how rows get event time and watermarks.

The class itself is `penstock.eventtime.strategy.WatermarkStrategy`, because operators apply it; here is what
`env.from_source` and `stream.assign_timestamps_and_watermarks` do with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.api.appending import append_operator
from penstock.core.errors import GraphError
from penstock.eventtime.strategy import WatermarkStrategy, strategy_to_builtins
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validate import require_columns
from penstock.operators.columns import with_ts

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.data_stream import DataStream

_EXAMPLE = "for example ps.WatermarkStrategy.bounded_out_of_orderness('5s', timestamp='ts')"
__all__ = ["WatermarkStrategy", "assigned", "check_strategy", "code_of", "require_time"]


def _require_strategy(strategy: object, where: str) -> None:
    if not isinstance(strategy, WatermarkStrategy):
        raise GraphError(f"{where}: {strategy!r} is no watermark strategy", hint=_EXAMPLE)


def check_strategy(strategy: WatermarkStrategy | None, schema: pa.Schema, where: str) -> bool:
    """Check the strategy against a source's rows; return whether they get event time.

    Raises:
        GraphError: the timestamp column is unknown or holds no time, or a number is out of range.
    """
    if strategy is None:
        return False
    _require_strategy(strategy, where)
    if not strategy.has_event_time:
        strategy.validate(tuple(schema.names))
        return False
    strategy.validate(tuple(schema.names))
    if strategy.kind == "ingestion":
        return True
    require_columns([strategy.timestamp], schema.names, f"{where}: watermarks")
    require_time(schema.field(strategy.timestamp).type, f"column {strategy.timestamp!r}", where)
    return True


def code_of(strategy: WatermarkStrategy | None, schema: pa.Schema, where: str) -> bytes:
    """Return what an operator carries besides the strategy's numbers. Raises GraphError."""
    if strategy is None or strategy.code is None:
        return b""
    from penstock.api.watermark_code import pack_code

    return pack_code(strategy, schema, where)


def assigned(stream: DataStream, strategy: WatermarkStrategy) -> DataStream:
    """Add the operator that gives rows event time anew.

    Raises:
        GraphError: no strategy with event time, one that does not fit the columns, or alignment.
    """
    where = "assign_timestamps_and_watermarks"
    _require_strategy(strategy, where)
    if not strategy.has_event_time:
        raise GraphError(f"{where}: {strategy!r} gives no event time", hint=_EXAMPLE)
    if strategy.alignment_group:
        msg = f"{where}: only sources can wait for each other (alignment group {strategy.alignment_group!r})"
        raise GraphError(msg, hint="give env.from_source(..., watermarks=...) the strategy with the alignment")
    schema = stream.schema
    check_strategy(strategy, schema, where)
    spec = OperatorSpec(
        uid="",
        name="Watermarks",
        kind="assign_watermarks",
        config={"watermarks": strategy_to_builtins(strategy)},
        payload=code_of(strategy, schema, where),
        python=strategy.kind == "generator",
        stateful=True,
    )
    return append_operator(stream, spec, with_ts(schema), stream.flow.row_type)


def require_time(data_type: pa.DataType, what: str, where: str) -> None:
    """Check that a column or expression is a time. Raises GraphError."""
    import pyarrow.types as pt

    if not (pt.is_timestamp(data_type) or pt.is_integer(data_type)):
        msg = f"{where}: watermarks need a time, and {what} is {data_type}"
        raise GraphError(msg, hint="declare it as datetime, or as int with unit='s', 'ms', 'us' or 'ns'")
