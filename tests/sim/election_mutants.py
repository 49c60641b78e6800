"""Faults planted into the election of the leader, for `test_mutants.py`."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.sim.faults import HAND_OVER, PATH_BROKEN
from tests.sim.mutants import Mutant, Patch

from penstock.checkpoint import ha_records, leader_lease
from penstock.checkpoint.job_lease import JobLease
from penstock.checkpoint.leader_lease import LeaderLease, LeaseWatch
from penstock.checkpoint.leader_probes import ProbeWatch
from penstock.checkpoint.store import ObjectStore

_CHANGES = {"jobmanager-killed": 1.0, "leader-paused": 2.0, "standby-paused": 1.0}
_SLOW = {"input_ms": 1500.0}
_PROBES = {**_SLOW, "probes": True}


def _renewals_ignored(patch: Patch) -> None:
    lapsed = LeaseWatch.lapsed

    def impatient(
        self: LeaseWatch, lease: LeaderLease | None, asked_ms: float, answered_ms: float, **known: Any
    ) -> bool:
        seen = lease if lease is None else msgspec.structs.replace(lease, renewals=0)
        return lapsed(self, seen, asked_ms, answered_ms, **known)

    patch.setattr(LeaseWatch, "lapsed", impatient)


def _own_suspension_counts(patch: Patch) -> None:
    lapsed = LeaseWatch.lapsed

    def late(self: LeaseWatch, lease: LeaderLease | None, _asked_ms: float, answered_ms: float, **known: Any) -> bool:
        return lapsed(self, lease, answered_ms, answered_ms, **known)

    patch.setattr(LeaseWatch, "lapsed", late)


def _silence_is_enough(patch: Patch) -> None:
    patch.setattr(LeaseWatch, "_late_ms", 0.0)


def _own_suspension_is_silence(patch: Patch) -> None:
    def ticked(self: ProbeWatch, now_ms: float) -> None:
        self._ticked_ms = now_ms

    patch.setattr(ProbeWatch, "ticked", ticked)


def _no_answer_is_needed(patch: Patch) -> None:
    suspect = ProbeWatch._suspect

    def eager(self: ProbeWatch, generation: int, at_ms: float, patience_ms: float) -> bool:
        self._generation, self._least_answers = generation, 0
        return suspect(self, generation, at_ms, patience_ms)

    patch.setattr(ProbeWatch, "_suspect", eager)


def _lost_races_are_repeated(patch: Patch) -> None:
    def at_once(self: LeaseWatch, generation: int, _now_ms: float) -> None:
        self.taken = generation

    patch.setattr(LeaseWatch, "lost", at_once)


def _released_for_all(patch: Patch) -> None:
    lapsed = LeaseWatch.lapsed

    def at_once(self: LeaseWatch, lease: LeaderLease | None, *times: float, **known: Any) -> bool:
        return lapsed(self, lease, *times, **known) or (lease is not None and lease.released)

    patch.setattr(LeaseWatch, "lapsed", at_once)


def _any_generation_is_lapsed(patch: Patch) -> None:
    def greedy(store: ObjectStore, mine: LeaderLease, above: int) -> Any:
        return take(store, mine, max(above, ha_records.newest_generation(store)))

    take = leader_lease.take_lead
    patch.setattr(leader_lease, "take_lead", greedy)


def _generation_overwritten(patch: Patch) -> None:
    def put(store: ObjectStore, record: ha_records.LeaderRecord) -> bool:
        store.put(f"leader/{record.generation:012d}.json", msgspec.json.encode(record))
        return True

    patch.setattr(leader_lease, "take_generation", put)


def _earlier_leader_renews(patch: Patch) -> None:
    def put(store: ObjectStore, mine: LeaderLease) -> LeaderLease:
        store.put(leader_lease.LEASE, msgspec.json.encode(mine))
        return mine

    patch.setattr(leader_lease, "write_lease", put)


def _earlier_leader_takes_the_job(patch: Patch) -> None:
    """As before the simulation found it: a slow leader took a job from the leader after it."""
    acquire = JobLease.acquire

    def blind(self: JobLease, job_id: str, *, take_over: bool = True) -> Any:
        self._holder = msgspec.structs.replace(self._holder, leader_generation=0)
        return acquire(self, job_id, take_over=take_over)

    patch.setattr(JobLease, "acquire", blind)


ELECTION = (
    Mutant("renewals ignored", _renewals_ignored, {}, _CHANGES, _SLOW),
    Mutant(
        "a standby's own suspension counts",
        _own_suspension_counts,
        {},
        {"standby-paused": 6.0},
        _SLOW,
        every_ms=60,
        likely=2,
    ),
    Mutant("a silent leader has no time for a renewal", _silence_is_enough, {}, {PATH_BROKEN: 3.0}, _PROBES),
    Mutant(
        "a standby's own suspension is the leader's silence",
        _own_suspension_is_silence,
        {"upload-delayed": 0.4},
        {"standby-paused": 6.0},
        _PROBES,
        every_ms=60,
        likely=10,
    ),
    Mutant("a leader is silent that has never answered", _no_answer_is_needed, {}, _CHANGES, _PROBES, every_ms=60),
    Mutant(
        "a lost race is repeated at once",
        _lost_races_are_repeated,
        {"upload-delayed": 0.5},
        _CHANGES,
        _SLOW,
        seeds=60,
        likely=7,
    ),
    Mutant(
        "a released lease ends the lead of the next leader",
        _released_for_all,
        {"upload-delayed": 0.5},
        {HAND_OVER: 2.0},
        _SLOW,
        likely=3,
    ),
    Mutant(
        "a generation is taken from its leader",
        _any_generation_is_lapsed,
        {"upload-delayed": 0.3},
        _CHANGES,
        _SLOW,
        likely=6,
    ),
    Mutant("a generation is taken twice", _generation_overwritten, {"upload-delayed": 0.3}, _CHANGES, _SLOW, likely=7),
    Mutant("an earlier leader renews its lease", _earlier_leader_renews, {}, _CHANGES, _SLOW),
    Mutant(
        "an earlier leader takes the job",
        _earlier_leader_takes_the_job,
        {"upload-delayed": 0.3, "kill-after-manifest": 0.1},
        _CHANGES,
        _SLOW,
        seeds=150,
        likely=93,
        every_ms=120,
    ),
)
