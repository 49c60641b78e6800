"""Changes a job: rescale or upgrade, one at a time; pure.

A member of `jobmanager.master.job_master`, which executes the returned steps. `Rescaling` and `Upgrading` take the same
way: they request a checkpoint, stop the job with the record of its new definition, and let it switch to that.
`Adapting` requests rescales as slots come and go.
"""

from __future__ import annotations

from penstock.checkpoint.ha_records import UpgradeRecord
from penstock.checkpoint.recovery import RecoveryPlan
from penstock.jobmanager.change.adapting import Adapting
from penstock.jobmanager.change.decisions import ChangeContext, ChangeDecision
from penstock.jobmanager.change.next_workers import ChangePreparation
from penstock.jobmanager.change.rescaling import RescalePhase, Rescaling
from penstock.jobmanager.change.upgrading import Upgrading
from penstock.jobmanager.checkpoints.checkpointing import ChangeCheckpoint
from penstock.jobmanager.messages import events as ev


class JobChange:
    """The rescale or upgrade of a job that is in progress, if any."""

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

    def obstacle(self, request: ev.BarrierRequested) -> str:
        """Return why a user cannot have that checkpoint now; empty if the user can."""
        plain = isinstance(request, ev.CheckpointRequested)
        return "" if plain or self.upgrading.phase is None else "an upgrade of the job is under way"

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
            case ev.ChangeRecorded() if self.rescaling.phase is RescalePhase.RECORD:
                return self.rescaling.recorded(job.identity)
            case ev.ChangeRecorded():
                return self.upgrading.recorded(job)
            case ev.ChangeNotRecorded(reason) if self.rescaling.phase is RescalePhase.RECORD:
                return self.rescaling.not_recorded(reason)
            case ev.ChangeNotRecorded(reason):
                return self.upgrading.not_recorded(reason, job.now_ms)

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

    def release_answered(
        self, event: ev.ManifestAppended | ev.ManifestFailed, job: ChangeContext
    ) -> list[ChangeDecision]:
        """Handle the outcome of appending the upgrade's release."""
        if isinstance(event, ev.ManifestFailed):
            return self.upgrading.not_released(event.reason, job.now_ms)
        return [*job.checkpointing.released(), *self.upgrading.released(job.now_ms)]

    # --- the course of the job -------------------------------------------------------------------------------------

    def decide(self, job: ChangeContext) -> list[ChangeDecision]:
        """Return the steps that are due."""
        decided = [*self.adapting.declare(job.graph), *self.rescaling.decide(job), *self.upgrading.decide(job)]
        more = self.adapting.grow(job, idle=self.idle)
        return decided if more is None else [*decided, *self.rescaling.requested(more, job, "")]

    def start(self, job: ChangeContext) -> list[ChangeDecision] | None:
        """Return the steps before the start of a job whose old workers have exited; None: it can be deployed."""
        before = None if self.upgrading.phase is not None else self.adapting.start(job)
        return self.rescaling.restarted(before) if isinstance(before, ev.RescaleRequested) else before

    def wake_ms(self) -> int | None:
        """Return the time at which `decide` is due without an event."""
        times = (self.preparation.wake_ms(), self.upgrading.wake_ms(), self.adapting.wake_ms())
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def log_read(self, plan: RecoveryPlan, job: ChangeContext) -> list[ChangeDecision]:
        """Handle the recovery plan of a deployment."""
        for manifest in plan.history:
            self.upgrading.checkpointed(manifest)
        return self.upgrading.log_read(plan.trial, job, finishing=plan.finishing)
