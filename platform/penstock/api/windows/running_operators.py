"""The operators of a keyed stream that emit with every row: running aggregates, and the first or last row of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from penstock.api.building.appending import NewOperator
from penstock.functions.state_ttl import row_ttl_options
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validate import require_columns
from penstock.operators.aggregates.running_schema import running_schema, validate_deduplicate

if TYPE_CHECKING:
    from penstock.api.building.input_stream import KeyedInputStream
    from penstock.api.windows.aggregates import Aggregate
    from penstock.functions.state_ttl import TimeToLive


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
