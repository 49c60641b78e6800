"""Process metrics of a TaskManager: its own for heartbeats, and its workers' in addition for `/metrics`.

Owned by `taskmanager.supervisor`; read from `/proc`, so that a hanging worker need not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.clock import Clock
from penstock.metrics.process import ProcessMeter
from penstock.metrics.prometheus import TASKMANAGER_SCOPE, Sample, process_samples, render, scope_samples

#: Dashboards need no higher rate, and each sample reads `/proc`.
_EVERY_MS = 2_000


@dataclass(frozen=True, slots=True)
class HeldWorker:
    """A running worker process."""

    pid: int
    job_id: str
    slot: int


class Figures:
    """The process meters of one TaskManager."""

    def __init__(self, taskmanager_id: str, host: str, clock: Clock) -> None:
        """Start the meters; the CPU load of this process is measured from here."""
        self._labels = {"tm_id": taskmanager_id, "host": host}
        self._clock = clock
        self._own = ProcessMeter(clock)
        self._workers: dict[int, ProcessMeter] = {}
        self._last: dict[str, float] = {}
        self._due_ms = 0.0

    def own(self) -> dict[str, float]:
        """Return this process's metrics, at most two seconds old."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + _EVERY_MS
            self._last = self._own.read()
        return self._last

    def text(self, slots: tuple[int, int], workers: Mapping[str, HeldWorker]) -> str:
        """Return the body of `/metrics`; `slots` are (all, free), `workers` the running ones by id."""
        own = self.own()
        held = {"taskSlotsTotal": float(slots[0]), "taskSlotsAvailable": float(slots[1])}
        samples = scope_samples(TASKMANAGER_SCOPE, {**own, **held}, self._labels)
        samples += process_samples(own, {**self._labels, "component": "taskmanager"})
        pids = {worker.pid for worker in workers.values()}
        self._workers = {pid: meter for pid, meter in self._workers.items() if pid in pids}
        for worker_id, worker in sorted(workers.items()):
            samples += self._of(worker_id, worker)
        return render(samples)

    def _of(self, worker_id: str, worker: HeldWorker) -> list[Sample]:
        if worker.pid not in self._workers:
            self._workers[worker.pid] = ProcessMeter(self._clock, worker.pid)
        named = {"worker_id": worker_id, "job_id": worker.job_id, "slot": str(worker.slot)}
        figures = self._workers[worker.pid].read()
        labels = {**self._labels, **named, "component": "worker"}
        return scope_samples(f"{TASKMANAGER_SCOPE}_worker", figures, labels) + process_samples(figures, labels)
