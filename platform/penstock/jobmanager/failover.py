"""What a failure means: whether restarting can help at all, and which part of the job it takes down; pure.

Used by `jobmanager.job_master`. Every edge is pipelined, so a failed subtask takes its whole connected region with it.
"""

from __future__ import annotations

from penstock.graph.job_graph import JobGraph
from penstock.graph.regions import regions

#: Errors that come back at every attempt: they end the job instead of restarting it. Named at the front of the text.
FINAL_ERRORS = (
    "UsageError",
    "GraphError",
    "BadRecordError",
    "StateMismatchError",
    "SnapshotDamagedError",
    "LostTransactionError",
    "UndecidedOutputError",
    "SinkOverflowError",
)


def is_final(error: str) -> bool:
    """Whether a restart cannot help."""
    name = error.lstrip().partition(":")[0].strip().rpartition(".")[2]
    return name in FINAL_ERRORS


def failed_vertices(graph: JobGraph, vertex_id: str) -> tuple[str, ...]:
    """Return the vertices that restart when one of `vertex_id`'s subtasks failed."""
    return next((region for region in regions(graph) if vertex_id in region), ())
