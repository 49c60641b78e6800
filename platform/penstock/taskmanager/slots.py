"""The slots of a TaskManager and their states, with Flink's names (a test compares the lines with the table).

::

    FREE      -> ALLOCATED
    ALLOCATED -> ACTIVE RELEASING FREE
    ACTIVE    -> RELEASING FREE
    RELEASING -> FREE

Pure. Used by `taskmanager.supervisor`, which reports the taken slots to the JobManager.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from penstock.core.errors import PenstockError


class SlotError(PenstockError):
    """Raised if a slot does not exist or is taken."""


class SlotState(enum.StrEnum):
    """The state of a slot, or of the hold of a worker on it."""

    FREE = "FREE"
    #: Its worker is starting.
    ALLOCATED = "ALLOCATED"
    #: Its worker runs.
    ACTIVE = "ACTIVE"
    #: Its worker was killed and has not ended.
    RELEASING = "RELEASING"


_S = SlotState
TRANSITIONS: dict[SlotState, frozenset[SlotState]] = {
    _S.FREE: frozenset({_S.ALLOCATED}),
    _S.ALLOCATED: frozenset({_S.ACTIVE, _S.RELEASING, _S.FREE}),
    _S.ACTIVE: frozenset({_S.RELEASING, _S.FREE}),
    _S.RELEASING: frozenset({_S.FREE}),
}


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """The worker that holds a slot."""

    slot: int
    worker_id: str
    job_id: str
    state: SlotState = SlotState.ALLOCATED


class SlotTable:
    """Slots 0..count-1, each free or held by one worker, beside which its successor may start."""

    def __init__(self, count: int) -> None:
        """Create a table of free slots."""
        self.count = count
        #: By worker; those of one slot in the order in which they got it.
        self._holders: dict[str, SlotHolder] = {}

    def allocate(self, slot: int, worker_id: str, job_id: str, *, beside: bool = False) -> SlotHolder:
        """Assign `slot` to `worker_id`, `beside` one of the same job; idempotent for the same worker.

        Raises:
            SlotError: no such slot, the slot is held by another worker, or the worker holds another slot.
        """
        if not 0 <= slot < self.count:
            msg = f"slot {slot} does not exist"
            raise SlotError(msg, hint=f"this TaskManager has slots 0 to {self.count - 1}")
        own, present = self.of_worker(worker_id), self.of_slot(slot)
        if own is not None and (own.slot, own.job_id) == (slot, job_id):
            return own
        if present and not (beside and len(present) == 1 and present[0].job_id == job_id):
            msg = f"slot {slot} is held by worker {present[-1].worker_id} of job {present[-1].job_id}"
            raise SlotError(msg, hint="it is free once that worker has ended")
        if own is not None:
            msg = f"worker {worker_id} already holds slot {own.slot}"
            raise SlotError(msg, hint="a worker has one slot")
        holder = self._holders[worker_id] = SlotHolder(slot, worker_id, job_id)
        return holder

    def to(self, worker_id: str, state: SlotState) -> bool:
        """Switch the hold of a worker to `state`; return False, without a change, if that is not allowed."""
        holder = self.of_worker(worker_id)
        if holder is None or state not in TRANSITIONS[holder.state]:
            return False
        if state is SlotState.FREE:
            del self._holders[worker_id]
        else:
            self._holders[worker_id] = replace(holder, state=state)
        return True

    def of_worker(self, worker_id: str) -> SlotHolder | None:
        """Return the slot that a worker holds."""
        return self._holders.get(worker_id)

    def of_slot(self, slot: int) -> tuple[SlotHolder, ...]:
        """Return the holders of a slot: its worker, then the successor that takes it over."""
        return tuple(holder for holder in self._holders.values() if holder.slot == slot)

    def is_releasing(self, slot: int) -> bool:
        """Return whether a worker in this slot was killed and has not ended."""
        return any(holder.state is SlotState.RELEASING for holder in self.of_slot(slot))

    @property
    def held(self) -> tuple[SlotHolder, ...]:
        """All holders, by the number of the slot."""
        return tuple(sorted(self._holders.values(), key=lambda holder: holder.slot))

    @property
    def free_slots(self) -> tuple[int, ...]:
        """Numbers of the free slots."""
        held = {holder.slot for holder in self._holders.values()}
        return tuple(slot for slot in range(self.count) if slot not in held)
