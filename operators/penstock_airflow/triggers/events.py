"""Events of jobs for Airflow's assets: DAGs run when a savepoint is complete, a job has failed, a window has closed.

    orders = Asset("orders", watchers=[AssetWatcher(name="penstock", trigger=JobEventTrigger(job="order-totals"))])

Reported events are stored with the asset. A restarted triggerer reports the events it has missed, and repeats only
those it was reporting when it died.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import PenstockError
from penstock_airflow.hooks.penstock import PenstockHook
from penstock_airflow.job_events import KINDS, ReportedEvents, new_events

_KEY = "penstock_events"


class JobEventTrigger(BaseEventTrigger):
    """Fires for events of the job of a name, in any run; an event is a JSON object with its `kind`.

    `events`: `savepoint` (has `location`), `failed` (`cause`), `window` (`window_end` in ms: event time has passed a
    multiple of `window_seconds`; several that close together are one event).
    """

    def __init__(
        self,
        *,
        job: str,
        events: Sequence[str] = ("savepoint", "failed"),
        window_seconds: int = 3600,
        penstock_conn_id: str = PenstockHook.default_conn_name,
        poll_seconds: float = 5.0,
    ) -> None:
        """Prepare; nothing is looked up."""
        super().__init__()
        unknown = sorted(set(events) - set(KINDS))
        if unknown or not events or window_seconds < 1:
            msg = f"events={list(events)!r}, window_seconds={window_seconds}: events are {', '.join(KINDS)}"
            raise ValueError(msg)
        self.job = job
        self.events = list(events)
        self.window_seconds = window_seconds
        self.penstock_conn_id = penstock_conn_id
        self.poll_seconds = poll_seconds
        self.clock: Clock = SystemClock()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments from which the triggerer rebuilds it."""
        names = ("job", "events", "window_seconds", "penstock_conn_id", "poll_seconds")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll periodically, without an end."""
        hook = PenstockHook(self.penstock_conn_id)
        seen = ReportedEvents.of(await self._stored(), self.clock.now_ms())
        await self._store(seen)  # a triggerer that is restarted before the first event continues from here
        while True:
            try:
                found, seen = await hook.arun(
                    partial(new_events, name=self.job, seen=seen, window_seconds=self.window_seconds)
                )
            except PenstockError as error:
                self.log.info("%s", error)
            else:
                for event in found:
                    if event["kind"] in self.events:
                        yield TriggerEvent(event)
                await self._store(seen)
            await asyncio.sleep(self.poll_seconds)

    async def _stored(self) -> dict[str, Any] | None:
        if self.asset_state_store is None:
            return None
        found: dict[str, Any] | None = await self.asset_state_store.aget(_KEY)
        return found

    async def _store(self, seen: ReportedEvents) -> None:
        if self.asset_state_store is not None and seen.changed:
            await self.asset_state_store.aset(_KEY, seen.stored())
