"""Histories with a known end, each of one fault at one place."""

from __future__ import annotations

import random

import pytest
from tests.sim.faults import Swarm
from tests.sim.scheduler import SimulationError
from tests.sim.workload import Phase, Plan
from tests.sim.world import World


def world(seed: int, **plan: object) -> World:
    drawn = Plan.drawn(random.Random(f"plan {seed}"))
    drawn.phases, drawn.input_ms, drawn.inline_bytes = [Phase(2)], 1500.0, 0
    drawn.settings["checkpoint_tolerated_failures"] = 100
    for name, value in plan.items():
        setattr(drawn, name, value)
    return World(seed, drawn, Swarm.quiet(random.Random(seed)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_without_faults_nothing_restarts(seed):
    result = world(seed).execute()
    assert result.counts["restart"] == 0
    assert result.counts["checkpoint-completed"] > 2


@pytest.mark.parametrize("folder", ["data/", "pending/"])
def test_a_missing_file_of_the_newest_checkpoint_ends_the_job_and_is_named(folder):
    """Neither an endless row of restarts, nor an older checkpoint in its place."""
    simulated = world(2)

    def sabotage() -> None:
        files = sorted(path for path in simulated.checks.newest if path.startswith(folder))
        if not files:
            simulated.scheduler.at(5, "sabotage", sabotage)
            return
        del simulated.store._objects[f"sim/{files[0]}"]
        if folder == "pending/":
            simulated.nemesis.now("jobmanager-killed")
        while simulated.nemesis.now("worker-killed"):
            pass

    simulated.scheduler.at(100, "sabotage", sabotage)
    with pytest.raises(SimulationError, match=rf"the job failed: .*SnapshotDamagedError: .*sim/{folder}.* is missing"):
        simulated.execute()
