"""Flink's metric queries over REST, and `/metrics` for Prometheus.

Queries return lists of ids, values by id, or aggregates over subtasks, jobs or TaskManagers. Values are text, as in
Flink. Added to the application by `penstock.rest.server.app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import PlainTextResponse

from penstock.core.errors import UsageError
from penstock.metrics.process import ProcessMeter
from penstock.metrics.prometheus import (
    CONTENT_TYPE,
    JOB_SCOPE,
    JOBMANAGER_SCOPE,
    process_samples,
    render,
    scope_samples,
    task_samples,
)
from penstock.rest.flink import cluster_documents as flink_cluster
from penstock.rest.flink import vertex_documents as flink_vertices
from penstock.rest.flink.request_fields import is_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastapi import APIRouter, FastAPI

    from penstock.core.clock import Clock
    from penstock.jobmanager.dispatcher import Dispatcher
    from penstock.jobmanager.messages.views import CheckpointsView, ClusterView, JobDetail, SubtaskView, VertexView
    from penstock.metrics.prometheus import Sample

Json = dict[str, Any]
Values = dict[str, float | str]
#: Prefix of an operator's metrics: `operator/<uid>/<metric>`.
_OPERATOR = "operator/"
_AGGREGATES = ("min", "max", "avg", "sum", "skew")
#: Flink's value for a time that is not set.
_NEVER = -1


def metric_query(values: Mapping[str, float | str], get: str) -> list[Json]:
    """Return all metric ids, or with `get` (comma-separated ids) the values of the existing ones."""
    if not get:
        return [{"id": name} for name in sorted(values)]
    return [{"id": name, "value": text_of(values[name])} for name in get.split(",") if name in values]


def aggregate_query(groups: Iterable[Mapping[str, float | str]], get: str, agg: str = "") -> list[Json]:
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
        "lastFailedJobTimestamp": max((job.end_ms for job in cluster.jobs if job.state == "FAILED"), default=_NEVER),
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


Listed = list[dict[str, Any]]
_VERTEX = "/jobs/{job_id}/vertices/{vertex_id}"


class MetricCollector:
    """Collects the metrics of the routes from the dispatcher."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock) -> None:
        """Create the collector; it does nothing before the first request."""
        self.dispatcher = dispatcher
        self.clock = clock
        self._meter: ProcessMeter | None = None

    def jobmanager(self) -> dict[str, float | str]:
        """Return the JobManager's metrics."""
        if self._meter is None:
            self._meter = ProcessMeter(self.clock)
        return {**self._meter.read(), **cluster_values(self.dispatcher.cluster())}

    def job(self, job_id: str) -> dict[str, float | str]:
        """Return a job's metrics."""
        detail = self.dispatcher.detail(job_id)
        return job_values(detail, self.dispatcher.checkpoints(job_id), self.clock.now_ms())

    def taskmanagers(self) -> dict[str, dict[str, float | str]]:
        """Return the metrics of each TaskManager."""
        views = self.dispatcher.taskmanagers()
        return {view.taskmanager_id: flink_cluster.taskmanager_values(view) for view in views}

    def samples(self) -> list[Sample]:
        """Return all Prometheus samples of this process: its own, those of jobs that have not ended, their tasks'."""
        own = {"host": self.dispatcher.cluster().jobmanager_id}
        numbers = _numbers(self.jobmanager())
        found = scope_samples(JOBMANAGER_SCOPE, numbers, own) + process_samples(numbers, own)
        for job in (job for job in self.dispatcher.jobs() if not job.terminal):
            detail = self.dispatcher.detail(job.job_id)
            labels = {"job_id": job.job_id, "job_name": job.name}
            found += scope_samples(JOB_SCOPE, _numbers(self.job(job.job_id)), labels)
            found += task_samples(self.dispatcher.metrics(job.job_id), labels, _names(detail))
        return found


def add_routes(router: APIRouter, collector: MetricCollector) -> None:
    """Add Flink's queries: without `get` metrics are listed, with it their values; `agg` names aggregates."""
    _add_processes(router, collector)
    _add_jobs(router, collector)


def add_prometheus(app: FastAPI, collector: MetricCollector) -> None:
    """Add `/metrics`."""

    @app.get("/metrics", include_in_schema=False)
    async def prometheus() -> PlainTextResponse:
        return PlainTextResponse(render(collector.samples()), media_type=CONTENT_TYPE)


def _add_processes(router: APIRouter, collector: MetricCollector) -> None:
    @router.get("/penstock/prometheus-targets")
    async def targets(request: Request) -> Listed:
        """Return the `/metrics` address of every process, for Prometheus' HTTP service discovery."""
        host, port = request.scope.get("server") or ("127.0.0.1", 80)
        dispatcher, scheme = collector.dispatcher, str(request.scope.get("scheme") or "http")
        return flink_cluster.scrape_targets(
            dispatcher.cluster(), f"{host}:{port}", dispatcher.taskmanagers(), rest_scheme=scheme
        )

    @router.get("/jobmanager/metrics")
    async def jobmanager(get: str = "") -> Listed:
        return metric_query(collector.jobmanager(), get)

    @router.get("/taskmanagers/metrics")
    async def taskmanagers(get: str = "", agg: str = "", taskmanagers: str = "") -> Listed:
        wanted = set(filter(None, taskmanagers.split(",")))
        chosen = [values for name, values in collector.taskmanagers().items() if not wanted or name in wanted]
        return aggregate_query(chosen, get, agg)

    @router.get("/taskmanagers/{taskmanager_id}/metrics")
    async def taskmanager(taskmanager_id: str, get: str = "") -> Listed:
        view = flink_cluster.find_taskmanager(collector.dispatcher.taskmanagers(), taskmanager_id)
        return metric_query(flink_cluster.taskmanager_values(view), get)


def _add_jobs(router: APIRouter, collector: MetricCollector) -> None:
    dispatcher = collector.dispatcher

    def of(job_id: str, vertex_id: str) -> VertexView:
        return flink_vertices.find_vertex(dispatcher.detail(job_id), vertex_id)

    @router.get("/jobs/metrics")
    async def jobs(get: str = "", agg: str = "", jobs: str = "") -> Listed:
        wanted = set(filter(None, jobs.split(",")))
        chosen = [job.job_id for job in dispatcher.jobs() if not wanted or job.job_id in wanted]
        return aggregate_query([collector.job(job_id) for job_id in chosen], get, agg)

    @router.get("/jobs/{job_id}/metrics")
    async def job(job_id: str, get: str = "") -> Listed:
        return metric_query(collector.job(job_id), get)

    @router.get(f"{_VERTEX}/metrics")
    async def vertex(job_id: str, vertex_id: str, get: str = "") -> Listed:
        return metric_query(vertex_values(of(job_id, vertex_id)), get)

    @router.get(f"{_VERTEX}/jm-operator-metrics")
    async def coordinators(job_id: str, vertex_id: str) -> Listed:
        of(job_id, vertex_id)
        return []

    @router.get(f"{_VERTEX}/subtasks/metrics")
    async def subtasks(job_id: str, vertex_id: str, get: str = "", agg: str = "", subtasks: str = "") -> Listed:
        found = of(job_id, vertex_id)
        chosen = chosen_subtasks(found, subtasks)
        return aggregate_query([subtask_values(found, view) for view in chosen], get, agg)

    @router.get(f"{_VERTEX}/subtasks/{{index}}/metrics")
    async def subtask(job_id: str, vertex_id: str, index: int, get: str = "") -> Listed:
        found = of(job_id, vertex_id)
        values = subtask_values(found, flink_vertices.find_subtask(found, index))
        return metric_query(values, get)


def _numbers(values: Mapping[str, float | str]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if not isinstance(value, str)}


def _names(detail: JobDetail) -> dict[str, str]:
    return {vertex.id: vertex.name for vertex in detail.vertices}
