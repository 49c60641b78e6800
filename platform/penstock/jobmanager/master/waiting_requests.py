"""Keeps user requests for a job that is starting until it runs; pure. A member of `master.job_master`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.jobmanager.change.decisions import ChangeDecision, Note
from penstock.jobmanager.messages.commands import RESUME_HINT, OperationEnded
from penstock.jobmanager.messages.events import BarrierRequested, RescaleRequested, UpgradeRequested

UserRequest = BarrierRequested | RescaleRequested | UpgradeRequested

#: Time for which a user's request waits for a job that is starting.
_MAX_WAIT_MS = 30_000


class WaitingRequests:
    """The waiting requests of one job, oldest first."""

    def __init__(self) -> None:
        """Start without requests."""
        self._waiting: list[tuple[UserRequest, int]] = []

    def add(self, request: UserRequest, now_ms: int) -> None:
        """Keep a request for at most half a minute."""
        self._waiting.append((request, now_ms + _MAX_WAIT_MS))

    def take(self) -> list[UserRequest]:
        """Return all requests and forget them: the job runs."""
        taken, self._waiting = self._waiting, []
        return [request for request, _ in taken]

    def drop(self, request_id: str) -> None:
        """Drop a request that is answered elsewhere; no error if it is not here."""
        self._waiting = [(request, until) for request, until in self._waiting if request.request_id != request_id]

    def overdue(self, now_ms: int, reason: str = "") -> list[ChangeDecision]:
        """Refuse the requests that have waited too long, for `reason` or because the job is not running."""
        late = [request for request, until in self._waiting if now_ms >= until]
        self._waiting = [(request, until) for request, until in self._waiting if now_ms < until]
        return _refusals(late, reason or f"the job is not running {RESUME_HINT}")

    def refuse(self, reason: str) -> list[ChangeDecision]:
        """Refuse all requests: the start failed."""
        return _refusals(self.take(), reason)

    def wake_ms(self) -> int | None:
        """Return the time at which the first request expires."""
        return min((until for _, until in self._waiting), default=None)


def _refusals(requests: Sequence[UserRequest], reason: str) -> list[ChangeDecision]:
    """Return the answers, and event log entries for changes of the job."""
    kinds = {RescaleRequested: "rescale", UpgradeRequested: "upgrade"}
    notes = [Note(kinds[type(request)], f"refused: {reason}") for request in requests if type(request) in kinds]
    return [*notes, *(OperationEnded(request.request_id, error=reason) for request in requests)]
