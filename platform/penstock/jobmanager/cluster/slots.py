"""Slots, from the offer of a TaskManager to their release: those of the cluster, and those that one job holds.

No I/O and no clock. `SlotPool` is a member of `cluster.taskmanagers`; the driver of a job requests and releases slots,
and the pool tells jobs what they get. A request is granted as a whole or waits. Requests of a higher priority come
first: while one waits that the cluster is large enough for, none of a lower priority is granted. Of equal ones, the
oldest that fits in the free slots is served first, so a large request does not block smaller ones. Slots are taken from
the TaskManagers with the most free slots, which spreads a job. A slot with fewer resources than the job wants does not
count.

`HeldSlots` is a member of `master.job_master`: the granted slots of a job, which it keeps over restarts, and the
workers that must exit before new ones start there.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from penstock.config.settings import ResourceProfile
from penstock.config.slot_resources import ANY, shortage, wanted_of
from penstock.core.errors import UsageError
from penstock.graph.job_graph import JobGraph
from penstock.graph.rescale import least_slots
from penstock.jobmanager.deploy.deployment import Worker
from penstock.jobmanager.messages.commands import Command, KillWorker, ReleaseSlots
from penstock.jobmanager.messages.events import Event, SlotsAvailable, SlotsAwaited, SlotsGranted, SlotsRefused
from penstock.jobmanager.messages.placement import Slot

#: Jobs that a message names.
_MOST_HOLDERS = 4
_EXIT_TIMEOUT_MS = 10_000
#: Answers to requests, each with the id of its job.
_Answers = list[tuple[str, Event]]


@dataclass(frozen=True, slots=True)
class _Job:
    """A job that gets events about slots."""

    name: str
    post: Callable[[Event], None]


@dataclass(slots=True)
class _Offer:
    host: str
    #: In descending order: the lowest index is taken first.
    free: list[int]
    total: int
    #: Resources of a slot; None: unknown, they are enough for every job.
    resources: ResourceProfile | None = None
    held: dict[int, str] = field(default_factory=dict)
    #: Slots that the TaskManager has refused to start a worker in; it has not reported them as free since.
    refused: set[int] = field(default_factory=set)
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
        self._jobs: dict[str, _Job] = {}
        #: Job id -> the slots that it would use, those that it holds included.
        self._declared: dict[str, int] = {}
        self._closed = False
        #: Number of slots that no job holds, and the number that the jobs know.
        self.free = self._known_free = 0

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

    def require(self, graph: JobGraph) -> None:
        """Check that the cluster can provide the slots of a job, if its size is known, and one of their resources.

        Raises:
            UsageError: the job needs more slots than the cluster has, or more resources than a slot has.
        """
        needed, size = least_slots(graph), max(self._most, self.total)
        if self._most and needed > size:
            msg = f"job {graph.name!r} needs {needed} slots, but this cluster has {size}"
            raise UsageError(msg, hint="lower the parallelism, or start the cluster with more TaskManagers or slots")
        if why := self.refusal(wanted_of(graph.settings)):
            msg = f"job {graph.name!r} does not fit into any slot: {why}"
            raise UsageError(msg)

    @property
    def pending(self) -> int:
        """Number of slots that waiting requests need, and that jobs have declared besides."""
        known = Counter({request.job_id: request.count for request in self._requests})
        pending = known.total()
        known.update(holder for offer in self._offers.values() for holder in offer.held.values())
        return pending + sum(max(0, count - known[job_id]) for job_id, count in self._declared.items())

    def waiting(self, job_id: str) -> str:
        """Return what a job's request waits for, such as `9 slots, 4 of 6 are free (live holds 2)`.

        The text is empty without a request.
        """
        request = next((request for request in self._requests if request.job_id == job_id), None)
        if request is None:
            return ""
        held = Counter(self._name(holder) for offer in self._offers.values() for holder in offer.held.values())
        holders = [f"{name} holds {slots}" for name, slots in held.most_common(_MOST_HOLDERS)]
        more = f", {len(held) - _MOST_HOLDERS} more jobs" if len(held) > _MOST_HOLDERS else ""
        who = f" ({', '.join(holders)}{more})" if holders else ""
        late = f"after {self._timeout_ms / 1000:.0f} s without them the start fails and the restart strategy decides"
        behind = ", a job with a higher slot_priority comes first" if self._is_held_back(request.priority) else ""
        return f"{_slots(request.count)}, {self._supply(request.wanted)}{who}{behind}; {late}"

    # --- jobs ------------------------------------------------------------------------------------------------------

    def attach(self, job_id: str, post: Callable[[Event], None], name: str) -> None:
        """Tell a job through `post` of its slots and of the number of free ones; `name` is for messages."""
        self._jobs[job_id] = _Job(name, post)
        post(SlotsAvailable(self.free))

    def detach(self, job_id: str) -> None:
        """Release all slots of an ended job, and tell it nothing more."""
        self._jobs.pop(job_id, None)
        self.release(job_id)

    def request(
        self,
        job_id: str,
        count: int,
        now_ms: int,
        *,
        wait: bool = True,
        wanted: ResourceProfile = ANY,
        priority: int = 0,
    ) -> None:
        """Request `count` more slots for a job, each with the wanted resources; 0 slots withdraw its request.

        It is answered by `SlotsGranted` or `SlotsRefused`; without `wait` immediately, unless the cluster can grow that
        far.
        """
        request = _Request(job_id, count, now_ms + self._timeout_ms, wanted, priority)
        self._tell(self._answers(request, wait=wait))
        if self.total and (awaited := self.waiting(job_id)):  # while the cluster starts, none are missing yet
            self._tell([(job_id, SlotsAwaited(awaited))])

    def declare(self, job_id: str, count: int) -> None:
        """Set how many slots a job would use, those that it holds included; they count as pending until it has them."""
        self._declared[job_id] = count

    def release(self, job_id: str, slots: tuple[Slot, ...] | None = None) -> None:
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
        self._tell(self._serve())

    def tick(self, now_ms: int) -> None:
        """Refuse requests that waited too long."""
        late = [r for r in self._requests if now_ms >= r.deadline_ms]
        self._requests = [r for r in self._requests if now_ms < r.deadline_ms]
        waited = f"not enough became free within {self._timeout_ms / 1000:.0f} s"
        refused = [_refused(r.job_id, f"{_slots(r.count)} needed, {self._supply(r.wanted)}: {waited}") for r in late]
        self._tell(refused + self._serve() if late else [])

    def close(self) -> None:
        """Grant no further slots: those that become free are for the next leader's jobs."""
        self._closed = True

    # --- TaskManagers ----------------------------------------------------------------------------------------------

    def add(
        self,
        taskmanager_id: str,
        host: str,
        slots: int,
        held: Mapping[int, str] | None = None,
        resources: ResourceProfile | None = None,
    ) -> None:
        """Add the slots of a registered TaskManager; `held`: slots that jobs hold already, by index.

        `resources`: those of each slot; None: unknown.
        """
        self._remove(taskmanager_id)
        taken = dict(held or {})
        free = [index for index in reversed(range(slots)) if index not in taken]
        self._offers[taskmanager_id] = _Offer(host, free, slots, resources, taken)
        self.free += len(free)
        self._tell(self._serve())

    def remove(self, taskmanager_id: str) -> None:
        """Remove the slots of a lost TaskManager, including those that jobs hold."""
        self._remove(taskmanager_id)
        self._tell([])

    def refused(self, job_id: str, slot: Slot) -> None:
        """Give a slot that its TaskManager has refused a job to no job, until that reports it as free.

        If another job has it by now, nothing changes.
        """
        offer = self._offers.get(slot.taskmanager_id)
        if offer is not None and offer.held.get(slot.index) == job_id:
            del offer.held[slot.index]
            offer.refused.add(slot.index)

    def reported(self, taskmanager_id: str, taken: Collection[int]) -> None:
        """Give refused slots that a TaskManager does not report as `taken` to jobs again."""
        offer = self._offers[taskmanager_id]
        if back := offer.refused.difference(taken):
            offer.refused -= back
            offer.free = sorted({*offer.free, *back}, reverse=True)
            self.free += 0 if offer.drained else len(back)
            self._tell(self._serve())

    def held_of(self, taskmanager_id: str) -> int:
        """Return the number of slots of one TaskManager that jobs hold."""
        return len(self._offers[taskmanager_id].held)

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
        holders = frozenset(offer.held.values())
        self._tell([])
        return holders

    # --- inside ----------------------------------------------------------------------------------------------------

    def _tell(self, answers: _Answers) -> None:
        """Tell all jobs how many slots are free, if that has changed, then answer requests.

        A job may handle an event at once, and change the pool meanwhile.
        """
        if self.free != self._known_free:
            self._known_free = self.free
            for job in list(self._jobs.values()):
                job.post(SlotsAvailable(self._known_free))
        for job_id, answer in answers:
            if job_id in self._jobs:
                self._jobs[job_id].post(answer)

    def _answers(self, request: _Request, *, wait: bool) -> _Answers:
        """Let a request replace that of its job; return the answers that follow, perhaps also to other jobs."""
        count = request.count
        if not wait and count > self.obtainable(request.wanted):
            needed = "1 more slot is" if count == 1 else f"{count} more slots are"
            return [_refused(request.job_id, f"{needed} needed, {self._supply(request.wanted)}")]
        self._requests = [r for r in self._requests if r.job_id != request.job_id]
        if not wait and count and self._is_held_back(request.priority):
            reason = f"{_slots(count)} needed, a job with a higher slot_priority comes first"
            return [_refused(request.job_id, reason)]
        if count:
            self._requests.append(request)
        return self._serve()

    def _remove(self, taskmanager_id: str) -> None:
        offer = self._offers.pop(taskmanager_id, None)
        self.free -= len(offer.free) if offer is not None and not offer.drained else 0

    def _name(self, job_id: str) -> str:
        return self._jobs[job_id].name if job_id in self._jobs else job_id

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

    def _is_held_back(self, priority: int) -> bool:
        """Return whether a request waits that has a higher priority, and that the cluster is large enough for."""
        return any(r.priority > priority and r.count <= self._size_for(r.wanted) for r in self._requests)

    def _size_for(self, wanted: ResourceProfile) -> int:
        return sum(offer.total for offer in self._offers.values() if not offer.drained and offer.fits(wanted))

    def _serve(self) -> _Answers:
        if self._closed:
            return []
        granted: _Answers = []
        for request in sorted(self._requests, key=lambda request: -request.priority):
            if self._is_held_back(request.priority):
                break
            if request.count <= self._free_for(request.wanted):
                self._requests.remove(request)
                granted.append((request.job_id, SlotsGranted(self._take(request))))
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


def _refused(job_id: str, reason: str) -> tuple[str, Event]:
    return job_id, SlotsRefused(reason)


def _shortage(wanted: ResourceProfile, offers: Iterable[_Offer]) -> str:
    """Return what the largest slot lacks of those that are too small, with the way out; empty if none is."""
    small = [offer.resources for offer in offers if offer.resources is not None and not offer.fits(wanted)]
    largest = max(small, key=lambda slot: slot.managed_memory_bytes, default=None)
    return shortage(wanted, largest)


def _slots(count: int) -> str:
    return "1 slot" if count == 1 else f"{count} slots"


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

    def refused(self, slot: Slot) -> None:
        """Give up a slot that its TaskManager has refused."""
        self._give_up({slot})

    def _give_up(self, lost: Collection[Slot]) -> None:
        places = [place for place in range(len(self.slots) + len(self._vacant)) if place not in self._vacant]
        self._vacant |= {place for place, slot in zip(places, self.slots, strict=True) if slot in lost}
        self.slots = [slot for slot in self.slots if slot not in lost]

    def wake_ms(self) -> int | None:
        """Return the time at which `may_start` may change by a timeout, or None."""
        return self._exit_deadline_ms if self._exiting else None
