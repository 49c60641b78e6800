"""Keeps user requests for a job that is starting until it runs; pure. A member of `jobmanager.master.job_master`.

They occur mostly after a change of leader: clients repeat a stop, rescale or upgrade request at the new JobManager,
where the job is still starting.
"""

from __future__ import annotations

from penstock.jobmanager.messages.commands import WAY_OUT, OperationEnded
from penstock.jobmanager.messages.events import CutRequested, RescaleRequested, UpgradeRequested

_PATIENCE_MS = 30_000

UserRequest = CutRequested | RescaleRequested | UpgradeRequested


class WaitingRequests:
    """The waiting requests of one job, oldest first."""

    def __init__(self) -> None:
        """Start without requests."""
        self._waiting: list[tuple[UserRequest, int]] = []

    def add(self, request: UserRequest, now_ms: int) -> None:
        """Keep a request for at most half a minute."""
        self._waiting.append((request, now_ms + _PATIENCE_MS))

    def take(self) -> list[UserRequest]:
        """Return all requests and forget them: the job runs."""
        taken, self._waiting = self._waiting, []
        return [request for request, _ in taken]

    def drop(self, request_id: str) -> None:
        """Drop a request that is answered elsewhere; no error if it is not here."""
        self._waiting = [(request, until) for request, until in self._waiting if request.request_id != request_id]

    def overdue(self, now_ms: int) -> list[OperationEnded]:
        """Refuse the requests that have waited too long."""
        late = [request for request, until in self._waiting if now_ms >= until]
        self._waiting = [(request, until) for request, until in self._waiting if now_ms < until]
        return [OperationEnded(request.request_id, error=f"the job is not running {WAY_OUT}") for request in late]

    def refuse(self, reason: str) -> list[OperationEnded]:
        """Refuse all requests: the start failed."""
        return [OperationEnded(request.request_id, error=reason) for request in self.take()]

    def wake_ms(self) -> int | None:
        """Return the time at which the first request expires."""
        return min((until for _, until in self._waiting), default=None)
