"""Status of asynchronous requests: savepoint, stop, checkpoint, rescale, upgrade.

Used by the dispatcher, also to wait for their end.
"""

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
    """Return the kind of the request that an event carries."""
    return _KINDS[type(event)]


class Operations:
    """The last thousand requests."""

    def __init__(self) -> None:
        """Start without requests."""
        self._statuses: dict[str, OperationStatus] = {}
        self._ended: dict[str, asyncio.Event] = {}

    def begin(self, request_id: str, job_id: str, kind: str = "") -> None:
        """Register an accepted request; `kind` as returned by `kind_of`."""
        self._statuses[request_id] = OperationStatus(
            request_id=request_id, job_id=job_id, status="IN_PROGRESS", kind=kind
        )
        self._ended[request_id] = asyncio.Event()
        while len(self._statuses) > _LIMIT:
            oldest = next(iter(self._statuses))
            del self._statuses[oldest], self._ended[oldest]

    def known(self, request_id: str) -> bool:
        """Return whether this leader knows the request."""
        return request_id in self._statuses

    def end(self, ended: OperationEnded, job_id: str) -> None:
        """Record the end of a request, which an earlier leader may have accepted."""
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
        """Fail all requests of a job that are in progress: it has ended."""
        for request_id, status in list(self._statuses.items()):
            if status.job_id == job_id and status.status == "IN_PROGRESS":
                self.end(OperationEnded(request_id, error=reason), job_id)

    def forget(self, job_id: str) -> None:
        """Drop the requests of a job that are in progress, so that their clients repeat them."""
        for request_id, status in list(self._statuses.items()):
            if status.job_id == job_id and status.status == "IN_PROGRESS":
                del self._statuses[request_id]
                self._ended.pop(request_id).set()

    def status(self, request_id: str) -> OperationStatus:
        """Return the status of a request; raises NotFoundError."""
        found = self._statuses.get(request_id)
        if found is None:
            msg = f"no request {request_id!r}"
            raise NotFoundError(msg, hint="a restarted JobManager does not know earlier requests")
        return found

    async def wait(self, request_id: str, timeout_ms: int) -> OperationStatus:
        """Wait until the request has ended or the timeout expires; return its status."""
        self.status(request_id)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended[request_id].wait(), timeout_ms / 1000)
        return self.status(request_id)
