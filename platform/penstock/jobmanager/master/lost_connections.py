"""Failures by a lost connection to another worker, which wait for their cause: the end of that worker; pure.

A member of `jobmanager.master.job_master`: the report of a worker's end may come after that of its neighbours.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.jobmanager.change.decisions import Failure
from penstock.jobmanager.deploy.deployment import Deployment
from penstock.jobmanager.deploy.failover import lost_peer

#: Time for the report of a worker's end after that of a lost connection to it.
_WAIT_MS = 1_000


class LostConnections:
    """The failures that wait, oldest first."""

    def __init__(self) -> None:
        """Start without failures."""
        self._waiting: list[tuple[Failure, int]] = []

    def add(self, failure: Failure, now_ms: int) -> None:
        """Let a failure wait for its cause."""
        self._waiting.append((failure, now_ms + _WAIT_MS))

    def take_due(self, now_ms: int) -> Failure | None:
        """Return the oldest failure if it has waited long enough, and forget it."""
        due = bool(self._waiting) and now_ms >= self._waiting[0][1]
        return self._waiting.pop(0)[0] if due else None

    def forget(self, worker_ids: Collection[str]) -> None:
        """Forget the failures of workers that restart."""
        self._waiting = [waiting for waiting in self._waiting if waiting[0].worker_id not in worker_ids]

    def wake_ms(self) -> int | None:
        """Return the time at which `take_due` may return a failure."""
        return self._waiting[0][1] if self._waiting else None


def with_taskmanager(error: str, deployment: Deployment) -> str:
    """Return an error about a lost connection with the TaskManager of the other worker; any other error unchanged."""
    peer = lost_peer(error)
    if (worker := deployment.workers.get(peer)) is None:
        return error
    return error.replace(f"worker {peer} ", f"worker {peer} of TaskManager {worker.slot.taskmanager_id} ", 1)
