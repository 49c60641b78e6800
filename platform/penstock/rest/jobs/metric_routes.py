"""Flink's metric queries over REST, and `/metrics` for Prometheus.

Added to the application by `penstock.rest.server.app`; the values are built in `rest.flink.metric_documents`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import PlainTextResponse

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
from penstock.rest.flink import metric_documents as flink_metrics
from penstock.rest.flink import vertex_documents as flink_vertices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import APIRouter, FastAPI

    from penstock.core.clock import Clock
    from penstock.jobmanager.dispatcher import Dispatcher
    from penstock.jobmanager.messages.views import JobDetail, VertexView
    from penstock.metrics.prometheus import Sample

Listed = list[dict[str, Any]]
_VERTEX = "/jobs/{job_id}/vertices/{vertex_id}"


class Figures:
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
        return {**self._meter.read(), **flink_metrics.cluster_values(self.dispatcher.cluster())}

    def job(self, job_id: str) -> dict[str, float | str]:
        """Return a job's metrics."""
        detail = self.dispatcher.detail(job_id)
        return flink_metrics.job_values(detail, self.dispatcher.checkpoints(job_id), self.clock.now_ms())

    def taskmanagers(self) -> dict[str, dict[str, float | str]]:
        """Return the metrics of each TaskManager."""
        views = self.dispatcher.taskmanagers()
        return {view.taskmanager_id: flink_cluster.taskmanager_values(view) for view in views}

    def samples(self) -> list[Sample]:
        """Return all Prometheus samples of this process: its own, its jobs' and their tasks'."""
        own = {"host": self.dispatcher.cluster().jobmanager_id}
        figures = self.jobmanager()
        found = scope_samples(JOBMANAGER_SCOPE, _numbers(figures), own) + process_samples(_numbers(figures), own)
        for job in self.dispatcher.jobs():
            detail = self.dispatcher.detail(job.job_id)
            labels = {"job_id": job.job_id, "job_name": job.name}
            if not job.terminal:
                found += scope_samples(JOB_SCOPE, _numbers(self.job(job.job_id)), labels)
            found += task_samples(self.dispatcher.metrics(job.job_id), labels, _names(detail))
        return found


def add_routes(router: APIRouter, figures: Figures) -> None:
    """Add Flink's queries: without `get` metrics are listed, with it their values; `agg` names aggregates."""
    _add_processes(router, figures)
    _add_jobs(router, figures)


def add_prometheus(app: FastAPI, figures: Figures) -> None:
    """Add `/metrics`."""

    @app.get("/metrics", include_in_schema=False)
    async def prometheus() -> PlainTextResponse:
        return PlainTextResponse(render(figures.samples()), media_type=CONTENT_TYPE)


def _add_processes(router: APIRouter, figures: Figures) -> None:
    @router.get("/penstock/prometheus-targets")
    async def targets(request: Request) -> Listed:
        """Return the `/metrics` address of every process, for Prometheus' HTTP service discovery."""
        host, port = request.scope.get("server") or ("127.0.0.1", 80)
        dispatcher, scheme = figures.dispatcher, str(request.scope.get("scheme") or "http")
        return flink_cluster.scrape_targets(
            dispatcher.cluster(), f"{host}:{port}", dispatcher.taskmanagers(), rest_scheme=scheme
        )

    @router.get("/jobmanager/metrics")
    async def jobmanager(get: str = "") -> Listed:
        return flink_metrics.asked(figures.jobmanager(), get)

    @router.get("/taskmanagers/metrics")
    async def taskmanagers(get: str = "", agg: str = "", taskmanagers: str = "") -> Listed:
        wanted = set(filter(None, taskmanagers.split(",")))
        chosen = [values for name, values in figures.taskmanagers().items() if not wanted or name in wanted]
        return flink_metrics.aggregated(chosen, get, agg)

    @router.get("/taskmanagers/{taskmanager_id}/metrics")
    async def taskmanager(taskmanager_id: str, get: str = "") -> Listed:
        view = flink_cluster.find_taskmanager(figures.dispatcher.taskmanagers(), taskmanager_id)
        return flink_metrics.asked(flink_cluster.taskmanager_values(view), get)


def _add_jobs(router: APIRouter, figures: Figures) -> None:
    dispatcher = figures.dispatcher

    def of(job_id: str, vertex_id: str) -> VertexView:
        return flink_vertices.find_vertex(dispatcher.detail(job_id), vertex_id)

    @router.get("/jobs/metrics")
    async def jobs(get: str = "", agg: str = "", jobs: str = "") -> Listed:
        wanted = set(filter(None, jobs.split(",")))
        chosen = [job.job_id for job in dispatcher.jobs() if not wanted or job.job_id in wanted]
        return flink_metrics.aggregated([figures.job(job_id) for job_id in chosen], get, agg)

    @router.get("/jobs/{job_id}/metrics")
    async def job(job_id: str, get: str = "") -> Listed:
        return flink_metrics.asked(figures.job(job_id), get)

    @router.get(f"{_VERTEX}/metrics")
    async def vertex(job_id: str, vertex_id: str, get: str = "") -> Listed:
        return flink_metrics.asked(flink_metrics.vertex_values(of(job_id, vertex_id)), get)

    @router.get(f"{_VERTEX}/jm-operator-metrics")
    async def coordinators(job_id: str, vertex_id: str) -> Listed:
        of(job_id, vertex_id)
        return []

    @router.get(f"{_VERTEX}/subtasks/metrics")
    async def subtasks(job_id: str, vertex_id: str, get: str = "", agg: str = "", subtasks: str = "") -> Listed:
        found = of(job_id, vertex_id)
        chosen = flink_metrics.chosen_subtasks(found, subtasks)
        return flink_metrics.aggregated([flink_metrics.subtask_values(found, view) for view in chosen], get, agg)

    @router.get(f"{_VERTEX}/subtasks/{{index}}/metrics")
    async def subtask(job_id: str, vertex_id: str, index: int, get: str = "") -> Listed:
        found = of(job_id, vertex_id)
        values = flink_metrics.subtask_values(found, flink_vertices.find_subtask(found, index))
        return flink_metrics.asked(values, get)


def _numbers(values: Mapping[str, float | str]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if not isinstance(value, str)}


def _names(detail: JobDetail) -> dict[str, str]:
    return {vertex.id: vertex.name for vertex in detail.vertices}
