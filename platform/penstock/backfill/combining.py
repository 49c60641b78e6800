"""Combining before the shuffle of a backfill: the rows of a window become one row for each key and pane in their task.

A batch has no late rows, so this never changes a window's result. So a window with `allowed_lateness` or `late_to`
takes combined rows too, unlike in a running job. As there, sums of floats are combined only with `combine=all`. First
and last values are not combined, because rows of one time would change their order.
Used by the driver (`run`), which needs the columns, and by the tasks (`task`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.schema import schema_from_text
from penstock.operators.aggregates.aggregate_schema import parse
from penstock.operators.aggregates.combine import Combiner, combiner_for

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings
    from penstock.graph.job_graph import JobEdge, OperatorSpec

#: A row between stages costs far more than in a running job, so that combining pays earlier.
_RATIO, _LEAST_ROWS = 0.5, 16
#: Parts of a window's configuration for late rows, which a batch does not have.
_LATE_ROWS = ("late_to", "allowed_lateness_us")


def combined_edge(edge: JobEdge, target: OperatorSpec) -> JobEdge:
    """Return the edge to an operator, with `combine` set if a batch may combine its rows."""
    if edge.combine or target.kind != "window_aggregate":
        return edge
    config = {name: value for name, value in target.config.items() if name not in _LATE_ROWS}
    return msgspec.structs.replace(edge, combine=config) if parse(config).combines else edge


def combiner_of(edge: JobEdge, settings: JobSettings) -> Combiner | None:
    """Return a combiner of the edge's rows; None if they are sent as they are."""
    if not edge.combine or settings.combine == "off":
        return None
    settings = msgspec.structs.replace(settings, combine_ratio=_RATIO, combine_min_rows=_LEAST_ROWS)
    combiner = combiner_for(edge.combine, schema_from_text(edge.schema), settings)
    return None if combiner is None or combiner.depends_on_order else combiner


def why_not_combined(edge: JobEdge, target: OperatorSpec, settings: JobSettings) -> str | None:
    """Return why the rows of an edge to an operator are sent as they are; None if they are combined.

    Empty: the operator is no window that combined rows exist for.
    """
    edge = combined_edge(edge, target)
    if not edge.combine:
        return "" if target.kind != "window_aggregate" else "its windows take rows one by one"
    if combiner_of(edge, settings) is not None:
        return None
    if settings.combine == "off":
        return "combine=off"
    with_all = combiner_of(edge, msgspec.structs.replace(settings, combine="all")) is not None
    return "sums of floats depend on the order; combine=all combines them" if with_all else "first or last values"


def layout_of(edge: JobEdge, settings: JobSettings) -> bytes:
    """Return the Arrow schema of the edge's combined rows, serialized; empty if they are sent as they are."""
    combiner = combiner_of(edge, settings)
    return b"" if combiner is None else combiner.schema.serialize().to_pybytes()
