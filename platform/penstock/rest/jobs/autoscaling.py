"""The route of the autoscaler's samples and decisions for a job. Added by `penstock.rest.server.app`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import APIRouter

    from penstock.jobmanager.dispatcher import Dispatcher


def add_routes(router: APIRouter, dispatcher: Dispatcher) -> None:
    """Add the route."""

    @router.get("/penstock/jobs/{job_id}/autoscaler")
    async def log(job_id: str) -> dict[str, Any]:
        return dispatcher.changes.scaling_log(job_id)
