"""Routes about savepoints that do not belong to a running job: disposal, and the status of a triggered checkpoint.

Added to the application by `penstock.rest.server.app`; paths and fields are Flink's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Body

from penstock.core.errors import UsageError
from penstock.core.rand import Rand, SystemRand
from penstock.jobmanager.jobs.savepoint_disposal import Disposals, job_folder
from penstock.rest.flink.documents import checkpoint_status, savepoint_status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastapi import APIRouter

    from penstock.jobmanager.dispatcher import Dispatcher


def add_routes(router: APIRouter, dispatcher: Dispatcher, rand: Rand | None = None) -> None:
    """Add the routes; `rand` creates request ids."""

    def folders() -> Iterable[str]:
        for job in dispatcher.jobs():
            yield job_folder(dispatcher.detail(job.job_id).settings.checkpoint_root, job.name)

    disposals = Disposals(folders, rand or SystemRand())

    @router.post("/savepoint-disposal")
    async def dispose(body: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        path = body.get("savepoint-path")
        if not isinstance(path, str) or not path:
            raise UsageError("the body names no savepoint", hint='send {"savepoint-path": "<its folder>"}')
        return {"request-id": disposals.begin(path)}

    @router.get("/savepoint-disposal/{request_id}")
    async def disposed(request_id: str) -> dict[str, Any]:
        shown = savepoint_status(disposals.status(request_id))
        if shown["operation"] is not None:
            shown["operation"].pop("location", None)
        return shown

    @router.get("/jobs/{job_id}/status")
    async def status(job_id: str) -> dict[str, Any]:
        return {"status": dispatcher.summary(job_id).state}

    @router.get("/jobs/{job_id}/checkpoints/{request_id}")
    async def checkpoint(job_id: str, request_id: str) -> dict[str, Any]:
        dispatcher.resolve(job_id)
        return checkpoint_status(dispatcher.operation(request_id))
