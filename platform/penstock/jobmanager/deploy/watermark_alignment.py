"""Limits how far the sources of a group run ahead of each other: a decider over the watermarks of their subtasks.

Without it the rows of a fast source accumulate in state until the slow source catches up. Owned by `job_master`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.elements import MAX_TIMESTAMP
from penstock.eventtime.strategy import ALIGNMENT_METRIC, strategy_from_builtins
from penstock.jobmanager.deploy.deployment import send_to_all
from penstock.rpc.messages import AlignWatermarks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.graph.job_graph import JobGraph
    from penstock.jobmanager.deploy.deployment import Deployment
    from penstock.jobmanager.messages.commands import Command

_INTERVAL_MS = 1000


@dataclass(frozen=True, slots=True)
class _Member:
    vertex_id: str
    max_drift_us: int


class WatermarkAlignment:
    """The alignment groups of one job."""

    def __init__(self, graph: JobGraph) -> None:
        """Take the groups from the strategies of the graph's sources."""
        self._groups: dict[str, list[_Member]] = {}
        for vertex in graph.vertices:
            if vertex.is_source:
                strategy = strategy_from_builtins(vertex.operators[0].config.get("watermarks"))
                if strategy.alignment_group:
                    member = _Member(vertex.id, strategy.max_drift_ms * 1000)
                    self._groups.setdefault(strategy.alignment_group, []).append(member)
        #: The newest limits by subtask, of each attempt.
        self._sent: dict[int, dict[str, int]] = {}
        self._next_ms = 0

    def limits(self, metrics: Mapping[str, Mapping[str, float]], deployment: Deployment, now_ms: int) -> list[Command]:
        """Return the commands that send the sources their new limits, if these changed and the interval is over.

        While a region restarts, the sources of the others keep theirs.

        `metrics` are the newest of all subtasks, by `<vertex>/<subtask>`.
        """
        if not self._groups or now_ms < self._next_ms or not deployment.running:
            return []
        self._next_ms = now_ms + _INTERVAL_MS
        limits: dict[str, int] = {}
        for members in self._groups.values():
            limits |= _limits(members, metrics, deployment)
        by_attempt: dict[int, dict[str, int]] = {}
        for (vertex_id, subtask), execution in deployment.executions.items():
            if (name := f"{vertex_id}/{subtask}") in limits:
                by_attempt.setdefault(execution.id.attempt, {})[name] = limits[name]
        if by_attempt == self._sent:
            return []
        self._sent = by_attempt
        ids = deployment.ids
        commands: list[Command] = []
        for attempt, own in by_attempt.items():
            message = AlignWatermarks(job_id=ids.job_id, generation=ids.generation, attempt=attempt, limits=own)
            commands += send_to_all(deployment.workers.values(), message)
        return commands


def _limits(
    members: list[_Member], metrics: Mapping[str, Mapping[str, float]], deployment: Deployment
) -> dict[str, int]:
    """Return each reading subtask's limit: the lowest watermark of the *others* plus its drift.

    The slowest subtask waits only for the second slowest; otherwise the drift would bound the progress of all between
    two comparisons. Empty until all have reported.
    """
    drifts = {member.vertex_id: member.max_drift_us for member in members}
    own: dict[str, int] = {}
    drift: dict[str, int] = {}
    for (vertex_id, subtask), execution in deployment.executions.items():
        if vertex_id in drifts and not execution.input_ended:
            name = f"{vertex_id}/{subtask}"
            reported = metrics.get(name, {}).get(ALIGNMENT_METRIC)
            if reported is None:
                return {}
            own[name], drift[name] = int(reported), drifts[vertex_id]
    last, *others = sorted(own, key=own.__getitem__) or [""]
    after = own[others[0]] if others else MAX_TIMESTAMP
    return {name: (after if name == last else own[last]) + drift[name] for name in own}
