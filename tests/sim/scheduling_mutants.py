"""Faults planted into the adaptive scheduler: jobs that restart more often than their slots are a reason for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.mutants import Mutant, Patch
from tests.sim.workload import Phase

from penstock.config.settings import AdaptiveSchedulerSettings
from penstock.jobmanager.change.adapting import Adapting
from penstock.jobmanager.change.adaptive_scheduler import AdaptiveScheduler, Resources, ScalingStep
from penstock.jobmanager.change.decisions import ChangeContext


def _no_pause(patch: Patch) -> None:
    """A running job takes slots as soon as they are there."""
    grow = AdaptiveScheduler._grow

    def at_once(self: AdaptiveScheduler, resources: Resources, now_ms: int) -> ScalingStep:
        self._since_ms = self._not_before_ms = self._stable_since_ms = -1_000_000
        return grow(self, resources, now_ms)

    patch.setattr(AdaptiveScheduler, "_grow", at_once)


def _own_slots_taken(patch: Patch) -> None:
    """The slots of the run that was stopped count as taken (FLINK-40379)."""
    decide = Adapting._decide

    def free_alone(self: Adapting, job: ChangeContext) -> Any:
        return decide(self, job if job.running else replace(job, held=()))

    patch.setattr(Adapting, "_decide", free_alone)


_LOSSES = {"taskmanager-killed": 2.0, "worker-killed": 1.0}
_PLAN = {"input_ms": 1500.0, "phases": [Phase(3)]}
_SETTINGS = {
    "adaptive_scheduler": AdaptiveSchedulerSettings(
        enabled=True, resource_wait_timeout_ms=300, resource_stabilization_timeout_ms=20, scaling_interval_ms=300
    )
}

SCHEDULING = (
    Mutant("slots taken without a pause", _no_pause, {}, _LOSSES, _PLAN, _SETTINGS, likely=2),
    Mutant("slots of the previous run counted as taken", _own_slots_taken, {}, _LOSSES, _PLAN, _SETTINGS, likely=2),
)
