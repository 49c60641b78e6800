"""Combining before the shuffle of a backfill: the rows of a window become one row for each key and pane in their task.

A batch has no late rows, so this never changes a window's result. As in a running job, sums of floats are combined
only with `combine=all`; first and last values are not combined, because rows of one time would change their order.
Used by the driver (`run`), which needs the columns, and by the tasks (`task`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.schema import schema_from_text
from penstock.operators.aggregates.combine import Combiner, combiner_for

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings
    from penstock.graph.job_graph import JobEdge

#: A row between stages costs far more than in a running job, so that combining pays earlier.
_RATIO, _LEAST_ROWS = 0.5, 16


def combiner_of(edge: JobEdge, settings: JobSettings) -> Combiner | None:
    """Return a combiner of the edge's rows; None if they are sent as they are."""
    if not edge.combine or settings.combine == "off":
        return None
    settings = msgspec.structs.replace(settings, combine_ratio=_RATIO, combine_min_rows=_LEAST_ROWS)
    combiner = combiner_for(edge.combine, schema_from_text(edge.schema), settings)
    return None if combiner is None or combiner.depends_on_order else combiner


def layout_of(edge: JobEdge, settings: JobSettings) -> bytes:
    """Return the Arrow schema of the edge's combined rows, serialized; empty if they are sent as they are."""
    combiner = combiner_of(edge, settings)
    return b"" if combiner is None else combiner.schema.serialize().to_pybytes()
