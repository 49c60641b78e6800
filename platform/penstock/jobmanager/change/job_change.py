"""Changes a running job: rescale or upgrade, one at a time; pure.

A member of `jobmanager.master.job_master`, which executes the returned steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.checkpoint.ha_records import UpgradeRecord
from penstock.checkpoint.recovery import RecoveryPlan
from penstock.jobmanager.change.rescaling import RescalePhase, Rescaling, described
from penstock.jobmanager.change.steps import AdoptDefinition, ChangeStep, Note, StopForChange
from penstock.jobmanager.change.upgrading import ChangeContext, Upgrading
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.commands import Command, OperationEnded
from penstock.jobmanager.messages.placement import Slot


class JobChange:
    """The rescale or upgrade of a job that is in progress, if any."""

    def __init__(self, upgrade: UpgradeRecord | None) -> None:
        """Continue the upgrade that an earlier leader recorded."""
        self.rescaling = Rescaling()
        self.upgrading = Upgrading(upgrade)

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

    def handle(self, event: ev.Change, job: ChangeContext) -> list[ChangeStep]:
        """Handle a user request, or the outcome of persisting the pending change."""
        match event:
            case ev.RescaleRequested():
                return self._rescale_requested(event, job)
            case ev.RescaleRecorded():
                graph, identity, extra = self.rescaling.recorded(job.identity)
                return [AdoptDefinition(graph, identity, extra)]
            case ev.RescaleNotRecorded(reason):
                return self.rescaling.not_recorded(reason)
            case ev.UpgradeRequested():
                obstacle = job.obstacle or ("a rescale of the job is under way" if self.rescaling.phase else "")
                return self.upgrading.requested(event, job, obstacle)
            case ev.UpgradeJudged(healthy):
                return self.upgrading.verdict_given(healthy=healthy)
            case ev.UpgradeRecorded():
                return self.upgrading.recorded(job)
            case ev.UpgradeNotRecorded(reason):
                return self.upgrading.not_recorded(reason, job.now_ms)

    def intercept_answers(self, commands: Sequence[Command], job: ChangeContext) -> list[ChangeStep]:
        """Replace answers to the rescale's or upgrade's own requests by the resulting steps."""
        found, decided = self.rescaling.checkpoint_answered(
            list(commands), job.checkpointing, running=job.step is Step.RUNNING
        )
        steps: list[ChangeStep] = []
        for command in found:
            mine = self.upgrading.checkpoint_answered(command, job) if isinstance(command, OperationEnded) else None
            steps += [command] if mine is None else mine
        steps += decided
        if self.rescaling.phase is RescalePhase.DECIDED:
            steps.append(StopForChange("the job is being rescaled", self.rescaling.record()))
        return steps

    def decide(self, job: ChangeContext) -> list[ChangeStep]:
        """Return the steps that are due."""
        steps = self.upgrading.decide(job)
        if request_id := self.rescaling.begin_checkpoint(job.held):
            steps += job.checkpointing.request_next_checkpoint(request_id, job.now_ms)
        return steps

    def log_read(self, plan: RecoveryPlan, job: ChangeContext) -> list[ChangeStep]:
        """Handle the recovery plan of a deployment."""
        for manifest in plan.history:
            self.upgrading.checkpointed(manifest)
        return self.upgrading.log_read(plan.trial, job, finishing=plan.finishing)

    def release_answered(self, event: ev.ManifestAppended | ev.ManifestFailed, job: ChangeContext) -> list[ChangeStep]:
        """Handle the outcome of appending the upgrade's release."""
        if isinstance(event, ev.ManifestFailed):
            return self.upgrading.not_released(event.reason, job.now_ms)
        return [*job.checkpointing.released(), *self.upgrading.released(job.now_ms)]

    def slots_granted(self, slots: Sequence[Slot]) -> bool:
        """Keep slots that belong to a rescale; return whether they do."""
        return self.rescaling.slots_granted(slots)

    def halted(self, reason: str) -> list[ChangeStep]:
        """Handle the end of the deployment."""
        return self.rescaling.halted(reason)

    def closed(self, reason: str) -> list[Command]:
        """Handle the coming end of the job."""
        return [step for step in self.upgrading.closed(reason) if isinstance(step, OperationEnded)]

    def _rescale_requested(self, event: ev.RescaleRequested, job: ChangeContext) -> list[ChangeStep]:
        obstacle = "an upgrade of the job is under way" if self.upgrading.phase else job.obstacle
        text = f"requested: {described(event.graph)}"
        return [Note("rescale", text), *self.rescaling.requested(event, job.graph, job.held, obstacle)]
