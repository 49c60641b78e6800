"""Flink's further routes about one job: configuration, checkpoint details, vertices, applications.

Added to the application by `penstock.rest.server.app`; the responses are built in `rest.flink.vertex_documents`,
`rest.flink.vertex_documents` and `rest.flink.cluster_documents`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query

from penstock.jobmanager.observe.profiling import Profiler
from penstock.rest.diagnose import flame_graph
from penstock.rest.flink import cluster_documents as flink_cluster
from penstock.rest.flink import vertex_documents as flink_checkpoints
from penstock.rest.flink import vertex_documents as flink_vertices
from penstock.rest.flink.documents import subtask

if TYPE_CHECKING:
    from fastapi import APIRouter

    from penstock.core.clock import Clock
    from penstock.jobmanager.dispatcher import Dispatcher
    from penstock.jobmanager.messages.views import VertexView

_VERTEX = "/jobs/{job_id}/vertices/{vertex_id}"


def add_routes(router: APIRouter, dispatcher: Dispatcher, clock: Clock) -> None:
    """Add the routes."""
    _add_job(router, dispatcher)
    _add_checkpoints(router, dispatcher)
    _add_vertex(router, dispatcher, clock)
    _add_subtasks(router, dispatcher, clock)
    _add_applications(router, dispatcher, clock)


def _add_job(router: APIRouter, dispatcher: Dispatcher) -> None:
    @router.get("/jobs/{job_id}/config")
    async def config(job_id: str) -> dict[str, Any]:
        return flink_cluster.job_config(dispatcher.detail(job_id))

    @router.get("/jobs/{job_id}/jobmanager/config")
    async def entries(job_id: str) -> list[dict[str, Any]]:
        return flink_cluster.settings_entries(dispatcher.detail(job_id).settings, {})

    @router.get("/jobs/{job_id}/jobmanager/environment")
    async def environment(job_id: str) -> dict[str, Any]:
        dispatcher.resolve(job_id)
        return flink_cluster.environment()

    @router.get("/jobs/{job_id}/jobmanager/log-url")
    async def log_url(job_id: str) -> dict[str, Any]:
        dispatcher.resolve(job_id)
        return {"url": "/jobmanager/log"}

    @router.get("/jobs/{job_id}/taskmanagers/{taskmanager_id}/log-url")
    async def taskmanager_log_url(job_id: str, taskmanager_id: str) -> dict[str, Any]:
        dispatcher.resolve(job_id)
        return {"url": f"/taskmanagers/{taskmanager_id}/log"}


def _add_checkpoints(router: APIRouter, dispatcher: Dispatcher) -> None:
    @router.get("/jobs/{job_id}/checkpoints/config")
    async def config(job_id: str) -> dict[str, Any]:
        return flink_checkpoints.checkpoint_config(dispatcher.detail(job_id).settings)

    @router.get("/jobs/{job_id}/checkpoints/details/{checkpoint_id}")
    async def details(job_id: str, checkpoint_id: int) -> dict[str, Any]:
        found = flink_checkpoints.find_checkpoint(dispatcher.checkpoints(job_id), checkpoint_id)
        return flink_checkpoints.checkpoint_detail(found, dispatcher.detail(job_id))

    @router.get("/jobs/{job_id}/checkpoints/details/{checkpoint_id}/subtasks/{vertex_id}")
    async def subtasks(job_id: str, checkpoint_id: int, vertex_id: str) -> dict[str, Any]:
        found = flink_checkpoints.find_checkpoint(dispatcher.checkpoints(job_id), checkpoint_id)
        return flink_checkpoints.checkpoint_task(found, dispatcher.detail(job_id), vertex_id)


def _add_vertex(router: APIRouter, dispatcher: Dispatcher, clock: Clock) -> None:
    def of(job_id: str, vertex_id: str) -> VertexView:
        return flink_vertices.find_vertex(dispatcher.detail(job_id), vertex_id)

    @router.get(_VERTEX)
    async def vertex(job_id: str, vertex_id: str) -> dict[str, Any]:
        return flink_vertices.vertex_detail(of(job_id, vertex_id), clock.now_ms())

    @router.get(f"{_VERTEX}/backpressure")
    async def back_pressure(job_id: str, vertex_id: str) -> dict[str, Any]:
        return flink_vertices.back_pressure(of(job_id, vertex_id), clock.now_ms())

    @router.get(f"{_VERTEX}/watermarks")
    async def watermarks(job_id: str, vertex_id: str) -> list[dict[str, Any]]:
        return flink_vertices.watermarks(of(job_id, vertex_id))

    @router.get(f"{_VERTEX}/subtasktimes")
    async def times(job_id: str, vertex_id: str) -> dict[str, Any]:
        return flink_vertices.subtask_times(of(job_id, vertex_id), clock.now_ms())

    @router.get(f"{_VERTEX}/taskmanagers")
    async def taskmanagers(job_id: str, vertex_id: str) -> dict[str, Any]:
        return flink_vertices.vertex_taskmanagers(of(job_id, vertex_id), clock.now_ms())

    @router.get(f"{_VERTEX}/accumulators")
    async def accumulators(job_id: str, vertex_id: str) -> dict[str, Any]:
        return flink_vertices.no_accumulators(of(job_id, vertex_id))

    profiler = Profiler(lambda: dispatcher.queries, clock)

    @router.get(f"{_VERTEX}/flamegraph")
    async def graph(
        job_id: str,
        vertex_id: str,
        kind: Annotated[str, Query(alias="type")] = "full",
        subtaskindex: int | None = None,
    ) -> dict[str, Any]:
        detail, vertex = dispatcher.detail(job_id), of(job_id, vertex_id)
        if subtaskindex is not None:
            flink_vertices.find_subtask(vertex, subtaskindex)
        over = flame_graph.terminated(vertex)
        return flame_graph.flame_graph(None if over else profiler.profile_of(detail, vertex), kind, subtaskindex)


def _add_subtasks(router: APIRouter, dispatcher: Dispatcher, clock: Clock) -> None:
    @router.get(f"{_VERTEX}/subtasks/accumulators")
    async def accumulators(job_id: str, vertex_id: str) -> dict[str, Any]:
        vertex = flink_vertices.find_vertex(dispatcher.detail(job_id), vertex_id)
        return flink_vertices.no_subtask_accumulators(vertex)

    @router.get(f"{_VERTEX}/subtasks/{{index}}")
    async def one(job_id: str, vertex_id: str, index: int) -> dict[str, Any]:
        vertex = flink_vertices.find_vertex(dispatcher.detail(job_id), vertex_id)
        return subtask(flink_vertices.find_subtask(vertex, index), clock.now_ms())


def _add_applications(router: APIRouter, dispatcher: Dispatcher, clock: Clock) -> None:
    @router.get("/applications/overview")
    async def overview() -> dict[str, Any]:
        now_ms = clock.now_ms()
        return {"applications": [flink_cluster.application(job, now_ms) for job in dispatcher.jobs()]}

    @router.get("/applications/{job_id}")
    async def detail(job_id: str) -> dict[str, Any]:
        return flink_cluster.application_detail(dispatcher.detail(job_id), clock.now_ms())

    @router.get("/applications/{job_id}/exceptions")
    async def exceptions(job_id: str) -> dict[str, Any]:
        return flink_cluster.application_exceptions(dispatcher.resolve(job_id), dispatcher.exceptions(job_id))

    @router.get("/applications/{job_id}/jobmanager/config")
    async def config(job_id: str) -> list[dict[str, Any]]:
        return flink_cluster.settings_entries(dispatcher.detail(job_id).settings, {})

    @router.post("/applications/{job_id}/cancel", status_code=202)
    async def cancel(job_id: str) -> dict[str, Any]:
        await dispatcher.cancel(job_id)
        return {}
