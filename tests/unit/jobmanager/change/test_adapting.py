"""A job with the adaptive scheduler runs with the slots that there are, and its output stays exact."""

import pytest
from tests.unit.jobmanager.change.test_rescale import assert_published_once, widths
from tests.unit.jobmanager.conftest import with_region
from tests.unit.jobmanager.strikes import kill_one

from penstock.config.settings import AdaptiveSchedulerSettings, RestartStrategy
from penstock.graph.rescale import RescaleTo
from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.commands import ReadLog
from penstock.jobmanager.messages.placement import Slot

STABLE, PAUSE, WAIT = 10_000, 30_000, 300_000


@pytest.fixture
def adaptive(world_of, graph_of):
    """Make the world of an adaptive job, with that many slots on TaskManagers of two."""

    def make(slots, parallelism=6, restart=None, run_id="r", **settings):
        graph = graph_of(
            parallelism=parallelism,
            adaptive_scheduler=AdaptiveSchedulerSettings(enabled=True, **settings),
            restart=restart or RestartStrategy(jitter=0.0),
        )
        world = world_of(graph, run_id=run_id)
        world.free = slots_of(slots)
        return world

    return make


def slots_of(count, first=0):
    return [Slot(f"tm{i // 2}", i % 2) for i in range(first, first + count)]


def lose(world, *taskmanagers):
    """Lose TaskManagers with their slots and workers."""
    workers = world.master.deployment.workers.values() if world.master.deployment is not None else ()
    for worker in [w for w in workers if w.slot.taskmanager_id in taskmanagers]:
        world._gone(worker.worker_id)
    world.free = [slot for slot in world.free if slot.taskmanager_id not in taskmanagers]
    for name in taskmanagers:
        world.queue.append(ev.TaskManagerLost(name, "silent"))
    return gain(world)


def gain(world, *slots):
    """Offer more slots, and tell the job."""
    world.free += slots
    world.told_free = len(world.free)
    return world.post(ev.SlotsAvailable(world.told_free))


def parallelism(world):
    return widths(world)[0]


def test_it_starts_at_once_with_all_slots(adaptive):
    world = adaptive(8).start()
    assert (parallelism(world), world.recorded, len(world.free)) == ({6}, None, 2)


def test_it_starts_with_fewer_slots_after_they_were_stable(adaptive):
    world = adaptive(4).start().pass_time(STABLE - 1)
    assert (world.master.step, world.master.status.state, parallelism(world)) == (
        Step.WAITING,
        JobStatus.CREATED,
        set(),
    )
    assert world.master.job_change.adapting.waiting_text(world.master.graph) == "6 slots, or 1 at least; 4 are free"
    world.pass_time(1)
    assert (parallelism(world), world.master.restarts, world.master.status.state) == ({4}, 0, JobStatus.RUNNING)
    assert widths(world)[1] == {"r"}, "a run without checkpoints goes on"
    assert world.recorded.graph == world.master.graph
    assert_published_once(world.pass_time(3000))


def test_slots_that_come_meanwhile_are_used(adaptive):
    world = adaptive(2).start().pass_time(STABLE // 2)
    gain(world, *slots_of(2, 2)).pass_time(STABLE - 1)
    assert parallelism(world) == set()
    gain(world, *slots_of(2, 4))
    assert parallelism(world) == {6}


def test_it_starts_from_the_savepoint_also_with_fewer_slots(adaptive):
    before = adaptive(6).start().pass_time(1500)
    world = adaptive(2, run_id="r2")
    world.source = before.manifests()[-1]
    world.start().pass_time(STABLE)
    assert parallelism(world) == {2}
    restored = {t.restored_checkpoint for w in world.workers.values() for t in w.tasks}
    assert restored == {world.source.checkpoint_id}


def test_below_its_minimum_it_waits_and_then_its_restart_strategy_decides(adaptive):
    world = adaptive(2, min_parallelism=3, restart=RestartStrategy(kind="none")).start().pass_time(WAIT - 1)
    assert world.master.step is Step.WAITING
    world.pass_time(1)
    assert world.terminal.state == "FAILED"
    assert world.terminal.error == "no slots: 6 are needed, 2 are free"


def test_a_lost_taskmanager_without_replacement_shrinks_the_job(adaptive):
    world = adaptive(6).start().pass_time(2500)
    lose(world, "tm2")
    world.pass_time(STABLE)
    assert (parallelism(world), world.master.restarts) == ({4}, 1)
    assert widths(world)[1] != {"r"}, "a new run"
    assert {t.restored_checkpoint for w in world.workers.values() for t in w.tasks} == {2}
    assert [v.declared for v in world.master.graph.vertices] == [6, 6]
    assert_published_once(world.pass_time(3000))


def test_a_replacement_in_time_keeps_the_run_and_its_parallelism(adaptive):
    world = adaptive(6).start().pass_time(2500)
    lose(world, "tm2")
    world.pass_time(STABLE // 2)
    gain(world, *slots_of(2, 6))
    assert widths(world)[:2] == ({6}, {"r"})


def test_new_slots_widen_a_running_job_after_the_cooldown(adaptive):
    world = adaptive(2).start().pass_time(STABLE)
    assert parallelism(world) == {2}
    gain(world, *slots_of(6, 2)).pass_time(PAUSE - 2000)
    assert parallelism(world) == {2}
    world.pass_time(3000)
    assert (parallelism(world), world.master.restarts, len(world.free)) == ({6}, 0, 2)
    assert [v.declared for v in world.master.graph.vertices] == [0, 0]
    assert_published_once(world.pass_time(3000))


def test_down_and_up_without_a_command(adaptive):
    world = adaptive(4).start().pass_time(STABLE)
    assert parallelism(world) == {4}
    lose(world.pass_time(5000), "tm0")
    assert parallelism(world.pass_time(STABLE)) == {2}
    gain(world, *slots_of(4, 4))
    assert parallelism(world.pass_time(PAUSE + STABLE)) == {6}
    assert_published_once(world.pass_time(3000))


def test_a_slot_of_the_previous_run_that_is_not_free_yet_counts_as_there(adaptive):
    """FLINK-40379: the worker of one slot takes long to exit; the job does not start without it meanwhile."""
    world = adaptive(2).start().pass_time(STABLE)
    slow = next(iter(world.workers))
    world.immortal = {slow}
    gain(world, *slots_of(4, 2)).pass_time(PAUSE + 1000)
    assert (world.master.step, parallelism(world)) == (Step.CHANGING, set())
    world.pass_time(2000)
    world.immortal.clear()
    world.post(ev.WorkerLost(slow, "stopped"))
    assert parallelism(world) == {6}


def test_a_slot_that_is_given_up_at_every_rescale_does_not_restart_the_job_in_a_loop(adaptive):
    """FLINK-40379: each stop loses a slot, which comes back afterwards."""
    world = adaptive(2, parallelism=3).start().pass_time(STABLE)
    rescales, known = 0, world.master.identity.run_id
    for number in range(1, 50):
        if world.master.step is Step.RUNNING and not world.free:
            gain(world, Slot(f"tm{number}", 0))
        world.immortal = set(list(world.workers)[:1])
        world.pass_time(10_000)
        rescales, known = rescales + (world.master.identity.run_id != known), world.master.identity.run_id
    assert rescales == 3, "in 500 s, in which the cooldown alone allows twice as many"


def test_a_failed_worker_is_no_reason_for_another_parallelism(adaptive):
    world = adaptive(8, parallelism=4).start().pass_time(2500)
    kill_one(world)
    world.pass_time(1000)
    assert (widths(world)[:2], world.master.restarts) == (({4}, {"r"}), 1)


def test_a_user_rescales_up_to_what_there_is_and_the_rest_follows(adaptive):
    world = adaptive(2, parallelism=2).start().pass_time(1500)
    graph = RescaleTo(parallelism=5).applied(world.master.graph, 2)
    assert {v.parallelism for v in graph.vertices} == {2}
    world.post(ev.RescaleRequested("t", "run-t", graph))
    assert world.operations["t"].error == ""
    gain(world, *slots_of(6, 2))
    assert parallelism(world.pass_time(PAUSE + 1000)) == {5}


def test_a_users_rescale_whose_slots_are_lost_at_its_start_fails_and_the_job_runs_with_the_rest(adaptive):
    world = adaptive(6, parallelism=2).start().pass_time(1500)
    graph = RescaleTo(parallelism=6).applied(world.master.graph, 6)
    world.immortal = {next(iter(world.workers))}
    world.post(ev.RescaleRequested("t", "run-t", graph))
    assert world.master.step is Step.CHANGING
    stuck = world.immortal.pop()
    lose(world, "tm2")
    world.post(ev.WorkerLost(stuck, "stopped")).pass_time(STABLE)
    assert parallelism(world) == {4}
    assert world.operations["t"].error == "there are fewer slots than it needs"


def test_it_declares_its_largest_number_of_slots_so_that_the_cluster_grows(adaptive, world_of, graph_of):
    world = adaptive(2, parallelism=4).start()
    assert (world.declared, parallelism(world)) == (4, set()), "also before its start"
    world.pass_time(STABLE)
    world.post(ev.RescaleRequested("t", "run-t", RescaleTo(parallelism=6).applied(world.master.graph, 2)))
    assert (world.declared, parallelism(world)) == (6, {2})
    assert world_of(graph_of()).start().declared == 0


def test_the_log_is_not_read_for_a_start_without_a_change(adaptive):
    world = adaptive(6)
    read = []
    handle = world.master.handle
    world.master.handle = lambda event, now_ms: [
        command for command in handle(event, now_ms) if read.append(isinstance(command, ReadLog)) is None
    ]
    world.start()
    assert sum(read) == 1


def test_the_loss_of_slots_restarts_all_regions(adaptive, world_of, graph_of):
    """A region alone would wait for as many slots as before."""
    settings = AdaptiveSchedulerSettings(enabled=True)
    graph = with_region(graph_of(parallelism=2, adaptive_scheduler=settings), "3" * 32, "4" * 32)
    world = world_of(graph)
    world.free = slots_of(4)
    world.start().pass_time(2500)
    assert len(world.workers) == 4
    lose(world, "tm1")
    world.pass_time(STABLE)
    assert (parallelism(world), len(world.workers)) == ({1}, 2)
