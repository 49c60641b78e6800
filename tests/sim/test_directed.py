"""Histories with a known end, each of one fault at one place."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.sim.faults import HAND_OVER, Swarm
from tests.sim.mutants import OVERTAKING
from tests.sim.scheduler import SimulationError
from tests.sim.workload import Phase, Plan
from tests.sim.world import World

from penstock.jobmanager.change.job_change import Rescale
from penstock.operators.aggregates.combine import Combiner
from penstock.task.drive import subtask


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


@pytest.mark.parametrize("seed", [1, 2])
def test_the_next_leader_adopts_a_region_that_has_restarted(seed):
    simulated = world(seed)
    simulated.plan.split(3, random.Random(seed))

    def kill_leader_after_restart() -> None:
        if simulated.swarm.counts["region-restarted"]:
            simulated.nemesis.now("jobmanager-killed")
        else:
            simulated.scheduler.at(5, "kill the leader", kill_leader_after_restart)

    simulated.scheduler.at(200, "kill a worker", lambda: simulated.nemesis.now("worker-killed"))
    simulated.scheduler.at(200, "kill the leader", kill_leader_after_restart)
    counts = simulated.execute().counts
    assert (counts["restarted-region-adopted"], counts["workers-not-adopted"], counts["restart"]) == (1, 0, 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_leader_hands_over_and_all_workers_are_kept(seed):
    simulated = world(seed)
    simulated.scheduler.at(300, "hand over", lambda: simulated.nemesis.now(HAND_OVER))
    counts = simulated.execute().counts
    assert (counts["leader-elected"], counts["workers-adopted"], counts["restart"]) == (2, 1, 0)


def losing_a_question(seed: int) -> World:
    """A standby's question is lost right after a renewal, and the next renewal is slow; the path is soon repaired."""
    simulated = world(seed, probes=True)

    def strike() -> None:
        _lease, renewed_ms = simulated.leads[simulated.leader_owner]
        if simulated.clock.elapsed_ms - renewed_ms > 1:
            simulated.scheduler.at(0.5, "strike", strike)
            return
        simulated.break_path(*simulated.standbys, simulated.leader_owner, 15.0)
        simulated.swarm.points["upload-delayed"] = 1.0
        simulated.scheduler.at(100, "heal", simulated.swarm.points.clear)

    simulated.scheduler.at(60, "strike", strike)
    return simulated


def test_a_lost_question_and_a_slow_renewal_may_end_a_lead_early():
    """The leader runs and is reachable again, but nobody asks it before its renewal is late."""
    early = [losing_a_question(seed).execute().counts["replaced-before-its-lease-ended"] for seed in range(1, 10)]
    assert sum(early) > 1, "other standbys had slow reads of the lease, and wait longer"


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


@pytest.mark.parametrize("seed", [4, 5, 6, 7])
def test_rows_combined_before_the_shuffle_count_once_through_kills_stops_and_rescales(seed, monkeypatch):
    reduced = []
    combine = Combiner.combine

    def spy(combiner, batch):
        found = combine(combiner, batch)
        reduced.append(0 if found is None else batch.num_rows - found.num_rows)
        return found

    monkeypatch.setattr(Combiner, "combine", spy)
    chance = random.Random(f"plan {seed}")
    plan = Plan.drawn(chance)
    plan.phases = [Phase(2, "stop"), Phase(3, "stop", from_savepoint=True), Phase(2)]
    plan.rows = [[(user % 3, amount, time) for user, amount, time in rows] for rows in plan.rows]
    plan.input_ms, plan.inline_bytes = 1500.0, 0
    plan.settings |= {"combine_min_rows": 1, "combine_ratio": 1.0, "checkpoint_tolerated_failures": 100}
    swarm = Swarm(random.Random(seed), strikes_={"worker-killed": 1.0}, every_ms=300.0)
    result = World(seed, plan, swarm).execute()
    assert result.counts["worker-killed"] > 0
    assert result.counts["rescaled"] == 2
    assert sum(reduced) > 10
    assert min(reduced) >= 0


def rescaling(seed: int, swarm: Swarm, *steps: tuple[float, int]) -> World:
    """A job that is rescaled while it runs: at these times, to these parallelisms."""
    simulated = world(seed, phases=[Phase(2, "stop"), Phase(1, from_savepoint=True)])
    simulated.plan.input_ms = 2_500.0
    simulated = World(seed, simulated.plan, swarm)
    for at_ms, parallelism in steps:
        simulated.scheduler.at(at_ms, "rescale", lambda to=parallelism: simulated.rescale(to))
    return simulated


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_running_job_is_rescaled_up_and_down_and_up_again(seed):
    result = rescaling(seed, Swarm.quiet(random.Random(seed)), (120, 3), (420, 1), (700, 4)).execute()
    assert result.counts["rescaled-in-place"] >= 2
    assert result.counts["restart"] == 0


@pytest.mark.parametrize("strike", ["worker-killed", "jobmanager-killed", "taskmanager-killed", "leader-paused"])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_whoever_dies_while_a_running_job_is_rescaled(seed, strike):
    often = 400.0 if strike == "leader-paused" else 60.0  # TaskManagers connect again after each
    swarm = Swarm(random.Random(seed), strikes_={strike: 1.0}, every_ms=often)
    steps = [(at_ms, 1 + at_ms // 150 % 3) for at_ms in range(100, 1600, 150)]
    result = rescaling(seed, swarm, *steps).execute()
    assert result.counts["rescaled-in-place"] > 0
    assert result.counts[strike] > 0


def draining(seed: int, swarm: Swarm) -> World:
    """A running job leaves one TaskManager after the other."""
    simulated = World(seed, world(seed, input_ms=2_500.0).plan, swarm)
    for at_ms in range(100, 1600, 250):
        simulated.scheduler.at(at_ms, "drain", simulated.drain)
    return simulated


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_job_leaves_drained_taskmanagers_without_a_failure(seed):
    simulated = draining(seed, Swarm.quiet(random.Random(seed)))
    assert simulated.execute().counts["restart"] == 0
    assert simulated.drained >= 2


@pytest.mark.parametrize("strike", ["worker-killed", "jobmanager-killed", "taskmanager-killed", "session-lost"])
@pytest.mark.parametrize("seed", [1, 2])
def test_whoever_dies_while_a_taskmanager_is_drained(seed, strike):
    simulated = draining(seed, Swarm(random.Random(seed), strikes_={strike: 1.0}, every_ms=150.0))
    assert simulated.execute().counts[strike] > 0
    assert simulated.drained > 0


def test_a_job_that_keeps_the_slots_that_it_was_to_leave_is_seen(monkeypatch):
    """A planted fault: the slots of the drained TaskManager are not the ones that go back."""
    monkeypatch.setattr(Rescale, "slots", lambda self, job: (*job.held, *self.extra))
    simulated = draining(1, Swarm.quiet(random.Random(1)))
    simulated.execute()
    assert simulated.drained == 0


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 6])
def test_a_store_and_a_broker_that_fail_while_a_running_job_is_rescaled(seed):
    points = {"put-fails-before": 0.05, "put-fails-after": 0.05, "kill-before-manifest": 0.05, "publish-delayed": 0.1}
    swarm = Swarm(random.Random(seed), points=points, strikes_={"kafka-down": 1.0, "worker-zombie": 1.0})
    steps = [(at_ms, 1 + at_ms // 150 % 3) for at_ms in range(100, 1600, 150)]
    assert rescaling(seed, swarm, *steps).execute().counts["rescaled-in-place"] > 0


@pytest.mark.parametrize("seed", [1, 5, 6])
def test_overtaken_rows_are_restored_at_1_2_and_5_subtasks(seed, monkeypatch):
    restored, read = Counter(), subtask.restored_rows

    def noted(deployment, read_file):
        restored[deployment.parallelism] += len(deployment.in_flight)
        return read(deployment, read_file)

    monkeypatch.setattr(subtask, "restored_rows", noted)
    phases = [Phase(2, "cancel"), Phase(5, "cancel"), Phase(1, "cancel"), Phase(2)]
    simulated = world(seed, phases=phases, slots=3, input_ms=20.0, slow_ms=20.0)
    simulated.plan.settings |= {**OVERTAKING, "key_groups": 16}
    swarm = Swarm(random.Random(seed), strikes_={"worker-killed": 1.0}, every_ms=150.0)
    counts = World(seed, simulated.plan, swarm).execute().counts
    assert counts["worker-killed"] > 0
    assert min(restored[parallelism] for parallelism in (1, 2, 5)) > 0
