"""The cluster's slots: who offers them, which job holds them, who waits; a pure decider shared by all jobs.

A member of `jobmanager.taskmanagers`. A request is granted as a whole or waits (first come, first served); slots are
taken from the TaskManagers with the most free ones, so that a job spreads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.jobmanager.scheduler import Slot


@dataclass(frozen=True, slots=True)
class Grant:
    """These slots are the job's."""

    job_id: str
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request waited too long."""

    job_id: str
    reason: str


@dataclass(slots=True)
class _Offer:
    host: str
    free: list[int]
    total: int
    held: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Request:
    job_id: str
    count: int
    deadline_ms: int


class SlotPool:
    """All slots of the registered TaskManagers."""

    def __init__(self, timeout_ms: int) -> None:
        """Requests are refused after `timeout_ms`."""
        self._timeout_ms = timeout_ms
        self._offers: dict[str, _Offer] = {}
        self._requests: list[_Request] = []

    @property
    def total(self) -> int:
        """All slots."""
        return sum(offer.total for offer in self._offers.values())

    @property
    def free(self) -> int:
        """Slots that no job holds."""
        return sum(len(offer.free) for offer in self._offers.values())

    def free_of(self, taskmanager_id: str) -> int:
        """Return the free slots of one TaskManager."""
        return len(self._offers[taskmanager_id].free)

    def add(self, taskmanager_id: str, host: str, slots: int) -> list[Grant | Refuse]:
        """A TaskManager has registered."""
        self._offers[taskmanager_id] = _Offer(host, list(range(slots)), slots)
        return self._serve()

    def remove(self, taskmanager_id: str) -> list[Grant | Refuse]:
        """A TaskManager is dead: its slots are gone, whoever held them."""
        self._offers.pop(taskmanager_id, None)
        return []

    def request(self, job_id: str, count: int, now_ms: int) -> list[Grant | Refuse]:
        """A job needs `count` more slots."""
        self._requests = [r for r in self._requests if r.job_id != job_id]
        self._requests.append(_Request(job_id, count, now_ms + self._timeout_ms))
        return self._serve()

    def release(self, job_id: str, slots: tuple[Slot, ...] | None = None) -> list[Grant | Refuse]:
        """A job gives slots back (None: all of them, and its request)."""
        if slots is None:
            self._requests = [r for r in self._requests if r.job_id != job_id]
        for taskmanager_id, offer in self._offers.items():
            for index, holder in list(offer.held.items()):
                if holder == job_id and (slots is None or any(
                    s.taskmanager_id == taskmanager_id and s.index == index for s in slots
                )):  # fmt: skip
                    del offer.held[index]
                    offer.free.append(index)
            offer.free.sort()
        return self._serve()

    def tick(self, now_ms: int) -> list[Grant | Refuse]:
        """Refuse what waited too long."""
        late = [r for r in self._requests if now_ms >= r.deadline_ms]
        self._requests = [r for r in self._requests if now_ms < r.deadline_ms]
        return [
            Refuse(r.job_id, f"{r.count} slots are needed, {self.free} of {self.total} are free: waited too long")
            for r in late
        ]

    def _serve(self) -> list[Grant | Refuse]:
        granted: list[Grant | Refuse] = []
        while self._requests and self._requests[0].count <= self.free:
            request = self._requests.pop(0)
            granted.append(Grant(request.job_id, tuple(self._take(request.job_id) for _ in range(request.count))))
        return granted

    def _take(self, job_id: str) -> Slot:
        taskmanager_id, offer = max(self._offers.items(), key=lambda item: (len(item[1].free), item[0]))
        index = offer.free.pop(0)
        offer.held[index] = job_id
        return Slot(taskmanager_id, index, offer.host)
