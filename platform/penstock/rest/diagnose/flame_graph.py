"""Builds flame graphs in Flink's format from stack samples of a vertex; for Flink's dashboard and our web interface.

`VertexFlameGraph`: `endTimestamp` and `data`, a node with `name`, `value` (samples) and `children`. Our nodes also have
`whose`: `user`, `library` or `engine`. The routes are in `rest.jobs.job_routes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from penstock.jobmanager.messages.views import VertexView
    from penstock.jobmanager.observe.profiling import Profile, ProfileStatus

Json = dict[str, Any]
#: Flink's `endTimestamp` values for a vertex that has ended, and for one whose first samples are being taken.
_TERMINATED, _WAITING = -1, -3
KINDS = ("full", "on_cpu", "off_cpu")


def terminated(vertex: VertexView) -> bool:
    """Return whether all subtasks of the vertex have ended for good."""
    return all(s.state in ("FINISHED", "CANCELED", "FAILED") for s in vertex.subtasks)


def flame_graph(found: ProfileStatus | None, kind: str, subtask: int | None) -> Json:
    """Return the body of `/jobs/:id/vertices/:vertex/flamegraph`; `found` is None for a vertex that has ended.

    Raises:
        UsageError: the kind is unknown.
    """
    if kind.lower() not in KINDS:
        raise UsageError(f"{kind!r} is not a kind of flame graph", hint=f"type is one of {', '.join(KINDS)}")
    if found is None:
        return {"endTimestamp": _TERMINATED}
    if found.profile is None:
        return {"endTimestamp": _WAITING, **({"error": found.error} if found.error else {})}
    profile = found.profile
    return {
        "endTimestamp": profile.at_ms,
        "data": tree_of(profile, kind.lower(), subtask),
        "sampling": found.sampling,
        "cost": round(profile.cost_ms / profile.wall_ms, 5) if profile.wall_ms else 0.0,
    }


def tree_of(profile: Profile, kind: str, subtask: int | None) -> Json:
    """Return the root node with all samples of a kind, of one subtask or of all; widest children first."""
    root = _node("root", "engine")
    for index, stacks in profile.subtasks.items():
        if subtask is not None and index != subtask:
            continue
        for stack, on_cpu, off_cpu in stacks:
            count = {"full": on_cpu + off_cpu, "on_cpu": on_cpu, "off_cpu": off_cpu}[kind]
            if count:
                _grow(root, stack, count)
    return _ordered(root)


def _node(name: str, whose: str) -> Json:
    return {"name": name, "value": 0, "whose": whose, "children": {}}


def _grow(root: Json, stack: tuple[tuple[str, str], ...], count: int) -> None:
    root["value"] += count
    at = root
    for name, whose in stack:
        at = at["children"].setdefault(name, _node(name, whose))
        at["value"] += count


def _ordered(node: Json) -> Json:
    children = sorted(node["children"].values(), key=lambda child: (-child["value"], child["name"]))
    return {**node, "children": [_ordered(child) for child in children]}
