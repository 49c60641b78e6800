"""Changes a job: rescale or upgrade, one at a time; pure.

`JobChange` is a member of `jobmanager.master.job_master`, which executes the returned steps. `Rescaling` is one rescale
of a running job, from the request to the first start with the new parallelism; with unchanged parallelism it moves the
job away from TaskManagers that end (`RescaleRequested.leaves`). `upgrading` takes the same way, and `adapting` requests
rescales as slots come and go.

The order is fixed: slots granted -> (much state: the next workers have loaded a checkpoint) -> a checkpoint is in the
log -> its state fits -> the workers are killed, the new run is sealed in the log and recorded -> the workers have
stopped (without next workers: exited) -> deploy. A failure before the kill leaves the job unchanged. Once the change
is recorded, any leader completes it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from penstock.checkpoint.ha_records import UpgradeRecord
from penstock.checkpoint.manifest_log import Manifest
from penstock.core.errors import PenstockError
from penstock.graph.job_graph import JobGraph, required_slots
from penstock.graph.rescale import described
from penstock.graph.restore_plan import assign_state, bytes_to_prepare
from penstock.jobmanager.change.adapting import Adapting
from penstock.jobmanager.change.decisions import AdoptDefinition, ChangeContext, ChangeDecision, Note, StopForChange
from penstock.jobmanager.change.next_workers import ChangePreparation, NextDeployment
from penstock.jobmanager.change.upgrading import Upgrading
from penstock.jobmanager.checkpoints.checkpointing import ChangeCheckpoint
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.commands import OperationEnded, RecordChange, ReleaseSlots, RequestSlots
from penstock.jobmanager.messages.placement import Slot

_LATER = "ask again when it has ended"
_REMOVE = "remove the cause, then ask again"


class RescalePhase(enum.Enum):
    """The step that a rescale waits for."""

    SLOTS = "slots"
    #: Perhaps the next workers load state first.
    CHECKPOINT = "checkpoint"
    RECORD = "record"
    START = "start"


@dataclass(slots=True)
class Rescale:
    """One rescale: what was requested, and how far it is."""

    request: ev.RescaleRequested
    phase: RescalePhase
    #: Slots in addition to those the job holds.
    extra: tuple[Slot, ...] = ()

    @property
    def checkpoint_request(self) -> str:
        """The id of the request for its checkpoint."""
        return f"rescale-{self.request.request_id or self.request.run_id}"

    def slots(self, job: ChangeContext) -> tuple[Slot, ...]:
        """Return the slots of the new run, in the order of its subtasks; those that it leaves are last."""
        return tuple(sorted((*job.held, *self.extra), key=self._leaves))

    def missing_slots(self, job: ChangeContext) -> int:
        """Return how many slots the new run lacks."""
        return required_slots(self.request.graph) - sum(not self._leaves(slot) for slot in (*job.held, *self.extra))

    def changes_nothing(self, job: ChangeContext) -> bool:
        """Return whether the job has this parallelism, and no slot that it is to leave."""
        return self.request.graph.vertices == job.graph.vertices and not any(map(self._leaves, job.held))

    def ended(self, error: str = "") -> list[ChangeDecision]:
        """Answer the request."""
        return [OperationEnded(self.request.request_id, error=error)] if self.request.request_id else []

    def _leaves(self, slot: Slot) -> bool:
        return slot.taskmanager_id in self.request.leaves


class Rescaling:
    """The rescale in progress, if any; its methods are in the order of its steps."""

    def __init__(self, preparation: ChangePreparation) -> None:
        """Start without a rescale."""
        self._current: Rescale | None = None
        self._preparation = preparation
        #: Whether the last refusal was caused by a temporary obstacle.
        self.retry_soon = False

    @property
    def phase(self) -> RescalePhase | None:
        """The step that the rescale waits for; None without a rescale."""
        return self._current.phase if self._current is not None else None

    def awaits(self, answer: ev.ChangeAnswer) -> bool:
        """Return whether the rescale waits for this answer."""
        of_slots = isinstance(answer, ev.SlotsGranted | ev.SlotsRefused)
        return self.phase is (RescalePhase.SLOTS if of_slots else RescalePhase.RECORD)

    def requested(self, request: ev.RescaleRequested, job: ChangeContext, obstacle: str) -> list[ChangeDecision]:
        """Start a rescale or refuse it; `obstacle` is a reason against it."""
        current, asked = self._current, Rescale(request, RescalePhase.SLOTS)
        away = f", away from {', '.join(request.leaves)}" if request.leaves else ""
        note = Note("rescale", f"requested: {described(request.graph)}{away}")
        if current is not None and current.request.request_id == request.request_id:
            return [note]
        if current is not None:
            obstacle = "another rescale of the job is under way"
        elif not obstacle and asked.changes_nothing(job):
            return [note, *asked.ended()]
        if obstacle:
            self.retry_soon = True
            text = _with_hint(obstacle, _LATER)
            return [note, Note("rescale", f"refused: {text}"), *asked.ended(text)]
        self._current = asked
        missing = asked.missing_slots(job)
        return [note, RequestSlots(missing, wait=False)] if missing > 0 else [note, *self._begin(asked, job)]

    def restarted(self, request: ev.RescaleRequested) -> list[ChangeDecision]:
        """Let a job that does not run start with another parallelism; the caller has checked that its state fits.

        A rescale that was to start meanwhile has failed.
        """
        decided = self.abandon("there are fewer slots than it needs")
        self._current = Rescale(request, RescalePhase.RECORD)
        record = RecordChange(request.request_id, request.run_id, request.graph)
        return [*decided, StopForChange("the job starts with another parallelism", record)]

    def answered(self, answer: ev.ChangeAnswer, job: ChangeContext) -> list[ChangeDecision]:
        """Continue with an answer that the rescale `awaits`: about its slots, or the record of the new run."""
        current = self._waiting()
        match answer:
            case ev.SlotsGranted(slots):
                current.extra += slots
                return self._begin(current, job) if current.missing_slots(job) <= 0 else []
            case ev.SlotsRefused(reason):
                return self.abandon(_with_hint(f"no slots: {reason}", "start another TaskManager, or ask for less"))
            case ev.ChangeRecorded():
                own, slots, current.extra = job.identity.of_run(current.request.run_id), current.slots(job), ()
                current.phase = RescalePhase.START
                return [AdoptDefinition(current.request.graph, own, slots, self._preparation.take())]
            case ev.ChangeNotRecorded(reason):
                return self.abandon(_with_hint(f"it could not be recorded: {reason}", _REMOVE))

    def _begin(self, current: Rescale, job: ChangeContext) -> list[ChangeDecision]:
        """Request the checkpoint, at once or when the next workers have loaded their state, if that is large."""
        current.phase = RescalePhase.CHECKPOINT
        graph, newest = current.request.graph, job.checkpointing.newest_or_none
        size = bytes_to_prepare(graph, newest.subtasks if newest is not None else ())
        if size is None:
            return [*job.checkpointing.request_for_change(current.checkpoint_request, job.now_ms)]
        ids = job.identity.of_run(current.request.run_id).plan_ids(job.next_attempt)
        planned = NextDeployment(graph, ids, current.slots(job), size)
        return self._preparation.begin("rescale", current.checkpoint_request, planned, job, ev.NO_COPY)

    def checkpoint_ended(self, result: ChangeCheckpoint, job: ChangeContext) -> list[ChangeDecision]:
        """Stop the job for the change if the state fits; ignore the result of another request."""
        current = self._current
        if current is None or result.request_id != current.checkpoint_request:
            return []
        passing = job.checkpointing.busy or ("" if job.step is Step.RUNNING else "the job is no longer running")
        self.retry_soon = bool(passing)
        if result.checkpoint is None:
            return self.abandon(_with_hint(result.error, _REMOVE))
        if passing:
            return self.abandon(_with_hint(passing, _LATER))
        request = current.request
        if reason := _state_mismatch(request.graph, result.checkpoint):
            return self.abandon(reason)
        current.phase = RescalePhase.RECORD
        note = Note("rescale", f"from checkpoint {result.checkpoint.checkpoint_id}: {described(request.graph)}")
        record = RecordChange(request.request_id, request.run_id, request.graph)
        return [note, StopForChange("the job is being rescaled", record)]

    def running(self) -> list[ChangeDecision]:
        """Complete the rescale if the job now runs with the new parallelism."""
        if self.phase is not RescalePhase.START:
            return []
        current, self._current = self._waiting(), None
        return current.ended()

    def abandon(self, reason: str) -> list[ChangeDecision]:
        """Abandon the rescale: release its slots and fail the request."""
        current, self._current = self._current, None
        if current is None:
            return []
        release = self._preparation.give_up()
        if current.extra:
            release.append(ReleaseSlots(current.extra))
        if current.phase is RescalePhase.SLOTS:
            release.append(RequestSlots(0, wait=False))  # no rescale waits for the answer
        return [Note("rescale", f"abandoned: {reason}"), *release, *current.ended(reason)]

    def halted(self, reason: str) -> list[ChangeDecision]:
        """Abandon the rescale if the deployment ended before the checkpoint was complete."""
        return self.abandon(reason) if self.phase in (RescalePhase.SLOTS, RescalePhase.CHECKPOINT) else []

    def taskmanager_lost(self, taskmanager_id: str) -> list[ChangeDecision]:
        """Drop the slots of a lost TaskManager that were kept for the rescale."""
        current = self._current
        if current is None or not any(s.taskmanager_id == taskmanager_id for s in current.extra):
            return []
        current.extra = tuple(s for s in current.extra if s.taskmanager_id != taskmanager_id)
        return self.halted(f"TaskManager {taskmanager_id} with slots for the rescale is lost")

    def _waiting(self) -> Rescale:
        assert self._current is not None  # noqa: S101 - the callers see to it
        return self._current


class JobChange:
    """The rescale or upgrade of a job that is in progress, if any: each event goes to the change that waits for it."""

    def __init__(self, upgrade: UpgradeRecord | None, adapting: Adapting) -> None:
        """Continue the upgrade that an earlier leader recorded."""
        self.adapting = adapting
        self.preparation = ChangePreparation()
        self.rescaling = Rescaling(self.preparation)
        self.upgrading = Upgrading(self.preparation, upgrade)

    @property
    def idle(self) -> bool:
        """Whether no rescale or upgrade is in progress."""
        return self.rescaling.phase is None and self.upgrading.phase is None

    @property
    def recording(self) -> bool:
        """Whether a pending record write may change the job: its end is not written before the answer."""
        return self.rescaling.phase is RescalePhase.RECORD or self.upgrading.recording

    @property
    def unrecorded(self) -> bool:
        """Whether the job's next definition is still undecided."""
        return self.rescaling.phase is RescalePhase.RECORD or self.upgrading.unrecorded

    @property
    def waits_for_slots(self) -> bool:
        """Whether granted or refused slots belong to a rescale."""
        return self.rescaling.phase is RescalePhase.SLOTS

    # --- requests and answers --------------------------------------------------------------------------------------

    def handle(self, event: ev.Change, job: ChangeContext) -> list[ChangeDecision]:
        """Handle a user request, or the outcome of persisting the pending change."""
        match event:
            case ev.RescaleRequested():
                obstacle = "an upgrade of the job is under way" if self.upgrading.phase else job.obstacle
                return self.rescaling.requested(event, job, obstacle)
            case ev.UpgradeRequested():
                obstacle = job.obstacle or ("a rescale of the job is under way" if self.rescaling.phase else "")
                return self.upgrading.requested(event, job, obstacle)
            case ev.UpgradeJudged(healthy):
                return self.upgrading.verdict_given(healthy=healthy)
            case _ if self.rescaling.awaits(event):
                return self.rescaling.answered(event, job)
            case ev.ChangeRecorded():
                return self.upgrading.recorded(job)
            case ev.ChangeNotRecorded(reason):
                return self.upgrading.not_recorded(reason, job.now_ms)
        return []

    def checkpoint_ended(self, result: ChangeCheckpoint, job: ChangeContext) -> list[ChangeDecision]:
        """Handle the result of the checkpoint that the rescale or upgrade requested."""
        decided = self.preparation.checkpoint_ended(result, job)
        return decided + self.rescaling.checkpoint_ended(result, job) + self.upgrading.checkpoint_ended(result, job)

    def taskmanager_lost(self, taskmanager_id: str) -> list[ChangeDecision]:
        """Drop the slots and workers of a lost TaskManager that were kept for the change."""
        self.preparation.taskmanager_lost(taskmanager_id)
        return self.rescaling.taskmanager_lost(taskmanager_id)

    def halted(self, reason: str) -> list[ChangeDecision]:
        """Handle the end of the deployment before the checkpoint of the change was complete."""
        return [*self.rescaling.halted(reason), *self.upgrading.halted()]

    # --- the course of the job -------------------------------------------------------------------------------------

    def decide(self, job: ChangeContext) -> list[ChangeDecision]:
        """Return the steps that are due."""
        decided = [*self.adapting.declare(job.graph), *self.preparation.decide(job), *self.upgrading.decide(job)]
        more = self.adapting.grow(job, idle=self.idle)
        return decided if more is None else [*decided, *self.rescaling.requested(more, job, "")]

    def start(self, job: ChangeContext) -> list[ChangeDecision] | None:
        """Return the steps before the start of a job whose old workers are gone; None: it can be deployed."""
        before = None if self.upgrading.phase is not None else self.adapting.start(job)
        return self.rescaling.restarted(before) if isinstance(before, ev.RescaleRequested) else before

    def wake_ms(self) -> int | None:
        """Return the time at which `decide` is due without an event."""
        times = (self.preparation.wake_ms(), self.upgrading.wake_ms(), self.adapting.wake_ms())
        return min((at_ms for at_ms in times if at_ms is not None), default=None)


def _with_hint(reason: str, hint: str) -> str:
    """Return the reason with a way out, unless it names one."""
    return reason if reason.endswith(")") else f"{reason} ({hint})"


def _state_mismatch(graph: JobGraph, manifest: Manifest) -> str:
    """Return why a checkpoint's state cannot be assigned to the new subtasks, or an empty string."""
    try:
        assign_state(graph, manifest.subtasks, checkpoint_id=manifest.checkpoint_id)
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"
    return ""
