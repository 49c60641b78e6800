"""A running job is upgraded while everything fails: exact output, and of a version taken back not one row."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from tests.sim.faults import Swarm
from tests.sim.scheduler import SimulationError
from tests.sim.test_directed import world
from tests.sim.upgrades import upgrade
from tests.sim.workload import Phase
from tests.sim.world import World

from penstock.checkpoint import recovery
from penstock.jobmanager.checkpoints.checkpointing import WithheldOutput
from penstock.jobmanager.deploy import job_log as recover


def upgraded(seed: int, swarm: Swarm, *, wrong: bool, from_checkpoint: bool, at: tuple[float, ...] = (150,)) -> World:
    plan = world(seed, phases=[Phase(2, "stop"), Phase(2, from_savepoint=True)]).plan
    plan.settings["checkpoint_interval_ms"], plan.input_ms = 40, 3_000.0
    plan.settings["sink_pending_max_epochs"] = 3 if seed % 2 else 1000
    plan.settings["prepare_state_bytes"] = 1 << 40 if wrong else 0
    simulated = World(seed, plan, swarm)
    for at_ms in at:
        simulated.scheduler.at(
            at_ms, "upgrade", lambda: upgrade(simulated, wrong=wrong, from_checkpoint=from_checkpoint)
        )
    return simulated


@pytest.mark.parametrize("from_checkpoint", [False, True])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_without_faults_a_right_version_stays_and_a_wrong_one_is_never_seen(seed, from_checkpoint):
    quiet = Swarm.quiet(random.Random(seed))
    result = upgraded(seed, quiet, wrong=False, from_checkpoint=from_checkpoint).execute()
    assert (result.counts["upgrade-completed"], result.counts["restart"]) == (1, 0)
    quiet = Swarm.quiet(random.Random(seed))
    result = upgraded(seed, quiet, wrong=True, from_checkpoint=from_checkpoint, at=(120, 700)).execute()
    assert result.counts["upgrade-rolled-back"] >= 1
    assert result.counts["upgrade-completed"] == 0


@pytest.mark.parametrize("strike", ["worker-killed", "jobmanager-killed", "taskmanager-killed", "leader-paused"])
@pytest.mark.parametrize(
    ("seed", "wrong"),
    [
        (1, False),
        (2, True),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in [(1, True), (2, False), (3, False), (3, True)]),
    ],
)
def test_whoever_dies_meanwhile(seed, strike, wrong):
    # a paused leader does nothing for up to 1.5 s
    swarm = Swarm(random.Random(seed), strikes_={strike: 1.0}, every_ms=400.0 if strike == "leader-paused" else 60.0)
    simulated = upgraded(seed, swarm, wrong=wrong, from_checkpoint=bool(seed % 2), at=(100, 500, 900))
    counts = simulated.execute().counts
    assert counts["upgrade-trial"] > 0
    assert counts[strike] > 0


@pytest.mark.parametrize(
    ("seed", "wrong"),
    [
        (1, True),
        (2, False),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in [(1, False), (2, True), *itertools.product((3, 4), (False, True))]
        ),
    ],
)
def test_a_store_and_a_broker_that_fail_meanwhile(seed, wrong):
    points = {"put-fails-before": 0.05, "put-fails-after": 0.05, "kill-before-manifest": 0.05, "publish-delayed": 0.1}
    points |= {"kill-after-manifest": 0.05, "kill-before-commit": 0.05}
    swarm = Swarm(random.Random(seed), points=points, strikes_={"kafka-down": 1.0, "worker-zombie": 1.0})
    simulated = upgraded(seed, swarm, wrong=wrong, from_checkpoint=bool(seed % 2), at=(100, 500, 900))
    assert simulated.execute().counts["upgrade-cut"] > 0


def _published_at_a_fail_over(patch: pytest.MonkeyPatch) -> None:
    plan = recover.plan_recovery

    def mistaken(*arguments, **options):
        found = plan(*arguments, **options)
        return replace(found, pending=(*found.pending, *found.held), held=())

    patch.setattr(recover, "plan_recovery", mistaken)


def _never_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WithheldOutput, "sinks", property(lambda _self: ()))


def _forgotten_at_a_fail_over(patch: pytest.MonkeyPatch) -> None:
    plan = recover.plan_recovery
    patch.setattr(recover, "plan_recovery", lambda *a, **o: replace(plan(*a, **o), held=()))


def _a_trial_that_counts_for_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "runs_on_trial", lambda _live: frozenset())


@pytest.mark.parametrize(
    ("mistake", "wrong", "likely"),
    [
        (_published_at_a_fail_over, True, 5),
        (_never_held, True, 1),
        (_forgotten_at_a_fail_over, False, 1),
        (_a_trial_that_counts_for_all, True, 2),
    ],
)
def test_planted_mistakes_are_caught(mistake, wrong, likely, monkeypatch):
    """One of twelve seeds catches it; the one that did before is tried first."""
    mistake(monkeypatch)
    for seed in [likely, *(seed for seed in range(1, 13) if seed != likely)]:
        swarm = Swarm(random.Random(seed), strikes_={"worker-killed": 1.0}, every_ms=50.0)
        simulated = upgraded(seed, swarm, wrong=wrong, from_checkpoint=True, at=(100, 500, 900))
        try:
            simulated.execute()
        except SimulationError:
            print(f"caught by seed {seed}")
            return
    pytest.fail("twelve seeds passed with it")
