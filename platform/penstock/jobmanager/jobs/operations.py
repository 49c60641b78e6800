"""Asynchronous requests (savepoint, stop, checkpoint): what became of them, and who waits; used by the dispatcher."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from penstock.core.errors import NotFoundError
from penstock.jobmanager.messages.commands import OperationEnded
from penstock.jobmanager.messages.events import (
    CheckpointRequested,
    Event,
    RescaleRequested,
    SavepointRequested,
    StopRequested,
    UpgradeRequested,
)
from penstock.jobmanager.messages.views import OperationStatus

_LIMIT = 1000
_KINDS: dict[type[Event], str] = {
    StopRequested: "stop",
    SavepointRequested: "savepoint",
    CheckpointRequested: "checkpoint",
    RescaleRequested: "rescale",
    UpgradeRequested: "upgrade",
}


def kind_of(event: Event) -> str:
    """Return what a request asks for, by its event."""
    return _KINDS[type(event)]


class Operations:
    """The last thousand requests."""

    def __init__(self) -> None:
        """None yet."""
        self._statuses: dict[str, OperationStatus] = {}
        self._ended: dict[str, asyncio.Event] = {}

    def begin(self, request_id: str, job_id: str, kind: str = "") -> None:
        """A request was taken; `kind` as of `kind_of`."""
        self._statuses[request_id] = OperationStatus(
            request_id=request_id, job_id=job_id, status="IN_PROGRESS", kind=kind
        )
        self._ended[request_id] = asyncio.Event()
        while len(self._statuses) > _LIMIT:
            oldest = next(iter(self._statuses))
            del self._statuses[oldest], self._ended[oldest]

    def known(self, request_id: str) -> bool:
        """Whether it was taken by this leader."""
        return request_id in self._statuses

    def end(self, ended: OperationEnded, job_id: str) -> None:
        """It has ended; an earlier leader may have taken it."""
        if ended.request_id not in self._statuses:
            self.begin(ended.request_id, job_id, ended.kind)
        status = self._statuses[ended.request_id]
        self._statuses[ended.request_id] = msgspec.structs.replace(
            status,
            status="FAILED" if ended.error else "COMPLETED",
            uri=ended.uri,
            checkpoint_id=ended.checkpoint_id,
            error=ended.error,
            error_class=ended.error_class,
        )
        self._ended[ended.request_id].set()

    def end_all(self, job_id: str, reason: str) -> None:
        """A job has ended: nothing of it is in progress any more."""
        for request_id, status in list(self._statuses.items()):
            if status.job_id == job_id and status.status == "IN_PROGRESS":
                self.end(OperationEnded(request_id, error=reason), job_id)

    def status(self, request_id: str) -> OperationStatus:
        """Return what became of a request; raises NotFoundError."""
        found = self._statuses.get(request_id)
        if found is None:
            msg = f"no request {request_id!r}"
            raise NotFoundError(msg, hint="a restarted JobManager does not know the requests made before")
        return found

    async def wait(self, request_id: str, timeout_ms: int) -> OperationStatus:
        """Return when it has ended or the time is over."""
        self.status(request_id)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended[request_id].wait(), timeout_ms / 1000)
        return self.status(request_id)
