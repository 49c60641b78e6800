"""Flink's metric queries: lists of ids, values by id, and aggregates over subtasks, jobs or TaskManagers.

Pure functions, called by the routes in `rest.jobs.metric_routes`. Values are text, as in Flink.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import UsageError
from penstock.rest.flink.counts import is_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.jobmanager.messages.views import CheckpointsView, ClusterView, JobDetail, SubtaskView, VertexView

Json = dict[str, Any]
Values = dict[str, float | str]
#: Prefix of an operator's metrics: `operator/<uid>/<metric>`.
_OPERATOR = "operator/"
_AGGREGATES = ("min", "max", "avg", "sum", "skew")
#: Flink's value for a time that is not set.
_NEVER = -1


def asked(values: Mapping[str, float | str], get: str) -> list[Json]:
    """Return all metric ids, or with `get` (comma-separated ids) the values of the existing ones."""
    if not get:
        return [{"id": name} for name in sorted(values)]
    return [{"id": name, "value": text_of(values[name])} for name in get.split(",") if name in values]


def aggregated(groups: Iterable[Mapping[str, float | str]], get: str, agg: str = "") -> list[Json]:
    """Return all metric ids of several owners, or with `get` the aggregates named in `agg` of each id.

    Raises:
        UsageError: an aggregate is unknown.
    """
    kinds = [kind for kind in agg.split(",") if kind] or list(_AGGREGATES)
    for kind in kinds:
        if kind not in _AGGREGATES:
            raise UsageError(f"agg={kind!r} is not an aggregate", hint=f"available: {', '.join(_AGGREGATES)}")
    found: dict[str, list[float]] = {}
    for values in groups:
        for name, value in values.items():
            if not isinstance(value, str):
                found.setdefault(name, []).append(value)
    if not get:
        return [{"id": name} for name in sorted(found)]
    return [{"id": name, **_aggregate(found[name], kinds)} for name in get.split(",") if name in found]


def subtask_values(vertex: VertexView, view: SubtaskView) -> Values:
    """Return a subtask's metrics; an operator's metrics begin with the operator's name."""
    names = {operator.uid: operator.name for operator in vertex.operators}
    found: Values = {}
    for name, value in view.metrics.items():
        if name.startswith(_OPERATOR):
            _, uid, metric = name.split("/")
            found[f"{names.get(uid, uid)}.{metric}"] = value
        else:
            found[name] = value
    return found


def chosen_subtasks(vertex: VertexView, ranges: str) -> list[SubtaskView]:
    """Return the subtasks of a list such as `1-3,5`; all of them if it is empty.

    Raises:
        UsageError: the list is malformed.
    """
    wanted: set[int] = set()
    for part in filter(None, ranges.split(",")):
        low, _, high = part.partition("-")
        if not is_count(low) or (high and not is_count(high)) or int(high or low) > 1 << 15:
            raise UsageError(f"subtasks={part!r} is neither a number nor a range", hint="for example subtasks=0-3,5")
        wanted.update(range(int(low), int(high or low) + 1))
    return [view for view in vertex.subtasks if not wanted or view.subtask in wanted]


def vertex_values(vertex: VertexView) -> Values:
    """Return the metrics of all subtasks, prefixed by the subtask's number."""
    return {
        f"{view.subtask}.{name}": value
        for view in vertex.subtasks
        for name, value in subtask_values(vertex, view).items()
    }


def job_values(detail: JobDetail, checkpoints: CheckpointsView, now_ms: int) -> Values:
    """Return a job's metrics: checkpoints, restarts and times, in milliseconds and bytes."""
    summary, latest, failed = detail.summary, checkpoints.latest_completed, checkpoints.latest_failed
    restored = checkpoints.latest_restored
    entered = detail.timestamps.get(summary.state, now_ms)
    spent = 0 if summary.terminal else now_ms - entered
    return {
        "numRestarts": summary.restarts,
        "fullRestarts": summary.restarts,
        "slowCalls": len(summary.slow_calls),
        "uptime": spent if summary.state == "RUNNING" else _NEVER if summary.terminal else 0,
        "runningTime": spent if summary.state == "RUNNING" else 0,
        "restartingTime": spent if summary.state == "RESTARTING" else 0,
        "cancellingTime": spent if summary.state == "CANCELLING" else 0,
        "failingTime": spent if summary.state == "FAILING" else 0,
        "totalNumberOfCheckpoints": checkpoints.completed + checkpoints.failed + checkpoints.in_progress,
        "numberOfCompletedCheckpoints": checkpoints.completed,
        "numberOfFailedCheckpoints": checkpoints.failed,
        "numberOfInProgressCheckpoints": checkpoints.in_progress,
        "lastCheckpointDuration": latest.duration_ms if latest else _NEVER,
        "lastCheckpointSize": latest.new_bytes if latest else _NEVER,
        "lastCheckpointFullSize": latest.state_bytes if latest else _NEVER,
        "lastCompletedCheckpointId": latest.id if latest else _NEVER,
        "lastCheckpointProcessedData": latest.processed_bytes if latest else 0,
        "lastCheckpointPersistedData": 0,
        "lastCheckpointRestoreTimestamp": restored.restored_ms if restored else -1,
        "lastCheckpointCompletionTimestamp": latest.end_ms if latest else _NEVER,
        "lastFailedCheckpointTimestamp": failed.end_ms if failed else _NEVER,
        "numPendingCommittables": checkpoints.pending_count,
        "numPendingRecords": checkpoints.pending_rows,
        "numPendingBytes": checkpoints.pending_bytes,
    }


def cluster_values(cluster: ClusterView) -> Values:
    """Return the JobManager's metrics."""
    return {
        "numRegisteredTaskManagers": cluster.taskmanagers,
        "taskSlotsTotal": cluster.slots,
        "taskSlotsAvailable": cluster.free_slots,
        "numRunningJobs": sum(not job.terminal for job in cluster.jobs),
        "numSpansExported": cluster.spans[0],
        "numSpansDropped": cluster.spans[1],
    }


def text_of(value: float | str) -> str:
    """Return a value in Flink's notation: whole numbers without a decimal point."""
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() else str(float(value))


def _aggregate(values: list[float], kinds: list[str]) -> Json:
    mean = sum(values) / len(values)
    # as in Flink: the mean deviation as a percentage of the mean
    skew = 100 * sum(abs(v - mean) for v in values) / len(values) / mean if mean > 0 else 0.0
    all_of = {"min": min(values), "max": max(values), "avg": mean, "sum": sum(values), "skew": min(100.0, skew)}
    return {kind: float(all_of[kind]) for kind in kinds}
