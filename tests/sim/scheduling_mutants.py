"""Faults planted into the use of slots: needless restarts of the adaptive scheduler, and slots that were refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.faults import SLOT_REFUSED
from tests.sim.mutants import Mutant, Patch
from tests.sim.workload import Phase

from penstock.config.settings import AdaptiveSchedulerSettings
from penstock.jobmanager.change.adapting import Adapting
from penstock.jobmanager.change.adaptive_scheduler import AdaptiveScheduler, Resources, ScalingStep
from penstock.jobmanager.change.decisions import ChangeContext
from penstock.jobmanager.cluster.slots import HeldSlots, SlotPool
from penstock.jobmanager.messages.placement import Slot


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


def _refused_slot_free(patch: Patch) -> None:
    """A slot that its TaskManager has refused is free at once."""

    def free(self: SlotPool, slot: Slot) -> None:
        offer = self._offers.get(slot.taskmanager_id)
        self.release("" if offer is None else offer.held.get(slot.index, ""), (slot,))

    patch.setattr(SlotPool, "refused", free)


def _refused_slot_kept(patch: Patch) -> None:
    """A job keeps a slot that its TaskManager has refused, and starts its next worker there."""
    patch.setattr(HeldSlots, "refused", lambda _self, _slot: None)


def _refused_slot_lost(patch: Patch) -> None:
    """A slot that was refused once is never given to a job again."""
    patch.setattr(SlotPool, "reported", lambda _self, _name, _taken: None)


_LOSSES = {"taskmanager-killed": 2.0, "worker-killed": 1.0}
_KILLS, _REFUSALS = {"worker-killed": 1.0}, {SLOT_REFUSED: 0.2}
_PLAN = {"input_ms": 1500.0, "phases": [Phase(3)]}
_SETTINGS = {
    "adaptive_scheduler": AdaptiveSchedulerSettings(
        enabled=True, resource_wait_timeout_ms=300, resource_stabilization_timeout_ms=20, scaling_interval_ms=300
    )
}

SCHEDULING = (
    Mutant("slots taken without a pause", _no_pause, {}, _LOSSES, _PLAN, _SETTINGS, likely=2),
    Mutant("a refused slot free at once", _refused_slot_free, _REFUSALS, _KILLS, likely=2),
    Mutant("a refused slot kept by its job", _refused_slot_kept, _REFUSALS, _KILLS, likely=2),
    Mutant("a refused slot never free again", _refused_slot_lost, _REFUSALS, _KILLS, likely=5),
    Mutant("slots of the previous run counted as taken", _own_slots_taken, {}, _LOSSES, _PLAN, _SETTINGS, likely=2),
)
