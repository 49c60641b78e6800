"""`ps.WatermarkStrategy`: how rows get event time and watermarks.

The class is `penstock.eventtime.strategy.WatermarkStrategy`, because operators apply it; this module contains its use
by `env.from_source` and `stream.assign_timestamps_and_watermarks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.api.building.operator_nodes import NewOperator
from penstock.api.functions.watermark_checks import EXAMPLE, check_strategy, require_strategy
from penstock.core.errors import GraphError
from penstock.eventtime.strategy import WatermarkStrategy, strategy_to_builtins
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.rows.columns import with_ts, without_ts

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.building.flow import Flow

__all__ = ["WatermarkStrategy", "assigned", "code_of"]


def code_of(strategy: WatermarkStrategy | None, schema: pa.Schema, where: str) -> bytes:
    """Return the payload of an operator with this strategy. Raises GraphError."""
    if strategy is None or strategy.code is None:
        return b""
    from penstock.api.functions.watermark_code import pack_code

    return pack_code(strategy, schema, where)


def assigned(flow: Flow, strategy: WatermarkStrategy) -> NewOperator:
    """Return the operator that assigns event time to rows.

    Raises:
        GraphError: no strategy with event time, one that does not fit the columns, or alignment.
    """
    where = "assign_timestamps_and_watermarks"
    require_strategy(strategy, where)
    if not strategy.has_event_time:
        raise GraphError(f"{where}: {strategy!r} gives no event time", hint=EXAMPLE)
    if strategy.alignment_group:
        msg = f"{where}: only sources can wait for each other (alignment group {strategy.alignment_group!r})"
        raise GraphError(msg, hint="give env.from_source(..., watermarks=...) the strategy with the alignment")
    schema = without_ts(flow.schema)
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
    return NewOperator(spec, with_ts(schema), flow.row_type)
