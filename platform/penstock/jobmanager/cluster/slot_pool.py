"""The cluster's slots: offers of TaskManagers, slots held by jobs, waiting requests; a pure decider shared by all jobs.

A member of `jobmanager.cluster.taskmanagers`. A request is granted as a whole or waits. Requests of a higher priority
come first: while one waits that the cluster is large enough for, none of a lower priority is granted. Of equal ones,
the oldest that fits in the free slots is served first, so a large request does not block smaller ones. Slots are taken
from the TaskManagers with the most free slots, which spreads a job. A slot with fewer resources than the job wants does
not count.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.config.settings import ResourceProfile
from penstock.config.slot_resources import ANY, shortage
from penstock.jobmanager.messages.placement import Slot

#: Jobs that a message names.
_MOST_HOLDERS = 4


@dataclass(frozen=True, slots=True)
class Grant:
    """Slots granted to a job."""

    job_id: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """A refusal: the request waited too long, or cannot be granted now."""

    job_id: str
    reason: str


@dataclass(slots=True)
class _Offer:
    host: str
    #: In descending order: the lowest index is taken first.
    free: list[int]
    total: int
    #: Resources of a slot; None: unknown, they are enough for every job.
    resources: ResourceProfile | None = None
    held: dict[int, str] = field(default_factory=dict)
    #: Its free slots are given to no job: the TaskManager is about to end.
    drained: bool = False

    def fits(self, wanted: ResourceProfile) -> bool:
        """Return whether a slot has these resources."""
        return not shortage(wanted, self.resources)


@dataclass(slots=True)
class _Request:
    job_id: str
    count: int
    deadline_ms: int
    #: Resources that each slot needs.
    wanted: ResourceProfile
    #: Higher ones come first.
    priority: int


class SlotPool:
    """All slots of the registered TaskManagers."""

    def __init__(self, timeout_ms: int, most: int = 0) -> None:
        """Create an empty pool; waiting requests are refused after `timeout_ms`.

        `most`: the slots that the cluster grows to while requests wait; 0: it does not grow.
        """
        self._timeout_ms, self._most = timeout_ms, most
        self._offers: dict[str, _Offer] = {}
        self._requests: list[_Request] = []
        #: Job id -> the slots that it would use, those that it holds included.
        self._declared: dict[str, int] = {}
        self._closed = False
        #: Number of slots that no job holds.
        self.free = 0

    @property
    def total(self) -> int:
        """Number of all slots, without those of drained TaskManagers."""
        return sum(offer.total for offer in self._offers.values() if not offer.drained)

    def obtainable(self, wanted: ResourceProfile = ANY) -> int:
        """Return the number of slots that a request gets at once or after the cluster has grown."""
        return self._free_for(wanted) + max(0, self._most - self.total)

    def refusal(self, wanted: ResourceProfile) -> str:
        """Return why no slot has these resources; empty: one has, there is none yet, or those of one are unknown."""
        offers = [offer for offer in self._offers.values() if not offer.drained]
        return "" if any(offer.fits(wanted) for offer in offers) else _shortage(wanted, offers)

    @property
    def pending(self) -> int:
        """Number of slots that waiting requests need, and that jobs have declared besides."""
        known = Counter({request.job_id: request.count for request in self._requests})
        pending = known.total()
        known.update(holder for offer in self._offers.values() for holder in offer.held.values())
        return pending + sum(max(0, count - known[job_id]) for job_id, count in self._declared.items())

    def _free_for(self, wanted: ResourceProfile) -> int:
        if wanted == ANY:
            return self.free
        return sum(len(offer.free) for offer in self._offers.values() if not offer.drained and offer.fits(wanted))

    def _supply(self, wanted: ResourceProfile) -> str:
        if not self.total:
            return "no TaskManager is registered"
        free = f"{self.free} of {self.total} {'is' if self.free == 1 else 'are'} free"
        small = self.free - self._free_for(wanted)
        offers = [offer for offer in self._offers.values() if offer.free and not offer.drained]
        return f"{free}, {small} too small: {_shortage(wanted, offers)}" if small else free

    def waiting(self, job_id: str, names: Mapping[str, str]) -> str:
        """Return what a job's request waits for, such as `9 slots, 4 of 6 are free (live holds 2)`.

        `names`: of jobs, by id. The text is empty without a request.
        """
        request = next((request for request in self._requests if request.job_id == job_id), None)
        if request is None:
            return ""
        held = Counter(names.get(holder, holder) for offer in self._offers.values() for holder in offer.held.values())
        holders = [f"{name} holds {slots}" for name, slots in held.most_common(_MOST_HOLDERS)]
        more = f", {len(held) - _MOST_HOLDERS} more jobs" if len(held) > _MOST_HOLDERS else ""
        who = f" ({', '.join(holders)}{more})" if holders else ""
        late = f"after {self._timeout_ms / 1000:.0f} s without them the start fails and the restart strategy decides"
        behind = ", a job with a higher slot_priority comes first" if self._is_held_back(request.priority) else ""
        return f"{_slots(request.count)}, {self._supply(request.wanted)}{who}{behind}; {late}"

    def free_of(self, taskmanager_id: str) -> int:
        """Return the number of slots of one TaskManager that no job holds."""
        return len(self._offers[taskmanager_id].free)

    @property
    def drained(self) -> tuple[str, ...]:
        """The TaskManagers whose slots are given to no job."""
        return tuple(name for name, offer in self._offers.items() if offer.drained)

    def drain(self, taskmanager_id: str) -> frozenset[str]:
        """Give no further slots of a TaskManager to jobs; return the ids of the jobs that hold some."""
        offer = self._offers[taskmanager_id]
        if not offer.drained:
            offer.drained = True
            self.free -= len(offer.free)
        return frozenset(offer.held.values())

    def add(
        self,
        taskmanager_id: str,
        host: str,
        slots: int,
        held: Mapping[int, str] | None = None,
        resources: ResourceProfile | None = None,
    ) -> list[Grant | Refuse]:
        """Add the slots of a registered TaskManager; `held`: slots that jobs hold already, by index.

        `resources`: those of each slot; None: unknown.
        """
        self.remove(taskmanager_id)
        taken = dict(held or {})
        free = [index for index in reversed(range(slots)) if index not in taken]
        self._offers[taskmanager_id] = _Offer(host, free, slots, resources, taken)
        self.free += len(free)
        return self._serve()

    def remove(self, taskmanager_id: str) -> list[Grant | Refuse]:
        """Remove the slots of a lost TaskManager, including those that jobs hold."""
        offer = self._offers.pop(taskmanager_id, None)
        self.free -= len(offer.free) if offer is not None and not offer.drained else 0
        return []

    def request(
        self,
        job_id: str,
        count: int,
        now_ms: int,
        *,
        wait: bool = True,
        wanted: ResourceProfile = ANY,
        priority: int = 0,
    ) -> list[Grant | Refuse]:
        """Request `count` more slots for a job, each with the wanted resources; 0 slots withdraw its request.

        Without `wait` the answer is immediate, unless the cluster can grow that far.
        """
        if not wait and count > self.obtainable(wanted):
            needed = "1 more slot is" if count == 1 else f"{count} more slots are"
            return [Refuse(job_id, f"{needed} needed, {self._supply(wanted)}")]
        self._requests = [r for r in self._requests if r.job_id != job_id]
        if not wait and count and self._is_held_back(priority):
            return [Refuse(job_id, f"{_slots(count)} needed, a job with a higher slot_priority comes first")]
        if count:
            self._requests.append(_Request(job_id, count, now_ms + self._timeout_ms, wanted, priority))
        return self._serve()

    def declare(self, job_id: str, count: int) -> None:
        """Set how many slots a job would use, those that it holds included; they count as pending until it has them."""
        self._declared[job_id] = count

    def release(self, job_id: str, slots: tuple[Slot, ...] | None = None) -> list[Grant | Refuse]:
        """Release slots of a job (None: all of them, its request and its declaration)."""
        given: dict[str, list[int]] = {}
        if slots is None:
            self._requests = [r for r in self._requests if r.job_id != job_id]
            self._declared.pop(job_id, None)
            given = {name: list(offer.held) for name, offer in self._offers.items() if offer.held}
        for slot in slots or ():
            given.setdefault(slot.taskmanager_id, []).append(slot.index)
        for name, indexes in given.items():
            offer = self._offers.get(name)
            back = [i for i in indexes if offer.held.get(i) == job_id] if offer is not None else []
            if offer is None or not back:
                continue
            for index in back:
                del offer.held[index]
            offer.free = sorted({*offer.free, *back}, reverse=True)
            self.free += 0 if offer.drained else len(back)
        return self._serve()

    def close(self) -> None:
        """Grant no further slots: those that become free are for the next leader's jobs."""
        self._closed = True

    def tick(self, now_ms: int) -> list[Grant | Refuse]:
        """Refuse requests that waited too long."""
        late = [r for r in self._requests if now_ms >= r.deadline_ms]
        self._requests = [r for r in self._requests if now_ms < r.deadline_ms]
        refused: list[Grant | Refuse] = [
            Refuse(
                r.job_id,
                f"{_slots(r.count)} needed, {self._supply(r.wanted)}: "
                f"not enough became free within {self._timeout_ms / 1000:.0f} s",
            )
            for r in late
        ]
        return refused + self._serve() if late else refused

    def _is_held_back(self, priority: int) -> bool:
        """Return whether a request waits that has a higher priority, and that the cluster is large enough for."""
        return any(r.priority > priority and r.count <= self._size_for(r.wanted) for r in self._requests)

    def _size_for(self, wanted: ResourceProfile) -> int:
        return sum(offer.total for offer in self._offers.values() if not offer.drained and offer.fits(wanted))

    def _serve(self) -> list[Grant | Refuse]:
        if self._closed:
            return []
        granted: list[Grant | Refuse] = []
        for request in sorted(self._requests, key=lambda request: -request.priority):
            if self._is_held_back(request.priority):
                break
            if request.count <= self._free_for(request.wanted):
                self._requests.remove(request)
                granted.append(Grant(request.job_id, self._take(request)))
        return granted

    def _take(self, request: _Request) -> tuple[Slot, ...]:
        """Take slots one by one, each from the TaskManager with the most free slots."""
        most = [
            (-len(offer.free), name)
            for name, offer in self._offers.items()
            if offer.free and not offer.drained and offer.fits(request.wanted)
        ]
        heapq.heapify(most)
        taken = []
        for _ in range(request.count):
            negative, name = most[0]
            offer = self._offers[name]
            index = offer.free.pop()
            offer.held[index] = request.job_id
            taken.append(Slot(name, index, offer.host))
            heapq.heapreplace(most, (negative + 1, name))
        self.free -= request.count
        return tuple(taken)


def _shortage(wanted: ResourceProfile, offers: Iterable[_Offer]) -> str:
    """Return what the largest slot lacks of those that are too small, with the way out; empty if none is."""
    small = [offer.resources for offer in offers if offer.resources is not None and not offer.fits(wanted)]
    largest = max(small, key=lambda slot: slot.managed_memory_bytes, default=None)
    return shortage(wanted, largest)


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"
