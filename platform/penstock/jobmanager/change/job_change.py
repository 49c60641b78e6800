"""What changes a running job in its place: another parallelism or another version, one of them at a time; pure.

A member of `jobmanager.master.job_master`, which takes the steps that are returned here.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.checkpoint.recovery import RecoveryPlan
from penstock.checkpoint.upgrade_record import UpgradeRecord
from penstock.jobmanager.change.rescaling import Phase, Rescaling, described
from penstock.jobmanager.change.steps import Become, ChangeStep, Leave, Note, Step
from penstock.jobmanager.change.upgrading import Situation, Upgrading
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.commands import Command, OperationEnded
from penstock.jobmanager.messages.placement import Slot


class InPlace:
    """A rescale, or an upgrade, or nothing."""

    def __init__(self, upgrade: UpgradeRecord | None) -> None:
        """Go on with the upgrade that a leader before has recorded."""
        self.rescaling = Rescaling()
        self.upgrading = Upgrading(upgrade)

    @property
    def recording(self) -> bool:
        """Whether the job may be another one with the next answer: its end is not written before."""
        return self.rescaling.phase is Phase.RECORD or self.upgrading.recording

    @property
    def unrecorded(self) -> bool:
        """Whether it is not settled yet what the job is to be."""
        return self.rescaling.phase is Phase.RECORD or self.upgrading.unrecorded

    @property
    def waits_for_slots(self) -> bool:
        """Whether slots that come, or do not, are for a rescale."""
        return self.rescaling.phase is Phase.SLOTS

    def obstacle(self, request: ev.CutRequested) -> str:
        """Why a user cannot have that cut now, or nothing."""
        plain = isinstance(request, ev.CheckpointRequested)
        return "" if plain or self.upgrading.phase is None else "an upgrade of the job is under way"

    def handle(self, event: ev.Change, job: Situation) -> list[ChangeStep]:
        """A user wants something, or what was to be recorded is, or is not."""
        match event:
            case ev.RescaleRequested():
                return self._rescale_asked(event, job)
            case ev.RescaleRecorded():
                graph, identity, extra = self.rescaling.recorded(job.identity)
                return [Become(graph, identity, extra)]
            case ev.RescaleNotRecorded(reason):
                text = f"it could not be recorded: {reason}"
                return [Note("rescale", f"given up, {text}"), *self.rescaling.abandon(text)]
            case ev.UpgradeRequested():
                obstacle = job.obstacle or ("a rescale of the job is under way" if self.rescaling.phase else "")
                return self.upgrading.asked(event, job, obstacle)
            case ev.UpgradeJudged(healthy):
                return self.upgrading.judged(healthy=healthy)
            case ev.UpgradeRecorded():
                return self.upgrading.recorded(job)
            case ev.UpgradeNotRecorded(reason):
                return self.upgrading.not_recorded(reason, job.now_ms)

    def answers(self, commands: Sequence[Command], job: Situation) -> list[ChangeStep]:
        """Look among a job's commands for answers to its own requests: return what is to be done in their place."""
        found, decided = self.rescaling.answered(list(commands), job.checkpointing, running=job.step is Step.RUNNING)
        steps: list[ChangeStep] = [Note("rescale", decided)] if decided else []
        for command in found:
            mine = self.upgrading.answered(command, job) if isinstance(command, OperationEnded) else None
            steps += [command] if mine is None else mine
        if self.rescaling.phase is Phase.DECIDED:
            steps.append(Leave("the job is being rescaled", self.rescaling.record()))
        return steps

    def decide(self, job: Situation) -> list[ChangeStep]:
        """Return what it is time for."""
        steps = self.upgrading.decide(job)
        if request_id := self.rescaling.needs_checkpoint(job.held):
            steps += job.checkpointing.join(request_id, job.now_ms)
        return steps

    def log_read(self, plan: RecoveryPlan, job: Situation) -> list[ChangeStep]:
        """A deployment has read the log."""
        for manifest in plan.history:
            self.upgrading.checkpointed(manifest)
        return self.upgrading.log_read(plan.trial, job, finishing=plan.finishing)

    def release_answered(self, event: ev.ManifestAppended | ev.ManifestFailed, job: Situation) -> list[ChangeStep]:
        """The release of an upgrade is in the log, or not, or nobody knows."""
        if isinstance(event, ev.ManifestFailed):
            return self.upgrading.not_released(event.reason, job.now_ms)
        return [*job.checkpointing.released(), *self.upgrading.released()]

    def slots_granted(self, slots: Sequence[Slot]) -> bool:
        """Whether they are for a rescale; they are kept then."""
        return self.rescaling.slots_granted(slots)

    def halted(self, reason: str) -> list[Command]:
        """The deployment is over."""
        return self.rescaling.halted(reason)

    def closed(self, reason: str) -> list[Command]:
        """The job is about to end."""
        return [step for step in self.upgrading.closed(reason) if isinstance(step, OperationEnded)]

    def _rescale_asked(self, event: ev.RescaleRequested, job: Situation) -> list[ChangeStep]:
        obstacle = "an upgrade of the job is under way" if self.upgrading.phase else job.obstacle
        text = f"asked for: {described(event.graph)}{obstacle and f' ({obstacle})'}"
        return [Note("rescale", text), *self.rescaling.asked(event, job.graph, job.held, obstacle)]
