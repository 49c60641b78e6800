"""A job graph with another parallelism; pure.

Called by `jobmanager.jobs` when a running job is rescaled or upgraded, and by
`jobmanager.change.adapting`, which fits jobs with the adaptive scheduler into the slots that there are. Vertices that
are joined by forward edges change together. Operators that choose among the rows of all keys keep one subtask.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.core.errors import UsageError
from penstock.graph.job_graph import Forward, JobGraph, JobVertex, connected_components, required_slots

_NO_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class RescaleTo:
    """The parallelism that a user requests."""

    #: Number of subtasks of the vertices that have the job's own parallelism.
    parallelism: int | None = None
    #: Operator's uid or vertex id -> subtasks.
    vertices: Mapping[str, int] = field(default_factory=dict)
    #: Vertex id -> smallest and largest number of subtasks; the number of slots limits the largest.
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: Requests with the same token are the same request.
    token: str = ""

    def applied(self, graph: JobGraph, slots: int) -> JobGraph:
        """Return the rescaled graph; `slots`: those the job has or could get. Raises UsageError."""
        limit = _NO_LIMIT if is_adaptive(graph) else slots
        vertices = within_bounds(graph, self.bounds, limit) if self.bounds else self.vertices
        return fitted(rescaled(graph, self.parallelism, vertices), slots)


def described(graph: JobGraph) -> str:
    """Return the parallelism of all vertices in one line."""
    return ", ".join(f"{vertex.name} x{vertex.parallelism}" for vertex in graph.vertices)


def is_adaptive(graph: JobGraph) -> bool:
    """Return whether the job's parallelism follows the slots."""
    return graph.settings.adaptive_scheduler.enabled


def least_parallelism(graph: JobGraph) -> int:
    """Return the smallest parallelism with which a job may run: of its widest vertex."""
    widest = max((vertex.wanted for vertex in graph.vertices), default=1)
    return min(graph.settings.adaptive_scheduler.min_parallelism, widest) if is_adaptive(graph) else widest


def limited(graph: JobGraph, most: int) -> JobGraph:
    """Return the graph with at most `most` subtasks per vertex, which keep their declared parallelism in mind."""
    vertices = tuple(
        msgspec.structs.replace(v, parallelism=min(v.wanted, most), declared=v.wanted if v.wanted > most else 0)
        for v in graph.vertices
    )
    return msgspec.structs.replace(graph, vertices=vertices)


def reachable_parallelism(graph: JobGraph, slots: int) -> int:
    """Return the largest parallelism of a vertex with which the job fits into `slots` slots; 0: not with its least."""
    widest: dict[str, int] = {}
    for vertex in graph.vertices:
        widest[vertex.slot_sharing_group] = max(widest.get(vertex.slot_sharing_group, 0), vertex.wanted)
    least, most = least_parallelism(graph), max(widest.values())
    # the number of slots grows with the parallelism
    counts = range(least, most + 1)
    return counts[0] - 1 + found if (found := bisect_right(counts, slots, key=lambda n: _slots_at(widest, n))) else 0


def declared_slots(graph: JobGraph) -> int:
    """Return the number of slots that the job has when none is missing."""
    return required_slots(limited(graph, _NO_LIMIT))


def least_slots(graph: JobGraph) -> int:
    """Return the number of slots without which the job does not start."""
    return required_slots(limited(graph, least_parallelism(graph)))


def _slots_at(widest: Mapping[str, int], most: int) -> int:
    return sum(min(count, most) for count in widest.values())


def fitted(graph: JobGraph, slots: int) -> JobGraph:
    """Return the graph as it fits into `slots` slots; as it is if it does not, or without the adaptive scheduler."""
    most = reachable_parallelism(graph, slots) if is_adaptive(graph) else 0
    return limited(graph, most) if most else graph


def rescaled(graph: JobGraph, parallelism: int | None, by_uid: Mapping[str, int]) -> JobGraph:
    """Return the graph with `parallelism` where it has the job's own, and `by_uid` for the vertices named there.

    A vertex with an explicit parallelism keeps it unless it is named, by the uid of any of its operators or by its id.
    The numbers are those that the job declares: it may run with less for want of slots (`limited`).

    Raises:
        UsageError: not a number of subtasks, more than key groups, an unknown uid, or unequal counts for joined
        vertices.
    """
    if parallelism is None and not by_uid:
        msg = "no parallelism is given"
        raise UsageError(msg, hint="say how many subtasks: `penstock rescale JOB N`, or --vertex UID=N")
    graph = limited(graph, _NO_LIMIT)
    groups = forward_groups(graph)
    chosen: dict[str, int] = {}
    if parallelism is not None:
        own = graph.settings.parallelism
        for group in groups:
            if all(v.parallelism == own for v in group) and not any(is_single(v) for v in group):
                chosen.update((v.id, parallelism) for v in group)
        if not chosen and not by_uid:
            msg = f"no part of job {graph.name!r} has the job's own parallelism {own}"
            raise UsageError(msg, hint="name the operators: --vertex UID=N")
    for name, count in by_uid.items():
        _choose(graph, groups, chosen, (name, count, by_uid))
    for vertex in graph.vertices:
        _check(graph, vertex, chosen.get(vertex.id, vertex.parallelism))
    settings = graph.settings
    if parallelism is not None:
        settings = msgspec.structs.replace(settings, parallelism=parallelism)
    vertices = tuple(msgspec.structs.replace(v, parallelism=chosen.get(v.id, v.parallelism)) for v in graph.vertices)
    return msgspec.structs.replace(graph, vertices=vertices, settings=settings)


@dataclass(frozen=True, slots=True)
class KeptParallelism:
    """The new version of a running job, with the parallelism of the running one."""

    graph: JobGraph
    #: Uid of a vertex's first operator -> subtasks: of the running version, of the new version's file, of `graph`.
    #: Contains only vertices where these differ.
    changes: dict[str, tuple[int, int, int]]


def keeping_parallelism(old: JobGraph, new: JobGraph, *, keep: bool) -> KeptParallelism:
    """Return `new` with the parallelism of `old` if `keep`, else as it is, and the differences.

    Operators are matched by uid. One that `old` does not have gets the job's own parallelism unless its file sets
    another. A parallelism is at most the number of key groups.
    """
    running = {operator.uid: vertex.wanted for vertex in old.vertices for operator in vertex.operators}
    before, own, most = old.settings.parallelism, new.settings.parallelism, new.settings.key_groups
    chosen = {vertex.id: vertex.parallelism for vertex in new.vertices}
    for group in forward_groups(new) if keep else ():
        if any(is_single(vertex) for vertex in group):
            continue
        known = [running[op.uid] for vertex in group for op in vertex.operators if op.uid in running]
        count = max(known) if known else before if all(v.parallelism == own for v in group) else group[0].parallelism
        chosen.update((vertex.id, min(count, most)) for vertex in group)
    changes = {}
    for vertex in new.vertices:
        uid = vertex.operators[0].uid
        counts = (running.get(uid, vertex.parallelism), vertex.parallelism, chosen[vertex.id])
        if len(set(counts)) > 1:
            changes[uid] = counts
    settings = msgspec.structs.replace(new.settings, parallelism=before) if keep else new.settings
    vertices = tuple(msgspec.structs.replace(v, parallelism=chosen[v.id]) for v in new.vertices)
    return KeptParallelism(msgspec.structs.replace(new, vertices=vertices, settings=settings), changes)


def within_bounds(graph: JobGraph, bounds: Mapping[str, tuple[int, int]], slots: int) -> dict[str, int]:
    """Return the parallelism by vertex id: the upper bounds, reduced to fit into `slots` slots.

    Raises:
        UsageError: an unknown vertex, invalid bounds, or lower bounds that do not fit.
    """
    known = {v.id for v in graph.vertices}
    for vertex_id, (low, high) in bounds.items():
        if vertex_id not in known:
            msg = f"job {graph.name!r} has no vertex {vertex_id!r}"
            raise UsageError(msg, hint="GET /jobs/:id/resource-requirements lists them")
        if not 1 <= low <= high:
            msg = f"vertex {vertex_id}: {low} to {high} subtasks is not a range"
            raise UsageError(msg, hint="lowerBound has to be at least 1, and upperBound at least lowerBound")
    for most in range(max((high for _, high in bounds.values()), default=1), 0, -1):
        chosen = {vertex_id: max(low, min(high, most)) for vertex_id, (low, high) in bounds.items()}
        vertices = tuple(
            msgspec.structs.replace(v, parallelism=chosen.get(v.id, v.parallelism)) for v in graph.vertices
        )
        needed = required_slots(msgspec.structs.replace(graph, vertices=vertices))
        if needed <= slots:
            return chosen
    msg = f"job {graph.name!r} needs {needed} slots at its lower bounds, but only {slots} are available"
    raise UsageError(msg, hint="start another TaskManager, or lower the bounds")


def forward_groups(graph: JobGraph) -> tuple[tuple[JobVertex, ...], ...]:
    """Return the vertices in groups with one parallelism: rows go from subtask i to subtask i."""
    forward = [(e.source, e.target) for e in graph.edges if isinstance(e.partitioner, Forward)]
    vertices = {v.id: v for v in graph.vertices}
    return tuple(tuple(vertices[i] for i in group) for group in connected_components(list(vertices), forward))


def _choose(
    graph: JobGraph,
    groups: tuple[tuple[JobVertex, ...], ...],
    chosen: dict[str, int],
    request: tuple[str, int, Mapping[str, int]],
) -> None:
    name, count, by_uid = request
    for group in groups:
        if any(name in _names(vertex) for vertex in group):
            for vertex in group:
                for other in _names(vertex) & by_uid.keys():
                    if by_uid[other] != count:
                        msg = (
                            f"{name!r} and {other!r} are connected subtask by subtask, but get {count} and "
                            f"{by_uid[other]} subtasks"
                        )
                        raise UsageError(msg, hint="give both the same parallelism")
                chosen[vertex.id] = count
            return
    msg = f"job {graph.name!r} has no operator {name!r}"
    uids = sorted(operator.uid for vertex in graph.vertices for operator in vertex.operators)
    raise UsageError(msg, hint=f"there are: {', '.join(uids)}")


def _names(vertex: JobVertex) -> set[str]:
    return {vertex.id, *(operator.uid for operator in vertex.operators)}


def is_single(vertex: JobVertex) -> bool:
    """Return whether a single subtask has to see all rows, so that it cannot be rescaled."""
    return any(o.kind == "window_top" and not o.config.get("local") for o in vertex.operators)


def _check(graph: JobGraph, vertex: JobVertex, parallelism: int) -> None:
    if parallelism < 1:
        msg = f"{vertex.name}: parallelism {parallelism} is not a number of subtasks"
        raise UsageError(msg, hint="it is at least 1")
    if parallelism == vertex.parallelism:
        return
    if parallelism > graph.settings.key_groups:
        msg = f"{vertex.name}: parallelism {parallelism} is more than the {graph.settings.key_groups} key groups"
        raise UsageError(msg, hint="lower it; the number of key groups is given to ps.Environment(key_groups=...)")
    if is_single(vertex):
        msg = (
            f"{vertex.name}: one subtask chooses among the rows of all keys, so parallelism {parallelism} "
            "is not possible"
        )
        raise UsageError(msg, hint="leave it out")
