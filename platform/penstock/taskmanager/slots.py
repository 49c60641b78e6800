"""The slot table of one TaskManager: the worker in each slot; pure, no I/O.

A slot is a process. It is allocated before its worker is started and freed only when that process is known to have
ended, so two workers never share a slot. Used by `taskmanager.supervisor`.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import PenstockError


class SlotError(PenstockError):
    """Raised if a slot does not exist or is taken."""


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """The worker that holds a slot."""

    slot: int
    worker_id: str
    job_id: str


class SlotTable:
    """Slots 0..count-1, each free or held by one worker."""

    def __init__(self, count: int) -> None:
        """Create a table of free slots."""
        self.count = count
        self._holders: dict[int, SlotHolder] = {}
        self._by_worker: dict[str, SlotHolder] = {}

    def allocate(self, slot: int, worker_id: str, job_id: str) -> SlotHolder:
        """Assign `slot` to `worker_id`; idempotent for the same worker.

        Raises:
            SlotError: no such slot, the slot is held by another worker, or the worker holds another slot.
        """
        if not 0 <= slot < self.count:
            msg = f"slot {slot} does not exist"
            raise SlotError(msg, hint=f"this TaskManager has slots 0 to {self.count - 1}")
        holder = SlotHolder(slot, worker_id, job_id)
        current = self._holders.get(slot)
        if current is not None and current != holder:
            msg = f"slot {slot} is held by worker {current.worker_id} of job {current.job_id}"
            raise SlotError(msg, hint="it is free once that worker has ended")
        other = self.of_worker(worker_id)
        if other is not None and other.slot != slot:
            msg = f"worker {worker_id} already holds slot {other.slot}"
            raise SlotError(msg, hint="a worker has one slot")
        self._holders[slot] = self._by_worker[worker_id] = holder
        return holder

    def free(self, worker_id: str) -> SlotHolder | None:
        """Free the slot of a worker whose process has ended; return None if it held none."""
        holder = self._by_worker.pop(worker_id, None)
        if holder is not None:
            del self._holders[holder.slot]
        return holder

    def of_worker(self, worker_id: str) -> SlotHolder | None:
        """Return the slot that a worker holds."""
        return self._by_worker.get(worker_id)

    @property
    def held(self) -> tuple[SlotHolder, ...]:
        """All held slots, by number."""
        return tuple(self._holders[slot] for slot in sorted(self._holders))

    @property
    def free_slots(self) -> tuple[int, ...]:
        """Numbers of the free slots."""
        return tuple(slot for slot in range(self.count) if slot not in self._holders)
