"""Lets a job's parallelism follow the slots: executes the decisions of `adaptive_scheduler` for one job; pure.

A member of `jobmanager.change.job_change`. It counts the slots that the job holds and the free ones, and declares how
many the job would use, for which a cluster grows. A running job rescales as by a user's request. A job that is to
start waits here, and changes its definition before the start if it starts with another parallelism: the log is read
first, since the state must fit.
"""

from __future__ import annotations

from penstock.config.settings import AdaptiveSchedulerSettings
from penstock.core.errors import PenstockError
from penstock.core.rand import Rand
from penstock.graph.job_graph import JobGraph
from penstock.graph.rescale import declared_slots, described, is_adaptive, least_slots, limited, reachable_parallelism
from penstock.jobmanager.change.adaptive_scheduler import (
    AdaptiveScheduler,
    RescaleUp,
    Resources,
    ScalingStep,
    StartWith,
    WaitUntil,
)
from penstock.jobmanager.change.decisions import ChangeContext, ChangeDecision, Note, PostponeStart
from penstock.jobmanager.deploy.job_log import plan_restore
from penstock.jobmanager.messages.commands import DeclareSlots, ReadLog
from penstock.jobmanager.messages.events import LogFailed, LogRead, RescaleRequested

#: The log is read without a time limit: its store answers or fails.
_READ_MS = 3_600_000


class Adapting:
    """The adaptive scheduler of a job, if it has one, and the slots that it sees."""

    def __init__(self, settings: AdaptiveSchedulerSettings, rand: Rand) -> None:
        """Start without slots; run ids come from `rand`."""
        self._settings, self._rand = settings, rand
        self._scheduler = AdaptiveScheduler(settings)
        #: Slots that no job holds.
        self.free = 0
        #: Whether the job waits for slots before it starts.
        self.waits = False
        #: The answer to `ReadLog` before a start with another parallelism; whether that start is not possible.
        self._log: LogRead | None = None
        self._reading = self._refused = False
        #: Whether the request for slots of the next start waits; else it is refused at once, and the job decides again.
        self.requests_wait = not settings.enabled
        #: A rescale was requested, and has not changed the job yet.
        self._asked = False
        self._declared = 0
        self._wake_ms: int | None = None

    def wake_ms(self) -> int | None:
        """Return the time at which `grow` is due without an event."""
        return self._wake_ms

    def grow(self, job: ChangeContext, *, idle: bool) -> RescaleRequested | None:
        """Return the request for more subtasks of a running job if it is due; `idle`: no change is under way.

        It is called at every event, also while the job does not run, so that the scheduler knows since when it does.
        """
        self._wake_ms = None
        if not is_adaptive(job.graph):
            return None
        step = self._decide(job)
        if not job.running or not idle:
            return None
        if self._asked:  # it was refused or abandoned: else the job would have stopped
            self._asked = False
            self._scheduler.rescale_failed(job.now_ms)
            step = self._decide(job)
        if isinstance(step, WaitUntil):
            self._wake_ms = step.at_ms
        if not isinstance(step, RescaleUp) or job.obstacle:
            return None
        self._asked = True
        return RescaleRequested("", self._rand.token(16), limited(job.graph, step.parallelism))

    def declare(self, graph: JobGraph) -> list[DeclareSlots]:
        """Return the declaration of the slots that the job would use, if it has changed."""
        count = declared_slots(graph) if is_adaptive(graph) else 0
        if count == self._declared:
            return []
        self._declared = count
        return [DeclareSlots(count)]

    def log_answered(self, answer: LogRead | LogFailed) -> None:
        """Handle the answer to `ReadLog`: without a log the job starts as it is, and that start tells the error."""
        if self._reading:
            self._log, self._refused = (answer, False) if isinstance(answer, LogRead) else (None, True)
        self._reading = False

    def start(self, job: ChangeContext) -> RescaleRequested | list[ChangeDecision] | None:
        """Return what precedes the start of a job whose old workers are gone: a change, steps, or nothing (None)."""
        if self._reading:
            return []
        step = self._decide(job) if is_adaptive(job.graph) and not self._refused else None
        if isinstance(step, WaitUntil):
            note = [] if self.waits else [Note("slots", f"waiting for {self.waiting_text(job.graph)}")]
            self.waits, self._log = True, None
            return [*note, PostponeStart(step.at_ms)]
        if not isinstance(step, StartWith) or limited(job.graph, step.parallelism) == job.graph:
            self.requests_wait = self._refused or not is_adaptive(job.graph)
            self._leave()
            return None
        if self._log is None:
            self.waits = self._reading = True
            return [ReadLog(), PostponeStart(job.now_ms + _READ_MS)]
        return self._changed(limited(job.graph, step.parallelism), self._log, job)

    def waiting_text(self, graph: JobGraph) -> str:
        """Return what a start of the job waits for, such as `8 slots, or 2 at least; 1 is free`."""
        free = f"{self.free} {'is' if self.free == 1 else 'are'} free"
        return f"{declared_slots(graph)} slots, or {least_slots(graph)} at least; {free}"

    def _changed(self, graph: JobGraph, log: LogRead, job: ChangeContext) -> RescaleRequested | list[ChangeDecision]:
        """Return the change to `graph` if the state in the log fits it; else refuse it, so that the start continues."""
        try:
            recovered = plan_restore(graph, job.identity, log, deployed_before=True)
        except PenstockError as error:
            return self._refuse(graph, f"{type(error).__name__}: {error}", job.now_ms)
        plan = recovered.plan
        if plan.finishing:
            return self._refuse(graph, "its last checkpoint is complete", job.now_ms)
        self._leave()
        # Before its first checkpoint the run continues: it starts from the savepoint or the graph that it was given.
        own = plan.restored is not None and plan.restored.run_id == job.identity.run_id
        return RescaleRequested("", self._rand.token(16) if own else "", graph)

    def _refuse(self, graph: JobGraph, reason: str, now_ms: int) -> list[ChangeDecision]:
        self._refused = True
        return [Note("rescale", f"refused: {described(graph)}: {reason}"), PostponeStart(now_ms)]

    def _leave(self) -> None:
        self.waits, self._log, self._refused, self._asked = False, None, False, False

    def _decide(self, job: ChangeContext) -> ScalingStep:
        settings = job.graph.settings.adaptive_scheduler
        if settings != self._settings:
            self._settings, self._scheduler = settings, AdaptiveScheduler(settings)
        current = max(vertex.parallelism for vertex in job.graph.vertices)
        declared = max(vertex.wanted for vertex in job.graph.vertices)
        reachable = reachable_parallelism(job.graph, len(job.held) + self.free)
        return self._scheduler.decide(Resources(job.running, current, declared, reachable), job.now_ms)
