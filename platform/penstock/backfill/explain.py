"""The plan of a backfill as text: stages, tasks, and how each operator and each row between stages is processed.

Called by `penstock backfill --explain`; reads nothing outside the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.backfill.combining import why_not_combined
from penstock.backfill.feeding import why_by_time
from penstock.backfill.stages import is_splittable, parts_of
from penstock.graph.explain import partitioner_text
from penstock.graph.job_graph import KeyGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex

_KERNELS = "compiled kernels, over columns"
_BY_ROW = "Python, row by row"
_NEVER = "not in a backfill"
#: kind -> how its rows are processed, for each kind of `operators.registry`.
PROCESSED = {
    "source": "decodes to columns",
    "project": "Polars expressions, over columns",
    "map_batches": "Python, batch by batch",
    **dict.fromkeys(
        ("key_selector", "map", "flat_map", "filter_rows", "plain_process", "process", "co_process"), _BY_ROW
    ),
    **dict.fromkeys(("assign_watermarks", "constant_key", "running_aggregate", "deduplicate"), _KERNELS),
    **dict.fromkeys(("window_aggregate", "zoned_window", "session_aggregate", "window_top"), _KERNELS),
    **dict.fromkeys(("spread_key", "partial_window", "merged_window"), _KERNELS),
    **dict.fromkeys(("interval_join", "window_join", "temporal_join"), _KERNELS),
    **dict.fromkeys(("processing_window", "map_async", "broadcast_process", "collect", "print"), _NEVER),
    **dict.fromkeys(("window_rows", "window_rows_join"), "keeps rows; Python at each window"),
    "sink": "writes columns as staged output",
}


def explain(graph: JobGraph, *, parts: int, piece_rows: int, master: str | None) -> list[dict[str, Any]]:
    """Return the stages in the order in which they run."""
    numbers = {vertex.id: number for number, vertex in enumerate(graph.vertices, 1)}
    return [
        {
            "stage": numbers[vertex.id],
            "name": vertex.name,
            "tasks": _tasks(vertex, graph, parts, piece_rows),
            "runs": "in this process" if master is None else f"as a job of Spark ({master})",
            "inputs": [_input(edge, vertex, graph, numbers) for edge in graph.in_edges(vertex.id)],
            "operators": _operators(vertex, graph.in_edges(vertex.id)),
        }
        for vertex in graph.vertices
    ]


def lines(stages: list[dict[str, Any]]) -> list[str]:
    """Return the stages as text."""
    found = []
    for stage in stages:
        found.append(f"stage {stage['stage']}: {stage['name']}, {stage['tasks']}, {stage['runs']}")
        found += [
            f"    from stage {given['stage']} {given['partitioned']}: {given['rows']}" for given in stage["inputs"]
        ]
        for operator in stage["operators"]:
            order = f", {operator['order']}" if "order" in operator else ""
            found.append(f"    {operator['name']}: {operator['processed']}{order}")
    return found


def _tasks(vertex: JobVertex, graph: JobGraph, parts: int, piece_rows: int) -> str:
    if not vertex.is_source:
        count = parts_of(vertex, parts, graph.settings.key_groups)
        return f"{count} tasks, each a range of keys" if count > 1 else "1 task"
    if is_splittable(vertex):
        return f"one task for about {piece_rows:,} rows of a split, or for a file"
    return "one task for each split, because operators after the source need all rows of it in order"


def _input(edge: JobEdge, vertex: JobVertex, graph: JobGraph, numbers: dict[str, int]) -> dict[str, Any]:
    why = why_not_combined(edge, vertex.operators[0], graph.settings)
    if why is None:
        rows = "one row for each key and pane of a task, where it pays"
    else:
        rows = f"every row ({why})" if why else "every row"
    known = partitioner_text(edge.partitioner)
    partitioned = known if isinstance(edge.partitioner, KeyGroup) else f"({known})"
    return {"stage": numbers[edge.source], "partitioned": partitioned, "rows": rows}


def _operators(vertex: JobVertex, inputs: Sequence[JobEdge]) -> list[dict[str, Any]]:
    found = [
        {"uid": operator.uid, "name": operator.name, "processed": PROCESSED[operator.kind]}
        for operator in vertex.operators
    ]
    why = why_by_time(vertex.operators, inputs)
    if why != "":
        found[0]["order"] = "key by key" if why is None else f"in order of time ({why})"
    return found
