"""Routes that query running jobs: state by key, existing states, hottest keys, the split that holds a watermark back.

Added to the application by `penstock.rest.server.app`; all are Penstock's own, below `/penstock/jobs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query

from penstock.jobmanager.observe.live_state import KeyPage, StateKey, hot_keys_of, keys_of, states_of, value_of
from penstock.jobmanager.observe.watermark_holder import holder_of

if TYPE_CHECKING:
    from fastapi import APIRouter

    from penstock.core.clock import Clock
    from penstock.jobmanager.dispatcher import Dispatcher

GroupParameter = Annotated[int | None, Query(alias="key-group", description="only keys of this key group")]
KeyParameter = Annotated[list[str] | None, Query(description="one per key column, or a JSON array or object")]


def add_routes(router: APIRouter, dispatcher: Dispatcher, clock: Clock) -> None:
    """Add the routes."""

    @router.get("/penstock/jobs/{job_id}/state")
    async def states(job_id: str) -> dict[str, Any]:
        return await states_of(dispatcher.detail(job_id), dispatcher.questions)

    @router.get("/penstock/jobs/{job_id}/state/{uid}/{name}")
    async def value(job_id: str, uid: str, name: str, key: KeyParameter = None, limit: int = 1000) -> dict[str, Any]:
        asked = StateKey(uid, name, tuple(key or ()), limit)
        return await value_of(dispatcher.detail(job_id), asked, dispatcher.questions)

    @router.get("/penstock/jobs/{job_id}/state/{uid}/{name}/keys")
    async def keys(
        job_id: str, uid: str, name: str, key_group: GroupParameter = None, after: int | None = None, limit: int = 100
    ) -> dict[str, Any]:
        asked = KeyPage(uid, name, key_group, after, limit)
        return await keys_of(dispatcher.detail(job_id), asked, dispatcher.questions)

    @router.get("/penstock/jobs/{job_id}/hot-keys")
    async def hot_keys(job_id: str) -> dict[str, Any]:
        return await hot_keys_of(dispatcher.detail(job_id), dispatcher.questions)

    @router.get("/penstock/jobs/{job_id}/watermark")
    async def watermark(job_id: str) -> dict[str, Any]:
        return await holder_of(dispatcher.detail(job_id), dispatcher.questions, clock.now_ms())
