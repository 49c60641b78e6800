"""The slots one job holds, and the workers that are to leave them before anything new is started there; pure.

A member of `jobmanager.master.job_master`.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.jobmanager.deploy.deployment import Worker
from penstock.jobmanager.messages.commands import Command, KillWorker, ReleaseSlots
from penstock.jobmanager.messages.placement import Slot

_LEAVE_TIMEOUT_MS = 10_000


class HeldSlots:
    """Slots stay the job's over its restarts; a slot whose worker cannot be killed is given up."""

    def __init__(self) -> None:
        """None yet."""
        self.slots: list[Slot] = []
        self._leaving: dict[str, Slot] = {}
        self._leave_by_ms = 0

    def halt(self, workers: Iterable[Worker], now_ms: int) -> list[Command]:
        """Kill these workers: `gone` says when they have left."""
        commands: list[Command] = []
        for worker in workers:
            self._leaving[worker.worker_id] = worker.slot
            commands.append(KillWorker(worker.worker_id, worker.slot))
        self._leave_by_ms = now_ms + _LEAVE_TIMEOUT_MS
        return commands

    def worker_left(self, worker_id: str) -> Slot | None:
        """A worker process has ended; return its slot, if it was to leave."""
        return self._leaving.pop(worker_id, None)

    def taskmanager_lost(self, taskmanager_id: str) -> None:
        """Its slots are no more, and nobody will report the end of its workers."""
        self.slots = [slot for slot in self.slots if slot.taskmanager_id != taskmanager_id]
        self._leaving = {w: slot for w, slot in self._leaving.items() if slot.taskmanager_id != taskmanager_id}

    def gone(self, now_ms: int) -> bool:
        """Whether the old workers have left; slots whose worker cannot be killed are given up."""
        if self._leaving and now_ms >= self._leave_by_ms:
            stuck = set(self._leaving.values())
            self.slots = [slot for slot in self.slots if slot not in stuck]
            self._leaving.clear()
        return not self._leaving

    def trim(self, needed: int) -> list[Command]:
        """Give back what is more than `needed`, which no worker may hold any more."""
        surplus, self.slots = tuple(self.slots[needed:]), self.slots[:needed]
        return [ReleaseSlots(surplus)] if surplus else []

    def wake_ms(self) -> int | None:
        """When `gone` changes by time alone, or None."""
        return self._leave_by_ms if self._leaving else None
