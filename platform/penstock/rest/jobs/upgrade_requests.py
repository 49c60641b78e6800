"""Penstock's own routes that replace a running job by a new version.

Added to the application by `penstock.rest.server.app`. `POST .../upgrade` takes the new version's graph as its body and
returns at once with a request id to poll. A repeated request with the same token returns the same id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Request

from penstock.checkpoint.upgrade_record import UpgradePolicy
from penstock.config.settings import parse_duration_ms
from penstock.core.errors import NotFoundError, UsageError
from penstock.rest.flink.counts import is_count
from penstock.rest.flink.documents import savepoint_status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import APIRouter

    from penstock.jobmanager.dispatcher import Dispatcher

_NAMES = frozenset(
    {
        "token", "from-checkpoint", "target", "checkpoints", "max-restarts", "deadline", "confirm", "rollback",
        "accept", "allow-non-restored-state", "keep-parallelism",
    }
)  # fmt: skip


def add_routes(router: APIRouter, dispatcher: Dispatcher) -> None:
    """Add the routes."""

    @router.post("/penstock/jobs/{job_id}/upgrade", status_code=202)
    async def upgrade(job_id: str, request: Request) -> dict[str, Any]:
        query = request.query_params
        graph, token = await request.body(), query.get("token", "")
        return {"request-id": await dispatcher.changes.upgrade(job_id, graph, policy_of(query), token)}

    @router.get("/penstock/jobs/{job_id}/upgrade")
    async def newest(job_id: str) -> dict[str, Any]:
        view = dispatcher.changes.view(job_id)
        if view is None:
            msg = f"job {job_id} was never upgraded"
            raise NotFoundError(msg, hint="see `penstock upgrade --help`")
        return {
            "request-id": view.request_id,
            "phase": view.phase,
            "savepoint": view.savepoint,
            "checkpoints": {"completed": view.checkpoints, "wanted": view.checkpoints_wanted},
            "restarts": {"seen": view.restarts, "allowed": view.restarts_allowed},
            "confirm": view.confirm,
            "deadline": view.deadline_ms,
            "held": {"rows": view.held_rows, "sinks": list(view.held_sinks)},
            # by uid, where they differ
            "parallelism": {
                uid: {"before": before, "file": said, "now": now}
                for uid, (before, said, now) in view.parallelism.items()
            },
            "reason": view.reason,
        }

    @router.get("/penstock/jobs/{job_id}/upgrade/{request_id}")
    async def status(job_id: str, request_id: str) -> dict[str, Any]:
        dispatcher.resolve(job_id)
        return savepoint_status(dispatcher.operation(request_id))

    @router.post("/penstock/jobs/{job_id}/upgrade/verdict", status_code=202)
    async def verdict(job_id: str, *, healthy: bool) -> dict[str, Any]:
        await dispatcher.changes.judge(job_id, healthy=healthy)
        return {}


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
        checkpoints=_count(query, "checkpoints", defaults.checkpoints),
        max_restarts=_count(query, "max-restarts", defaults.max_restarts),
        deadline_ms=parse_duration_ms(query.get("deadline") or f"{defaults.deadline_ms}ms", "deadline"),
        confirm=query.get("confirm", "false") == "true",
        rollback=query.get("rollback", "true") == "true",
        accept=_names(query, "accept"),
        allow_non_restored_state=_names(query, "allow-non-restored-state"),
        keep_parallelism=query.get("keep-parallelism", "true") == "true",
    )


def _count(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not is_count(text):
        msg = f"{name}={text!r} is not a number"
        raise UsageError(msg, hint=f"for example {name}=3")
    return int(text)


def _names(query: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(filter(None, query.get(name, "").split(",")))
