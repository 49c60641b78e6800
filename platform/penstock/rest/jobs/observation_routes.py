"""Penstock's own routes that observe a job: time budget, autoscaler, live state, hot keys, watermark holder.

Added to the application by `penstock.rest.server.app`, all below `/penstock/jobs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query

from penstock.jobmanager.observe.live_state import (
    KeyPage,
    StateKey,
    hot_keys_of,
    keys_of,
    states_of,
    value_of,
    watermark_holder_of,
)

if TYPE_CHECKING:
    from fastapi import APIRouter

    from penstock.core.clock import Clock
    from penstock.jobmanager.dispatcher import Dispatcher
    from penstock.jobmanager.messages.views import JobDetail, VertexView

#: The output edges of a chain, with the name that `penstock.task` uses.
_OUTPUT = "(output)"


def budget(detail: JobDetail) -> dict[str, Any]:
    """Return the vertices in graph order, each with its operators' times since the start and per second."""
    vertices = [_vertex(vertex) for vertex in detail.vertices]
    total = sum(operator["cpu-ms"] for vertex in vertices for operator in vertex["operators"])
    for vertex in vertices:
        for operator in vertex["operators"]:
            operator["share"] = round(operator["cpu-ms"] / total, 4) if total else 0.0
    return {"jid": detail.summary.job_id, "name": detail.summary.name, "cpu-ms": round(total, 1), "vertices": vertices}


def _vertex(vertex: VertexView) -> dict[str, Any]:
    metrics = [subtask.metrics for subtask in vertex.subtasks]

    def total(name: str) -> float:
        return round(sum(values.get(name, 0.0) for values in metrics), 1)

    def row(uid: str, name: str, kind: str) -> dict[str, Any]:
        return {
            "uid": uid,
            "name": name,
            "kind": kind,
            "cpu-ms": total(f"operator/{uid}/accumulatedCpuTimeMs"),
            "busy-ms": total(f"operator/{uid}/accumulatedBusyTimeMs"),
            "cpu-ms-per-second": total(f"operator/{uid}/cpuTimeMsPerSecond"),
            "busy-ms-per-second": total(f"operator/{uid}/busyTimeMsPerSecond"),
        }

    operators = [row(o.uid, o.name, o.kind) for o in vertex.operators] + [row(_OUTPUT, "combine, split, send", "")]
    busy = total("accumulatedBusyTimeMs")
    rest = max(0.0, busy - sum(operator["busy-ms"] for operator in operators))
    return {
        "id": vertex.id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "busy-ms": busy,
        "other-busy-ms": round(rest, 1),
        "operators": operators,
    }


def add_autoscaler_route(router: APIRouter, dispatcher: Dispatcher) -> None:
    """Add the route."""

    @router.get("/penstock/jobs/{job_id}/autoscaler")
    async def log(job_id: str) -> dict[str, Any]:
        return dispatcher.scaling_log(job_id)


GroupParameter = Annotated[int | None, Query(alias="key-group", description="only keys of this key group")]
KeyParameter = Annotated[list[str] | None, Query(description="one per key column, or a JSON array or object")]


def add_live_state_routes(router: APIRouter, dispatcher: Dispatcher, clock: Clock) -> None:
    """Add the routes."""

    @router.get("/penstock/jobs/{job_id}/state")
    async def states(job_id: str) -> dict[str, Any]:
        return await states_of(dispatcher.detail(job_id), dispatcher.queries)

    @router.get("/penstock/jobs/{job_id}/state/{uid}/{name}")
    async def value(job_id: str, uid: str, name: str, key: KeyParameter = None, limit: int = 1000) -> dict[str, Any]:
        asked = StateKey(uid, name, tuple(key or ()), limit)
        return await value_of(dispatcher.detail(job_id), asked, dispatcher.queries)

    @router.get("/penstock/jobs/{job_id}/state/{uid}/{name}/keys")
    async def keys(
        job_id: str, uid: str, name: str, key_group: GroupParameter = None, after: int | None = None, limit: int = 100
    ) -> dict[str, Any]:
        asked = KeyPage(uid, name, key_group, after, limit)
        return await keys_of(dispatcher.detail(job_id), asked, dispatcher.queries)

    @router.get("/penstock/jobs/{job_id}/hot-keys")
    async def hot_keys(job_id: str) -> dict[str, Any]:
        return await hot_keys_of(dispatcher.detail(job_id), dispatcher.queries)

    @router.get("/penstock/jobs/{job_id}/watermark")
    async def watermark(job_id: str) -> dict[str, Any]:
        return await watermark_holder_of(dispatcher.detail(job_id), dispatcher.queries, clock.now_ms())
