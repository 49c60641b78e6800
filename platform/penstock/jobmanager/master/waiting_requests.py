"""What users want of a job that is starting, kept until it runs; pure. A member of `jobmanager.master.job_master`.

Above all behind a change of JobManagers: whoever drives a stop, a rescale or an upgrade asks the new one again, which
has just begun.
"""

from __future__ import annotations

from penstock.jobmanager.messages.commands import WAY_OUT, OperationEnded
from penstock.jobmanager.messages.events import CutRequested, RescaleRequested, UpgradeRequested

_PATIENCE_MS = 30_000

UserRequest = CutRequested | RescaleRequested | UpgradeRequested


class WaitingRequests:
    """Those of one job, oldest first."""

    def __init__(self) -> None:
        """None."""
        self._waiting: list[tuple[UserRequest, int]] = []

    def add(self, request: UserRequest, now_ms: int) -> None:
        """Keep it for half a minute at most."""
        self._waiting.append((request, now_ms + _PATIENCE_MS))

    def take(self) -> list[UserRequest]:
        """The job runs: return them all, to be handled now."""
        taken, self._waiting = self._waiting, []
        return [request for request, _ in taken]

    def drop(self, request_id: str) -> None:
        """It is answered by other means, or was not asked for here."""
        self._waiting = [(request, until) for request, until in self._waiting if request.request_id != request_id]

    def overdue(self, now_ms: int) -> list[OperationEnded]:
        """Refuse those that have waited long enough."""
        late = [request for request, until in self._waiting if now_ms >= until]
        self._waiting = [(request, until) for request, until in self._waiting if now_ms < until]
        return [OperationEnded(request.request_id, error=f"the job is not running {WAY_OUT}") for request in late]

    def refuse(self, reason: str) -> list[OperationEnded]:
        """The job does not come to run."""
        return [OperationEnded(request.request_id, error=reason) for request in self.take()]

    def wake_ms(self) -> int | None:
        """When the first one is overdue."""
        return min((until for _, until in self._waiting), default=None)
