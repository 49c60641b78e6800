"""Which workers of earlier leaders stay while a new leader recovers their jobs; pure.

A member of `jobmanager.cluster.taskmanagers`. A worker that stays holds its slot; its job adopts or kills it.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.rpc.messages import SlotStatus


class KeptWorkers:
    """The jobs whose workers stay."""

    def __init__(self) -> None:
        """Keep all workers: the recorded jobs are not known yet."""
        self._known = False
        self._jobs: set[str] = set()
        self._registered: set[str] = set()

    def registered(self, taskmanager_id: str, workers: Iterable[SlotStatus]) -> tuple[SlotStatus, ...]:
        """Return the workers of a registering TaskManager that stay.

        None do if it has registered before: this leader has counted them as lost.
        """
        again = taskmanager_id in self._registered
        self._registered.add(taskmanager_id)
        return () if again else tuple(worker for worker in workers if not self._known or worker.job_id in self._jobs)

    def recover(self, job_ids: Iterable[str]) -> None:
        """Keep the workers of these jobs only: they are about to be recovered."""
        self._known, self._jobs = True, set(job_ids)

    def is_kept(self, job_id: str) -> bool:
        """Return whether the workers of a job stay."""
        return not self._known or job_id in self._jobs

    def decided(self, job_id: str) -> None:
        """Keep no further workers of a job: it has adopted its workers, or restarts."""
        self._jobs.discard(job_id)
