"""Which vertices restart together after a failure, and the part of a job that they make; pure.

Called by `jobmanager.deploy.region_restart` when a worker fails.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from penstock.graph.job_graph import JobGraph, connected_components


def failover_regions(graph: JobGraph, placement: Mapping[tuple[str, int], str]) -> tuple[tuple[str, ...], ...]:
    """Return the vertex ids of each part that restarts by itself, in the order of the graph.

    A part is a pipelined region. Regions with subtasks in one worker are one part, because a worker is killed as a
    whole. `placement`: (vertex id, subtask) -> worker id.
    """
    first: dict[str, str] = {}
    shared = [(first.setdefault(worker, vertex_id), vertex_id) for (vertex_id, _), worker in placement.items()]
    edges = [(edge.source, edge.target) for edge in graph.edges]
    return connected_components([vertex.id for vertex in graph.vertices], [*edges, *shared])


def part_of(graph: JobGraph, vertices: Collection[str]) -> JobGraph:
    """Return the graph with these vertices only; no edge may leave them."""
    return msgspec.structs.replace(
        graph,
        vertices=tuple(vertex for vertex in graph.vertices if vertex.id in vertices),
        edges=tuple(edge for edge in graph.edges if edge.source in vertices),
    )
