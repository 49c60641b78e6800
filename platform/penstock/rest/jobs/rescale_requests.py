"""Routes that change the parallelism of a running job, as in Flink.

Added to the application by `penstock.rest.server.app`. `PATCH .../rescaling` returns at once with a request id to poll.
`PUT .../resource-requirements` waits for an immediate refusal: missing slots, or a job that cannot be rescaled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Body

from penstock.core.errors import UsageError
from penstock.graph.rescale import RescaleTo
from penstock.rest.flink.counts import is_count
from penstock.rest.flink.documents import rescaling_status

if TYPE_CHECKING:
    from fastapi import APIRouter

    from penstock.jobmanager.dispatcher import Dispatcher

#: Refusals occur within this time.
_REFUSED_MS = 300


def add_routes(router: APIRouter, dispatcher: Dispatcher) -> None:
    """Add the routes."""

    @router.patch("/jobs/{job_id}/rescaling", status_code=202)
    async def rescale(
        job_id: str, parallelism: int | None = None, vertices: str = "", token: str = ""
    ) -> dict[str, Any]:
        to = RescaleTo(parallelism, _vertices(vertices), token=token)
        return {"request-id": await dispatcher.rescale(job_id, to)}

    @router.get("/jobs/{job_id}/rescaling/{request_id}")
    async def status(job_id: str, request_id: str) -> dict[str, Any]:
        dispatcher.resolve(job_id)
        return rescaling_status(dispatcher.operation(request_id))

    @router.get("/jobs/{job_id}/resource-requirements")
    async def requirements(job_id: str) -> dict[str, Any]:
        vertices = dispatcher.detail(job_id).vertices
        return {v.id: {"parallelism": {"lowerBound": 1, "upperBound": v.parallelism}} for v in vertices}

    @router.put("/jobs/{job_id}/resource-requirements")
    async def require(job_id: str, body: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        request_id = await dispatcher.rescale(job_id, RescaleTo(bounds=_bounds(body)))
        status = await dispatcher.wait_operation(request_id, _REFUSED_MS)
        if status.status == "FAILED":
            msg = f"job {job_id} was not rescaled: {status.error}"
            raise UsageError(msg, hint="see GET /v1/penstock/jobs/:id/story")
        return {}


def _vertices(text: str) -> dict[str, int]:
    """Parse `uid=n,uid=n`."""
    found = {}
    for part in filter(None, text.split(",")):
        uid, _, count = part.rpartition("=")
        if not uid or not is_count(count):
            msg = f"vertices={part!r} is not of the form UID=N"
            raise UsageError(msg, hint="for example vertices=totals=3,out=1")
        found[uid] = int(count)
    return found


def _bounds(body: dict[str, Any]) -> dict[str, tuple[int, int]]:
    bounds = {}
    for vertex_id, wanted in body.items():
        given = wanted.get("parallelism") if isinstance(wanted, dict) else None
        low, high = (given.get("lowerBound", 1), given.get("upperBound")) if isinstance(given, dict) else (None, None)
        if type(low) is not int or type(high) is not int:
            msg = f"the requirements of vertex {vertex_id!r} are malformed"
            raise UsageError(msg, hint='send {"<vertex id>": {"parallelism": {"lowerBound": 1, "upperBound": 3}}}')
        bounds[vertex_id] = (low, high)
    if not bounds:
        msg = "the body names no vertex"
        raise UsageError(msg, hint="GET the same path to list the vertices")
    return bounds
