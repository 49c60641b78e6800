"""The three graphs as text: the job as written, the submitted chains, the subtasks and slots.

Called by `env.explain()` and `penstock explain`.
"""

from __future__ import annotations

from penstock.core.counts import counted
from penstock.core.keygroup import key_groups_of
from penstock.graph.job_graph import Forward, JobEdge, JobGraph, KeyGroup, Partitioner, regions, slots_of
from penstock.graph.stream_graph import StreamEdge, StreamGraph

#: Subtasks listed one by one; the list of a wider vertex is shortened.
_LISTED = 8


def explain(stream_graph: StreamGraph, job_graph: JobGraph) -> str:
    """Return the three graphs as text."""
    return "\n".join([*_stream_lines(stream_graph), "", explain_job(job_graph)])


def explain_job(job_graph: JobGraph) -> str:
    """Return the two graphs that a cluster knows as text."""
    return "\n".join([*_job_lines(job_graph), "", *_execution_lines(job_graph)]) + "\n"


def _stream_lines(graph: StreamGraph) -> list[str]:
    lines = [f"Stream graph of {graph.name}: {len(graph.nodes)} operators"]
    for node in graph.nodes:
        uid = f" [{node.operator.uid}]" if node.operator.uid else ""
        lines.append(f"  {node.id}: {node.operator.name}{uid} x{graph.parallelism(node)}")
        for edge in graph.in_edges(node.id):
            side = f" side output {edge.side_output!r}" if edge.side_output else ""
            lines.append(
                f"       from {edge.source}{side}, {partitioner_text(graph.partitioner(edge))}{_combined(edge)}"
            )
        lines.extend(_columns(node.operator.output_schema))
    return lines


def _columns(schema: str) -> list[str]:
    if not schema:
        return []
    from penstock.core.schema import schema_from_text

    fields = [f for f in schema_from_text(schema) if not f.name.startswith("__")]
    return [f"       gives {', '.join(f'{f.name} {f.type}' for f in fields)}"]


def _job_lines(graph: JobGraph) -> list[str]:
    lines = [f"Job graph of {graph.name}: {len(graph.vertices)} vertices, fingerprint {graph.fingerprint}"]
    for vertex in graph.vertices:
        lines.append(f"  {vertex.id[:8]}: {vertex.name} x{vertex.parallelism}, slots {vertex.slot_sharing_group!r}")
        for edge in graph.in_edges(vertex.id):
            side = f" side output {edge.side_output!r}" if edge.side_output else ""
            lines.append(f"       from {edge.source[:8]}{side}, {partitioner_text(edge.partitioner)}{_combined(edge)}")
    return lines


def _execution_lines(graph: JobGraph) -> list[str]:
    slots = slots_of(graph)
    subtasks = sum(v.parallelism for v in graph.vertices)
    parts = regions(graph)
    counts = [counted(subtasks, "subtask"), counted(len(slots), "slot"), counted(len(parts), "region")]
    lines = [f"Execution graph of {graph.name}: {', '.join([*counts, counted(_channels(graph), 'channel')])}"]
    keyed = {e.target for e in graph.edges if isinstance(e.partitioner, KeyGroup)}
    parallelism = {v.id: v.parallelism for v in graph.vertices}
    for slot in slots[:_LISTED]:
        lines.append(f"  slot {slot.group}/{slot.index}")
        for vertex_id, subtask in slot.subtasks:
            owned = ""
            if vertex_id in keyed:
                groups = key_groups_of(subtask, parallelism[vertex_id], graph.settings.key_groups)
                owned = f", key groups {groups.start}-{groups.stop - 1}"
            lines.append(f"       {vertex_id[:8]}_{subtask}{owned}")
    if len(slots) > _LISTED:
        lines.append(f"  ... and {counted(len(slots) - _LISTED, 'slot')} more")
    return lines


def _channels(graph: JobGraph) -> int:
    parallelism = {v.id: v.parallelism for v in graph.vertices}
    wide = [1 if isinstance(e.partitioner, Forward) else parallelism[e.target] for e in graph.edges]
    return sum(parallelism[edge.source] * targets for edge, targets in zip(graph.edges, wide, strict=True))


def partitioner_text(partitioner: Partitioner) -> str:
    """Return how rows travel, in words."""
    if isinstance(partitioner, KeyGroup):
        return f"by key ({', '.join(partitioner.columns)})"
    return type(partitioner).__name__.lower()


def _combined(edge: StreamEdge | JobEdge) -> str:
    return ", combined where it pays" if edge.combine else ""
