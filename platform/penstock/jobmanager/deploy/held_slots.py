"""The slots one job holds, and the workers that must exit before new ones start there; pure.

A member of `jobmanager.master.job_master`. Prepared workers run already: they wait only until the old ones have
stopped, which is until no thread of them executes. Memory, disk and slots of the old ones are free at their exit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from penstock.jobmanager.deploy.deployment import Worker
from penstock.jobmanager.messages.commands import Command, KillWorker, ReleaseSlots
from penstock.jobmanager.messages.placement import Slot

_EXIT_TIMEOUT_MS = 10_000


class HeldSlots:
    """Slots that a job keeps over restarts; a slot whose worker cannot be killed is given up."""

    def __init__(self) -> None:
        """Start without slots."""
        #: In the order of the subtasks, which keep their slots over restarts.
        self.slots: list[Slot] = []
        #: Places of lost slots in this order, lost ones included.
        self._vacant: set[int] = set()
        #: Workers that have started for the next deployment, and the number of workers that it needs.
        self._prepared: dict[str, Worker] = {}
        self._needed = 0
        #: Killed workers, and those of them that have stopped.
        self._exiting: dict[str, Slot] = {}
        self._stopped: set[str] = set()
        self._exit_deadline_ms = 0

    def add(self, slots: Iterable[Slot]) -> None:
        """Hold further slots, first in the places of lost ones: the subtasks in other slots stay there."""
        for slot in slots:
            place = min(self._vacant, default=len(self.slots))
            self._vacant.discard(place)
            self.slots.insert(place, slot)

    def adopt(self, slots: Iterable[Slot], prepared: Iterable[Worker], needed: int) -> None:
        """Hold the slots of a new definition of the job, in this order, and workers that have started in them.

        The next deployment needs the first `needed` slots; `trim` releases the others.
        """
        self.slots = list(slots)
        self._vacant.clear()
        self._prepared, self._needed = {worker.worker_id: worker for worker in prepared}, needed

    def take_prepared(self, needed: int) -> tuple[list[Worker], list[Worker]]:
        """Return the prepared workers in the first `needed` slots, and the others, to be killed."""
        prepared, self._prepared = list(self._prepared.values()), {}
        used = self.slots[:needed]
        return [w for w in prepared if w.slot in used], [w for w in prepared if w.slot not in used]

    def halt(self, workers: Iterable[Worker], now_ms: int) -> list[Command]:
        """Kill these workers, and those that are prepared; `may_start` returns whether others may start."""
        commands: list[Command] = []
        prepared, self._prepared = self._prepared, {}
        for worker in (*workers, *prepared.values()):
            self._exiting[worker.worker_id] = worker.slot
            commands.append(KillWorker(worker.worker_id, worker.slot))
        self._stopped &= self._exiting.keys()
        self._exit_deadline_ms = now_ms + _EXIT_TIMEOUT_MS
        return commands

    def worker_stopped(self, worker_id: str) -> None:
        """Handle the stop of a killed worker, before its end."""
        if worker_id in self._exiting:
            self._stopped.add(worker_id)

    def worker_exited(self, worker_id: str) -> None:
        """Handle the end of a worker process."""
        self._exiting.pop(worker_id, None)
        self._stopped.discard(worker_id)
        self._prepared.pop(worker_id, None)

    def taskmanager_lost(self, taskmanager_id: str) -> None:
        """Forget the slots of a lost TaskManager and its workers, whose exit will not be reported."""
        self._give_up({slot for slot in self.slots if slot.taskmanager_id == taskmanager_id})
        self._exiting = {w: slot for w, slot in self._exiting.items() if slot.taskmanager_id != taskmanager_id}
        self._prepared = {w: p for w, p in self._prepared.items() if p.slot.taskmanager_id != taskmanager_id}

    def may_start(self, now_ms: int) -> bool:
        """Return whether the old workers have exited, or have stopped and prepared ones replace them all.

        Gives up slots whose worker cannot be killed in time.
        """
        if self._prepared and len(self._prepared) >= self._needed and self._exiting.keys() <= self._stopped:
            return True
        if self._exiting and now_ms >= self._exit_deadline_ms:
            self._give_up(set(self._exiting.values()))
            self._exiting.clear()
        return not self._exiting

    def trim(self, needed: int) -> list[Command]:
        """Release the slots beyond `needed`; a worker in them has at least stopped, others start after its exit."""
        surplus, self.slots = tuple(self.slots[needed:]), self.slots[:needed]
        self._vacant = {place for place in self._vacant if place < needed}
        return [ReleaseSlots(surplus)] if surplus else []

    def _give_up(self, lost: Collection[Slot]) -> None:
        places = [place for place in range(len(self.slots) + len(self._vacant)) if place not in self._vacant]
        self._vacant |= {place for place, slot in zip(places, self.slots, strict=True) if slot in lost}
        self.slots = [slot for slot in self.slots if slot not in lost]

    def wake_ms(self) -> int | None:
        """Return the time at which `may_start` may change by a timeout, or None."""
        return self._exit_deadline_ms if self._exiting else None
