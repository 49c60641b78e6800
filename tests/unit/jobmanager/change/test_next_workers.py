"""Before a rescale of a job with much state, the next workers load it while the old ones run."""

import pytest
from tests.unit.jobmanager.change import test_upgrade as upgrade
from tests.unit.jobmanager.change.test_rescale import ask, assert_published_once, story, widths

from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.commands import KillWorker, LaunchWorker
from penstock.rpc import messages as msg


@pytest.fixture
def running(world_of, graph_of):
    """A running job that prepares each rescale."""
    return world_of(graph_of(prepare_state_bytes=0)).start().pass_time(1500)


def launched(world, event):
    """Post an event; return the workers that it starts, by whether another one runs in their slot."""
    execute, found = world._execute, []

    def recorded(command):
        if isinstance(command, LaunchWorker):
            found.append((command.worker_id, command.beside))
        execute(command)

    world._execute = recorded
    world.post(event)
    world._execute = execute
    return found


def pauses(world):
    """Return whether compactions were to pause, in the order of the messages."""
    return list(dict.fromkeys(m.paused for _, m in world.sent if isinstance(m, msg.PauseCompaction)))


def rounds(world):
    return sorted({command.round for _, command in world.prepared})


def test_the_next_workers_load_a_checkpoint_while_the_old_ones_run(running):
    running.deaf.add(msg.PrepareTasks)
    old = set(running.workers)
    started = launched(running, ask(running, 3))
    assert [beside for _, beside in started] == [True] * 3
    assert old <= set(running.workers)
    assert running.master.status.state is JobStatus.RUNNING
    asked = {w: m for w, m in running.sent if isinstance(m, msg.PrepareTasks)}
    assert asked.keys() == {name for name, _ in started}
    assert pauses(running) == [True]
    assert "t" not in running.operations


def test_they_run_after_a_further_checkpoint_and_no_other_worker_starts(running):
    started = launched(running, ask(running, 3))
    assert len(started) == 3
    assert running.operations["t"].error == ""
    assert widths(running) == ({3}, {"run-t"}, 6)
    assert set(running.workers) == {name for name, _ in started}
    base = {m.round: m for _, m in running.prepared}[1]
    assert rounds(running) == [1]
    (deployed,) = {t.restored_checkpoint for w in running.workers.values() for t in w.tasks}
    assert base.tasks
    assert deployed == len(running.manifests())
    running.pass_time(5000)
    assert_published_once(running)


def test_the_state_is_prepared_for_exactly_the_attempt_that_is_deployed(running):
    from penstock.graph.task_deployment import decode_deployment

    running.post(ask(running, 3))
    prepared = [decode_deployment(task) for _, command in running.prepared for task in command.tasks]
    deployed = [task for worker in running.workers.values() for task in worker.tasks]
    key = lambda task: (task.run_id, task.execution, task.hash_low, task.hash_high, task.operators)
    assert sorted(map(repr, map(key, prepared))) == sorted(map(repr, map(key, deployed)))


def test_a_long_round_is_followed_by_another_one(running):
    running.deaf.add(msg.PrepareTasks)
    running.post(ask(running, 3))
    running.pass_time(4000)
    running.deaf.clear()
    for name in [name for name, worker in running.workers.items() if not worker.tasks]:
        running.post(ev.WorkerReported(name, msg.TasksPrepared(job_id="a" * 32, round=1)))
    assert rounds(running) == [2]
    assert widths(running) == ({3}, {"run-t"}, 6)


@pytest.mark.parametrize("trouble", ["lost", "error", "late"])
def test_trouble_with_the_next_workers_does_not_end_the_rescale(running, trouble):
    running.deaf.add(msg.PrepareTasks)
    started = launched(running, ask(running, 3))
    running.deaf.clear()
    if trouble == "lost":
        running.kill(started[0][0])
    elif trouble == "error":
        running.post(ev.WorkerReported(started[0][0], msg.TasksPrepared(job_id="a" * 32, round=1, error="no disk")))
    else:
        running.pass_time(700_000)
    assert running.operations["t"].error == ""
    assert widths(running) == ({3}, {"run-t"}, 6)
    assert not {name for name, _ in started} & set(running.workers)
    assert any("state is read after the stop" in text for text in story(running))
    assert_published_once(running.pass_time(5000))


def test_the_running_workers_merge_segments_again_after_an_abandoned_preparation(running):
    running.deaf.add(msg.PrepareTasks)
    started = launched(running, ask(running, 3))
    running.auto_ack = False
    running.kill(started[0][0])
    assert pauses(running) == [True, False]


def test_a_job_that_fails_meanwhile_goes_on_as_before_without_the_next_workers(running):
    running.deaf.add(msg.PrepareTasks)
    started = launched(running, ask(running, 3))
    old = next(name for name, worker in running.workers.items() if worker.tasks)
    running.kill(old).pass_time(5000)
    assert running.operations["t"].error
    assert widths(running) == ({2}, {"r"}, 4)
    assert not {name for name, _ in started} & set(running.workers)
    assert len(running.free) == 6
    assert_published_once(running)


def test_a_cancelled_job_leaves_no_worker(running):
    running.deaf.add(msg.PrepareTasks)
    running.post(ask(running, 3)).post(ev.CancelRequested()).pass_time(20_000)
    assert running.terminal.state == "CANCELED"
    assert not running.workers
    assert len(running.free) + len(running.master._held.slots) >= 5


def test_a_rescale_that_cannot_be_recorded_keeps_no_next_worker(running):
    running.record_error = "the store is down"
    started = launched(running, ask(running, 3))
    running.record_error = ""
    running.pass_time(5000)
    assert "the store is down" in running.operations["t"].error
    assert widths(running) == ({2}, {"r"}, 4)
    assert not {name for name, _ in started[:3]} & set(running.workers)


def test_a_next_worker_lost_before_the_deployment_is_replaced(running):
    running.immortal.update(running.workers)  # the new run waits for their end
    started = launched(running, ask(running, 3))
    running.kill(started[1][0])
    for name in list(running.immortal):
        running.kill(name)
    running.pass_time(1000)
    assert widths(running) == ({3}, {"run-t"}, 6)
    assert started[0][0] in running.workers
    assert started[1][0] not in running.workers


def stopped(world, number):
    """Rescale; the old workers stop but do not exit. Return their names."""
    old = [name for name, worker in world.workers.items() if worker.tasks]
    world.immortal.update(old)
    world.post(ask(world, number))
    assert not any(worker.tasks for worker in world.workers.values())
    for name in old:
        world.post(ev.WorkerStopped(name))
    return old


@pytest.mark.parametrize("number", [3, 1])
def test_the_next_workers_run_when_the_old_ones_have_stopped_and_not_exited(running, number):
    old = stopped(running, number)
    assert widths(running) == ({number}, {"run-t"}, 2 * number)
    running.pass_time(20_000)
    for name in old:
        running.kill(name)
    running.pass_time(1000)
    assert widths(running) == ({number}, {"run-t"}, 2 * number)
    assert running.master.restarts == 0
    assert not running.master.failures
    assert len(running.master._held.slots) == number
    assert_published_once(running)


def test_a_restart_waits_until_the_old_workers_have_exited(running):
    old = stopped(running, 3)
    running.kill(next(iter(running.workers))).pass_time(5000)
    assert not running.workers
    for name in old:
        running.kill(name)
    assert widths(running.pass_time(5000)) == ({3}, {"run-t"}, 6)
    assert_published_once(running)


def test_a_next_worker_that_is_lost_after_the_stop_is_replaced_after_the_exit(running):
    old = [name for name, worker in running.workers.items() if worker.tasks]
    running.immortal.update(old)
    started = launched(running, ask(running, 3))
    running.post(ev.WorkerStopped(old[0])).kill(started[0][0]).post(ev.WorkerStopped(old[1]))
    assert not any(worker.tasks for worker in running.workers.values())
    for name in old:
        running.kill(name)
    assert widths(running.pass_time(1000)) == ({3}, {"run-t"}, 6)


def test_a_new_leader_adopts_the_old_workers_and_kills_the_next_ones(world_of, running, store):
    running.deaf.add(msg.PrepareTasks)
    started = launched(running, ask(running, 3))
    names = {name for name, _ in started}
    running.lost = True
    following = world_of(running.graph, generation=2)
    killed = []
    execute = following._execute
    following._execute = lambda command: (
        killed.append(command.worker_id) if isinstance(command, KillWorker) else None,
        execute(command),
    )
    following.take_over(running)
    following.slots |= {w.worker_id: w.slot for w in running.master.job_change.preparation._next.workers.values()}
    following.register()
    assert set(killed) == names
    assert following.master.status.state is JobStatus.RUNNING
    assert widths(following) == ({2}, {"r"}, 4)


def test_the_checkpoint_that_is_being_loaded_is_kept(running):
    running.deaf.add(msg.PrepareTasks)
    running.post(ask(running, 3))
    base = running.manifests()[-1].sequence
    running.pass_time(20_000)
    kept = [manifest.sequence for manifest in running.manifests() if manifest.subtasks]
    assert base in kept
    running.post(ev.CancelRequested()).pass_time(20_000)
    assert running.master.checkpointing.loaded_sequence is None


def test_state_that_is_read_on_demand_is_not_loaded_before(world_of, graph_of):
    world = world_of(graph_of(prepare_state_bytes=0, state_backend="remote")).start().pass_time(1500)
    assert [beside for _, beside in launched(world, ask(world, 3))] == [False] * 3
    assert not world.prepared


# --- upgrades ---------------------------------------------------------------------------------------------------------


def test_the_workers_of_a_new_version_run_when_the_old_ones_have_stopped(running):
    old = set(running.workers)
    running.immortal.update(old)
    running.post(upgrade.ask(running.master.graph))
    for name in old:
        running.post(ev.WorkerStopped(name))
    assert upgrade.running(running)[0] == {"new-t"}
    for name in old:
        running.kill(name)
    assert upgrade.running(running.pass_time(5000))[0] == {"new-t"}
    upgrade.assert_exact(running)


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_the_workers_of_a_new_version_load_its_state_before_the_stop(running, from_checkpoint):
    running.deaf.add(msg.PrepareTasks)
    versions = []
    execute = running._execute

    def recorded(command):
        if isinstance(command, LaunchWorker):
            versions.append(command.version)
        execute(command)

    running._execute = recorded
    running.post(upgrade.ask(running.master.graph, from_checkpoint=from_checkpoint))
    assert [version.fingerprint for version in versions] == ["new", "new"]
    assert upgrade.running(running)[0] == {"r"}
    assert not any(isinstance(m, msg.TriggerCheckpoint) and m.kind == "stop" for _, m in running.sent)
    names = [name for name, worker in running.workers.items() if not worker.tasks]
    running.deaf.clear()
    for name in names:
        running.post(ev.WorkerReported(name, msg.TasksPrepared(job_id="a" * 32, round=1)))
    assert upgrade.running(running)[0] == {"new-t"}
    assert set(running.workers) == set(names)
    running.pass_time(5000)
    assert running.operations["t"].error == ""
    upgrade.assert_exact(running)


def test_a_job_that_fails_while_a_new_version_is_prepared_is_upgraded_later(running):
    running.deaf.add(msg.PrepareTasks)
    running.post(upgrade.ask(running.master.graph))
    old = next(name for name, worker in running.workers.items() if worker.tasks)
    running.deaf.clear()
    running.kill(old).pass_time(8000)
    assert running.operations["t"].error == ""
    assert upgrade.running(running)[0] == {"new-t"}
    upgrade.assert_exact(running)


def test_a_version_that_is_rolled_back_leaves_no_worker(running):
    running.post(upgrade.ask(running.master.graph))
    assert upgrade.running(running)[0] == {"new-t"}
    running.post(ev.UpgradeJudged(healthy=False)).pass_time(3000)
    assert upgrade.running(running)[0] == {"back-t"}
    assert len(running.workers) == 2
    upgrade.assert_exact(running)


def test_a_version_whose_workers_cannot_start_waits_for_the_stop(running):
    running.prepare_error = "the new code cannot be imported"
    running.post(upgrade.ask(running.master.graph)).pass_time(3000)
    assert upgrade.running(running)[0] == {"new-t"}
    assert any("state is read after the stop: the new code" in e.text for e in running.master.event_log.entries())
    upgrade.assert_exact(running)
