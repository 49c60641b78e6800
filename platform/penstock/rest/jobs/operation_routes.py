"""Routes of long-running operations: rescale, upgrade, disposal of a savepoint, status of a triggered checkpoint.

A request returns at once with a request id to poll; a repeated request with the same token returns the same id.
`PUT .../resource-requirements` waits for an immediate refusal. Added to the application by
`penstock.rest.server.app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Body, Request

from penstock.checkpoint.ha_records import UpgradePolicy
from penstock.config.settings import parse_duration_ms
from penstock.core.errors import NotFoundError, UsageError
from penstock.core.rand import Rand, SystemRand
from penstock.graph.rescale import RescaleTo
from penstock.jobmanager.jobs.savepoint_folders import Disposals, job_folder
from penstock.rest.flink.documents import checkpoint_status, rescaling_status, savepoint_status
from penstock.rest.flink.request_fields import is_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastapi import APIRouter

    from penstock.jobmanager.dispatcher import Dispatcher
    from penstock.jobmanager.messages.views import UpgradeView

#: Refusals occur within this time.
_REFUSED_MS = 300


def add_rescale_routes(router: APIRouter, dispatcher: Dispatcher) -> None:
    """Add the routes."""

    @router.patch("/jobs/{job_id}/rescaling", status_code=202)
    async def rescale(
        job_id: str, parallelism: int | None = None, vertices: str = "", token: str = ""
    ) -> dict[str, Any]:
        to = RescaleTo(parallelism, _vertices(vertices), token=token)
        return {"request-id": await dispatcher.rescales.request(job_id, to)}

    @router.get("/jobs/{job_id}/rescaling/{request_id}")
    async def status(job_id: str, request_id: str) -> dict[str, Any]:
        dispatcher.resolve(job_id)
        return rescaling_status(dispatcher.operation(request_id))

    @router.get("/jobs/{job_id}/resource-requirements")
    async def requirements(job_id: str) -> dict[str, Any]:
        vertices = dispatcher.detail(job_id).vertices
        return {v.id: {"parallelism": dict(zip(("lowerBound", "upperBound"), v.bounds, strict=True))} for v in vertices}

    @router.put("/jobs/{job_id}/resource-requirements")
    async def require(job_id: str, body: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        request_id = await dispatcher.rescales.request(job_id, RescaleTo(bounds=_bounds(body)))
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


_NAMES = frozenset(
    {
        "token", "from-checkpoint", "target", "native", "checkpoints", "max-restarts", "deadline", "confirm",
        "rollback", "accept", "allow-non-restored-state", "keep-parallelism", "file",
    }
)  # fmt: skip


def add_upgrade_routes(router: APIRouter, dispatcher: Dispatcher) -> None:
    """Add the routes."""

    @router.post("/penstock/jobs/{job_id}/upgrade", status_code=202)
    async def upgrade(job_id: str, request: Request) -> dict[str, Any]:
        query = request.query_params
        graph, token = await request.body(), query.get("token", "")
        return {"request-id": await dispatcher.upgrades.upgrade(job_id, graph, policy_of(query), token)}

    @router.get("/penstock/jobs/{job_id}/upgrade")
    async def newest(job_id: str) -> dict[str, Any]:
        view = dispatcher.upgrades.view(job_id)
        if view is None:
            msg = f"job {job_id} was never upgraded"
            raise NotFoundError(msg, hint="see `penstock upgrade --help`")
        return upgrade_document(view)

    @router.get("/penstock/jobs/{job_id}/upgrade/{request_id}")
    async def status(job_id: str, request_id: str) -> dict[str, Any]:
        dispatcher.resolve(job_id)
        return savepoint_status(dispatcher.operation(request_id))

    @router.post("/penstock/jobs/{job_id}/upgrade/verdict", status_code=202)
    async def verdict(job_id: str, *, healthy: bool) -> dict[str, Any]:
        await dispatcher.upgrades.judge(job_id, healthy=healthy)
        return {}


def upgrade_document(view: UpgradeView) -> dict[str, Any]:
    """Return the body of `/penstock/jobs/:id/upgrade`; times are in ms, None if unknown or not reached."""
    return {
        "request-id": view.request_id,
        "phase": view.phase,
        "file": view.file,
        "begun": view.begun_ms if view.begun_ms >= 0 else None,
        "ended": view.ended_ms if view.ended_ms >= 0 else None,
        "savepoint": view.savepoint,
        "checkpoints": {"completed": view.checkpoints, "wanted": view.checkpoints_wanted},
        "restarts": {"seen": view.restarts, "allowed": view.restarts_allowed},
        "confirm": view.confirm,
        "deadline": view.deadline_ms,
        "held": {"rows": view.held_rows, "sinks": list(view.held_sinks)},
        # by uid, where they differ
        "parallelism": {
            uid: {"before": before, "file": said, "now": now} for uid, (before, said, now) in view.parallelism.items()
        },
        "reason": view.reason,
    }


def policy_of(query: Mapping[str, str]) -> UpgradePolicy:
    """Return the upgrade policy of a request's query; raises UsageError."""
    unknown = sorted(set(query) - _NAMES)
    if unknown:
        msg = f"an upgrade has no parameter {unknown[0]!r}"
        raise UsageError(msg, hint=f"available: {', '.join(sorted(_NAMES))}")
    defaults = UpgradePolicy()
    return UpgradePolicy(
        from_checkpoint=query.get("from-checkpoint", "false") == "true",
        target=query.get("target", ""),
        native=query.get("native", "true") == "true",
        checkpoints=_count(query, "checkpoints", defaults.checkpoints),
        max_restarts=_count(query, "max-restarts", defaults.max_restarts),
        deadline_ms=parse_duration_ms(query.get("deadline") or f"{defaults.deadline_ms}ms", "deadline"),
        confirm=query.get("confirm", "false") == "true",
        rollback=query.get("rollback", "true") == "true",
        accept=_names(query, "accept"),
        allow_non_restored_state=_names(query, "allow-non-restored-state"),
        keep_parallelism=query.get("keep-parallelism", "true") == "true",
        file=query.get("file", ""),
    )


def _count(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not is_count(text):
        msg = f"{name}={text!r} is not a number"
        raise UsageError(msg, hint=f"for example {name}=3")
    return int(text)


def _names(query: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(filter(None, query.get(name, "").split(",")))


def add_savepoint_routes(router: APIRouter, dispatcher: Dispatcher, rand: Rand | None = None) -> None:
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
