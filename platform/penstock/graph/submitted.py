"""Read and check a job graph from outside before any of it is used; pure.

Graphs of `penstock.graph.chaining` pass. Any other input gets one error: names that would leave their folder, missing
vertices, numbers out of bounds. Called by the dispatcher for submits and upgrades.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from penstock.core.errors import UsageError
from penstock.graph.job_graph import JobGraph, JobVertex, decode_graph

#: Job names and uids are names of folders.
_NAME = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]{1,200}")
_VERTEX_ID = re.compile(r"[0-9a-f]{32}")
_MOST_SUBTASKS = 1 << 15
_HINT = "submit a graph of `penstock run` or env.execute, made by the same version of penstock"


def read_submitted(data: bytes) -> JobGraph:
    """Return the graph in `data`.

    Raises:
        UsageError: it is not a graph, or cannot be a job; names the fault.
    """
    try:
        graph = decode_graph(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"the job graph cannot be read: {error}"
        raise UsageError(msg, hint="client and JobManager must be of the same version") from error
    for fault in _faults(graph):
        msg = f"the job graph is malformed: {fault}"
        raise UsageError(msg, hint=_HINT)
    return graph


def _faults(graph: JobGraph) -> Iterator[str]:
    if not _NAME.fullmatch(graph.name):
        yield f"the job's name {graph.name[:100]!r} cannot be the name of a folder"
    if not graph.vertices:
        yield "it has no vertices"
    ids = [vertex.id for vertex in graph.vertices]
    if len(set(ids)) != len(ids):
        yield "two vertices have the same id"
    if not 1 <= graph.settings.key_groups <= _MOST_SUBTASKS:
        yield f"{graph.settings.key_groups} key groups"
    if graph.settings.autoscaler.fault:
        yield graph.settings.autoscaler.fault
    for vertex in graph.vertices:
        yield from _faults_of(vertex, graph.settings.key_groups)
    uids = [operator.uid for vertex in graph.vertices for operator in vertex.operators]
    if len(set(uids)) != len(uids):
        yield "two operators have the same uid"
    order = {vertex_id: place for place, vertex_id in enumerate(ids)}
    for edge in graph.edges:
        if edge.source not in order or edge.target not in order:
            yield (
                f"an edge connects {edge.source[:40]!r} and {edge.target[:40]!r}, which are not both "
                "vertices of the graph"
            )
        elif order[edge.source] >= order[edge.target]:
            yield f"the edge from {edge.source} to {edge.target} does not lead to a later vertex"


def _faults_of(vertex: JobVertex, key_groups: int) -> Iterator[str]:
    if not _VERTEX_ID.fullmatch(vertex.id):
        yield f"{vertex.id[:40]!r} is not a vertex id"
    if not vertex.operators:
        yield f"vertex {vertex.id} has no operators"
    if not 1 <= vertex.parallelism <= _MOST_SUBTASKS:
        yield f"vertex {vertex.id} has parallelism {vertex.parallelism}"
    if vertex.parallelism > key_groups and any(operator.keyed for operator in vertex.operators):
        yield f"vertex {vertex.id} has more subtasks than there are key groups ({vertex.parallelism}, {key_groups})"
    for operator in vertex.operators:
        for name in (operator.uid, *operator.states, *operator.operator_states):
            if not _NAME.fullmatch(name):
                yield f"{name[:100]!r} cannot be the name of an operator or state"
        for part in ("source", "sink"):
            config = operator.config.get(part, {})
            if operator.kind == part and not (isinstance(config, dict) and isinstance(config.get("factory"), str)):
                yield f"{part} {operator.uid!r} does not name its connector"
