"""A failed region restarts from the newest checkpoint while the others go on; the decision record 3 has the rules."""

from __future__ import annotations

import pytest
from tests.unit.jobmanager.conftest import JOB, SINK, SOURCE, acknowledge, with_region

from penstock.config.settings import RestartStrategy
from penstock.graph.task_deployment import Attempts
from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc import messages as msg

SOURCE_2, SINK_2, SOURCE_3, SINK_3 = ("3" * 32, "4" * 32, "5" * 32, "6" * 32)
DELAY_MS = 100


@pytest.fixture
def regions_of(world_of, graph_of):
    """Return a maker of running jobs with that many regions, a worker for each."""

    def make(regions: int = 2, **settings):
        restart = settings.pop("restart", RestartStrategy(kind="fixed-delay", delay_ms=DELAY_MS, attempts=10))
        graph = graph_of(parallelism=1, restart=restart, **settings)
        graph = with_region(graph, SOURCE_2, SINK_2)
        graph = with_region(graph, SOURCE_3, SINK_3) if regions == 3 else graph
        return world_of(graph).start()

    return make


def worker_of(world, vertex_id: str) -> str:
    return world.master.deployment.executions[vertex_id, 0].worker_id


def attempts(world) -> dict[str, int]:
    """The present attempt of each vertex, counted from 0."""
    return {vertex: e.id.attempt & 0xFFFF for (vertex, _), e in world.master.deployment.executions.items()}


def told(world, worker_id: str, kind: type) -> list:
    return [message for receiver, message in world.sent if receiver == worker_id and isinstance(message, kind)]


def story(world, kind: str) -> list[str]:
    return [entry.text for entry in world.master.event_log.entries() if entry.kind == kind]


def test_a_refused_slot_of_a_region_is_replaced_while_the_others_continue(regions_of):
    world = regions_of().pass_time(1500)
    kept, killed = worker_of(world, SOURCE_2), worker_of(world, SOURCE)
    world.refused = {world.master.deployment.workers[killed].slot}
    world.kill(killed)
    world.pass_time(DELAY_MS)
    assert world.master.region_restart == ""
    assert worker_of(world, SOURCE_2) == kept
    assert world.master.deployment.workers[worker_of(world, SOURCE)].slot not in world.refused
    assert (world.master.restarts, world.master.status.state) == (1, JobStatus.RUNNING)


def test_only_the_failed_region_restarts_and_the_job_stays_running(regions_of):
    world = regions_of().pass_time(1500)
    kept, killed = worker_of(world, SOURCE_2), worker_of(world, SOURCE)
    world.sent.clear()
    world.kill(killed)
    assert world.master.status.state is JobStatus.RUNNING
    assert "region of orders restarts" in world.master.region_restart
    world.pass_time(DELAY_MS)
    assert world.master.region_restart == ""
    assert attempts(world) == {SOURCE: 1, SINK: 1, SOURCE_2: 0, SINK_2: 0}
    assert worker_of(world, SOURCE_2) == kept
    assert worker_of(world, SOURCE) != killed
    assert told(world, kept, msg.DeployTasks) == told(world, kept, msg.AssignSplits) == []
    assert world.master.status.entered_ms.keys() == {JobStatus.CREATED, JobStatus.RUNNING}
    assert world.master.restarts == 1
    assert world.attempts == Attempts((1 << 16) + 1, {SOURCE_2: 1 << 16, SINK_2: 1 << 16})
    assert story(world, "restart") == ["region of orders restarts in 100 ms; the other regions continue"]


def test_the_region_restores_the_newest_checkpoint_and_its_output_alone_is_resolved_before(regions_of):
    world = regions_of()
    world.deaf.add(msg.CheckpointCompleted)
    world.pass_time(1500).kill(worker_of(world, SOURCE))
    world.sent.clear()
    world.pass_time(DELAY_MS)
    names = [type(message).__name__ for _, message in world.sent]
    assert names.index("ResolvePending") < names.index("DeployTasks") < names.index("AssignSplits")
    (resolve,) = world.resolved
    assert resolve.prefixes == {"out": ("job.out.r.",)}
    assert {c.uid for c in resolve.committables} == {"out"}
    new = world.workers[worker_of(world, SOURCE)]
    assert {task.restored_checkpoint for task in new.tasks} == {1}
    assert {c.uid for c in world.master.checkpointing.pending.values()} == {"out-2"}, "its sink has not published it"


def test_the_checkpoint_under_way_is_aborted_and_the_next_one_has_the_present_executions(regions_of):
    world = regions_of().pass_time(1500)
    world.auto_ack = False
    world.pass_time(1000)
    world.kill(worker_of(world, SOURCE))
    kept = worker_of(world, SOURCE_2)
    assert [m.checkpoint_id for m in told(world, kept, msg.CheckpointAborted)] == [2]
    world.pass_time(DELAY_MS)
    acknowledge(world)
    assert [m.checkpoint_id for m in world.manifests()] == [1], "late acks of the aborted checkpoint"
    world.auto_ack = True
    world.pass_time(2000)
    assert [m.checkpoint_id for m in world.manifests()][:2] == [1, 3]
    assert {len(m.subtasks) for m in world.manifests()} == {4}


def test_all_checkpoints_under_way_are_aborted_and_output_that_waited_for_them_is_in_the_next_one(regions_of):
    """The first is being appended, the second waits for that with all its acks, the third has none."""
    world = regions_of(max_concurrent_checkpoints=3)
    held, append, world.auto_ack = [], world._append, False
    world._append = lambda *manifest: held.append(manifest)
    world.pass_time(3500)
    acknowledge(world, 1)
    acknowledge(world, 2)
    kept, lost = worker_of(world, SOURCE_2), worker_of(world, SOURCE)
    world.kill(lost)
    assert [m.checkpoint_id for m in told(world, kept, msg.CheckpointAborted)] == [2, 3]
    world._append = append
    append(*held.pop())
    world.post(ev.Tick()).pass_time(DELAY_MS)
    triggers = {m.checkpoint_id: m for m in told(world, kept, msg.TriggerCheckpoint)}
    for ack in (ack for number in (2, 3) for ack in world.workers[kept].acks(triggers[number])):
        world.post(ev.WorkerReported(kept, ack))
    assert [m.checkpoint_id for m in world.manifests()] == [1], "late acks of aborted checkpoints"
    assert {t.restored_checkpoint for t in world.workers[worker_of(world, SOURCE)].tasks} == {1}
    world.deaf.add(msg.CheckpointCompleted)
    world.auto_ack = True
    world.pass_time(1000)
    owed = {(c.uid, c.checkpoint_id) for c in world.manifests()[-1].pending}
    assert [m.checkpoint_id for m in world.manifests()] == [1, 4]
    assert owed == {("out", 4), ("out-2", 2), ("out-2", 3), ("out-2", 4)}, "the region repeats its own"


def test_no_checkpoint_is_triggered_while_a_region_restarts(regions_of):
    world = regions_of(restart=RestartStrategy(kind="fixed-delay", delay_ms=20_000, attempts=9)).pass_time(1500)
    world.kill(worker_of(world, SOURCE)).pass_time(10_000)
    assert [m.checkpoint_id for m in world.manifests()] == [1]
    world.pass_time(12_000)
    assert len(world.manifests()) > 1


def test_an_ack_of_a_killed_execution_counts_for_nothing(regions_of):
    world = regions_of().pass_time(1500)
    world.auto_ack = False
    old = worker_of(world, SOURCE)
    imitation = world.workers[old]
    world.kill(old).pass_time(DELAY_MS + 500)
    trigger = next(m for _, m in reversed(world.sent) if isinstance(m, msg.TriggerCheckpoint))
    for worker_id in (old, worker_of(world, SOURCE)):
        for ack in imitation.acks(trigger):
            world.post(ev.WorkerReported(worker_id, ack))
    assert world.master.checkpointing.history.view((0, 0, 0)).history[0].acknowledged == 0


def test_output_of_an_append_that_was_under_way_is_complete_for_all_regions(regions_of):
    world = regions_of()
    held, append = [], world._append
    world._append = lambda *manifest: held.append(manifest)
    world.pass_time(1500).kill(worker_of(world, SOURCE))
    world._append = append
    append(*held[0])
    world.post(ev.Tick()).pass_time(DELAY_MS)
    assert {t.restored_checkpoint for t in world.workers[worker_of(world, SOURCE)].tasks} == {1}
    assert attempts(world)[SOURCE_2] == 0
    assert set(world.output.values()) == {1}
    assert {name.partition("/")[0] for name in world.output} == {"out", "out-2"}


def test_an_append_that_was_reported_as_failed_and_is_in_the_log_restarts_all(regions_of):
    world = regions_of(checkpoint_tolerated_failures=9)
    world._append = lambda tag, manifest: (
        world.log.append(manifest),
        world.queue.append(ev.ManifestFailed(tag, "timed out")),
    )
    world.pass_time(1100)
    del world._append
    world.kill(worker_of(world, SOURCE)).pass_time(DELAY_MS)
    assert world.master.status.state is JobStatus.RESTARTING
    world.pass_time(DELAY_MS)
    assert world.master.status.state is JobStatus.RUNNING
    assert {t.restored_checkpoint for worker in world.workers.values() for t in worker.tasks} == {1}


def test_without_a_checkpoint_the_region_begins_again(regions_of):
    world = regions_of()
    world.assigned.clear()
    world.kill(worker_of(world, SOURCE)).pass_time(DELAY_MS)
    assert world.master.region_restart == ""
    assert [ids for _, ids, _ in world.assigned] == [("t-0", "t-1", "t-2")]
    assert {t.restored_checkpoint for t in world.workers[worker_of(world, SOURCE)].tasks} == {None}


def test_a_job_of_one_region_restarts_as_a_whole(world_of):
    world = world_of().start().pass_time(1500)
    world.kill(next(iter(world.workers)))
    assert world.master.status.state is JobStatus.RESTARTING
    assert world.master.region_restart == ""


@pytest.mark.parametrize("vertex", [SOURCE, SOURCE_2])
def test_a_second_failure_while_a_region_starts_restarts_both(regions_of, vertex):
    """The same region fails again, or another one too: a third goes on."""
    world = regions_of(3).pass_time(1500)
    world.deaf.add(msg.DeployTasks)
    world.kill(worker_of(world, SOURCE)).pass_time(DELAY_MS)
    assert "subtasks to run" in world.master.region_restart
    world.kill(worker_of(world, vertex))
    world.deaf.clear()
    world.pass_time(DELAY_MS)
    assert world.master.region_restart == ""
    assert attempts(world) == {
        SOURCE: 2,
        SINK: 2,
        SOURCE_2: 2 if vertex == SOURCE_2 else 0,
        SINK_2: 2 if vertex == SOURCE_2 else 0,
        SOURCE_3: 0,
        SINK_3: 0,
    }
    assert world.master.restarts == 2
    assert len(world.workers) == 3
    assert len(set(world.master.deployment.workers)) == 3


def test_failures_before_the_restart_begins_count_once(regions_of):
    """As those of the workers of a lost TaskManager."""
    world = regions_of(3, restart=RestartStrategy(kind="fixed-delay", delay_ms=DELAY_MS, attempts=1)).pass_time(1500)
    world.kill(worker_of(world, SOURCE)).kill(worker_of(world, SOURCE_2))
    assert world.master.status.state is JobStatus.RUNNING
    world.pass_time(DELAY_MS)
    assert world.master.region_restart == ""
    assert {attempts(world)[vertex] for vertex in (SOURCE, SOURCE_2)} == {2}
    assert attempts(world)[SOURCE_3] == 0


def test_when_all_regions_have_failed_the_job_restarts(regions_of):
    world = regions_of().pass_time(1500)
    world.kill(worker_of(world, SOURCE)).kill(worker_of(world, SOURCE_2))
    assert world.master.status.state is JobStatus.RESTARTING
    world.pass_time(3 * DELAY_MS)
    assert world.master.status.state is JobStatus.RUNNING
    assert len(world.workers) == 2


def test_the_restart_policy_counts_and_a_permanent_cause_ends_the_job(regions_of):
    world = regions_of(restart=RestartStrategy(kind="fixed-delay", delay_ms=DELAY_MS, attempts=2)).pass_time(1500)
    for _ in range(2):
        world.kill(worker_of(world, SOURCE)).pass_time(DELAY_MS)
        assert world.master.status.state is JobStatus.RUNNING
    world.kill(worker_of(world, SOURCE)).pass_time(DELAY_MS)
    assert world.terminal.state == "FAILED"


def test_an_error_that_repeats_itself_ends_the_job(regions_of):
    world = regions_of().pass_time(1500)
    worker = world.workers[worker_of(world, SOURCE)]
    state = worker._state(worker.tasks[0], "FAILED")
    report = msg.TaskState(
        job_id=JOB, vertex_id=SOURCE, subtask=0, attempt=state.attempt, state="FAILED", error="StateTooLargeError: x"
    )
    world.post(ev.WorkerReported(worker.worker_id, report)).pass_time(DELAY_MS)
    assert world.terminal.state == "FAILED"


def test_a_lost_taskmanager_gives_the_region_another_slot(regions_of):
    world = regions_of().pass_time(1500)
    lost = worker_of(world, SOURCE)
    slot = world.master.deployment.workers[lost].slot
    world.master.deployment.workers[lost].slot = Slot("tm2", 0)
    world.master._held.slots = [Slot("tm2", 0) if held == slot else held for held in world.master._held.slots]
    world.workers.pop(lost)
    world.post(ev.TaskManagerLost("tm2", "silent")).pass_time(DELAY_MS)
    assert world.master.region_restart == ""
    assert world.master.deployment.workers[worker_of(world, SOURCE)].slot.taskmanager_id == "tm"
    assert len(world.master._held.slots) == 2


def test_a_region_without_slots_waits_and_the_others_go_on(regions_of):
    world = regions_of().pass_time(1500)
    world.free.clear()
    lost = worker_of(world, SOURCE)
    world.master.deployment.workers[lost].slot = Slot("tm2", 0)
    world.master._held.slots = [s for s in world.master._held.slots if s.index != 0] + [Slot("tm2", 0)]
    world.workers.pop(lost)
    world.post(ev.TaskManagerLost("tm2", "silent")).pass_time(DELAY_MS)
    assert "workers: 0 of 1 are ready" in world.master.region_restart
    world.post(ev.SlotsRefused("1 is needed, 0 are free"))
    assert world.master.status.state is JobStatus.RUNNING
    assert "region of orders" in world.master.failures[0].error
    world.free.append(Slot("tm", 7))
    world.pass_time(2 * DELAY_MS)
    assert world.master.region_restart == ""
    assert attempts(world)[SOURCE_2] == 0


def test_requests_wait_for_the_region(regions_of):
    """Also a savepoint that was under way."""
    world = regions_of().pass_time(1500)
    world.auto_ack = False
    world.post(ev.SavepointRequested("s1", "memory://sp1"))
    world.kill(worker_of(world, SOURCE))
    world.post(ev.SavepointRequested("s2", "memory://sp2")).post(ev.CheckpointRequested("c"))
    assert world.operations == {}
    world.auto_ack = True
    world.pass_time(DELAY_MS + 1500)
    assert {name: found.error for name, found in world.operations.items()} == {"s1": "", "s2": "", "c": ""}
    assert world.savepoints == ["memory://sp1", "memory://sp2"]


def test_a_checkpoint_that_waits_for_the_region_is_unaligned_as_requested(regions_of):
    hour = 3_600_000
    world = regions_of(
        unaligned_checkpoints=True, aligned_checkpoint_timeout_ms=hour, checkpoint_interval_ms=hour
    ).pass_time(1500)
    world.kill(worker_of(world, SOURCE)).post(ev.CheckpointRequested("c", unaligned=True))
    world.pass_time(DELAY_MS + 1500)
    triggered = [message.overtakes for _, message in world.sent if isinstance(message, msg.TriggerCheckpoint)]
    assert world.operations["c"].error == ""
    assert triggered
    assert all(triggered)


def test_a_request_that_has_waited_too_long_is_told_for_what(regions_of):
    restart = RestartStrategy(kind="fixed-delay", delay_ms=60_000, attempts=9)
    world = regions_of(restart=restart).pass_time(1500)
    world.kill(worker_of(world, SOURCE)).post(ev.CheckpointRequested("c")).pass_time(31_000)
    assert "region of orders restarts: waiting for" in world.operations["c"].error


def test_a_savepoint_that_a_killed_worker_was_copying_fails(regions_of):
    world = regions_of().pass_time(1500)
    world.deaf.add(msg.WriteSavepoint)
    world.post(ev.SavepointRequested("s", "memory://sp")).pass_time(10)
    copiers = [worker for worker, message in world.sent if isinstance(message, msg.WriteSavepoint)]
    assert copiers == [worker_of(world, SOURCE), worker_of(world, SOURCE_2)]
    world.kill(copiers[1])
    assert copiers[1] in world.operations["s"].error


def test_a_failure_during_a_stop_restarts_all(regions_of):
    """The barrier of a stop has ended the sources of every region."""
    world = regions_of().pass_time(1500)
    world.auto_ack = False
    world.post(ev.StopRequested("s", "memory://sp", drain=False)).kill(worker_of(world, SOURCE))
    assert world.master.status.state is JobStatus.RESTARTING
    assert world.operations["s"].error


def test_a_job_is_cancelled_while_a_region_restarts(regions_of):
    world = regions_of().pass_time(1500)
    world.deaf.add(msg.DeployTasks)
    world.kill(worker_of(world, SOURCE)).pass_time(DELAY_MS)
    world.post(ev.CancelRequested())
    assert world.terminal.state == "CANCELED"
    assert world.workers == {}


@pytest.fixture
def restarted_once(regions_of):
    """Return a running job whose first region has restarted, and its worker of the earlier attempt."""
    first = regions_of().pass_time(1500)
    zombie = worker_of(first, SOURCE)
    earlier = first.workers[zombie]
    first.kill(zombie).pass_time(DELAY_MS)
    return first, earlier


def test_a_new_leader_adopts_a_job_whose_region_has_restarted(world_of, restarted_once):
    first, _ = restarted_once
    second = world_of(first.graph, generation=2).take_over(first).register()
    assert second.master.status.state is JobStatus.RUNNING
    assert second.resolved == []
    assert attempts(second) == {SOURCE: 1, SINK: 1, SOURCE_2: 0, SINK_2: 0}
    assert {e.id.attempt >> 16 for e in second.master.deployment.executions.values()} == {1}
    newest = second.pass_time(1500).manifests()[-1]
    assert newest.generation == 2, "all acknowledge its checkpoints, each with its attempt"
    assert len(newest.subtasks) == 4
    assert set(second.output.values()) == {1}


def test_after_the_adoption_a_region_restarts_again_and_the_next_leader_adopts_it_too(world_of, restarted_once):
    first, _ = restarted_once
    second = world_of(first.graph, generation=2).take_over(first).register().pass_time(1500)
    second.kill(worker_of(second, SOURCE_2)).pass_time(DELAY_MS)
    assert second.attempts == Attempts((2 << 16) + 1, dict.fromkeys((SOURCE, SINK), (1 << 16) + 1))
    third = world_of(first.graph, generation=3).take_over(second).register().pass_time(1500)
    assert attempts(third) == attempts(second)
    assert third.manifests()[-1].generation == 3
    assert set(third.output.values()) == {1}


@pytest.mark.parametrize("also_the_newest", [False, True])
def test_an_earlier_attempt_of_a_region_is_never_adopted(world_of, restarted_once, also_the_newest):
    """Its worker was cut off when the region restarted, and registers with the next leader."""
    first, zombie = restarted_once
    second = world_of(first.graph, generation=2).take_over(first)
    if not also_the_newest:
        second.workers.pop(worker_of(first, SOURCE))
    zombie.world = second
    second.workers[zombie.worker_id], second.slots[zombie.worker_id] = zombie, Slot("tm", 7)
    second.free.remove(Slot("tm", 7))
    second.register().pass_time(3000)
    assert second.master.status.state is JobStatus.RUNNING
    assert {e.id.attempt for e in second.master.deployment.executions.values()} == {2 << 16}
    assert zombie.worker_id not in second.workers


def test_a_leader_that_dies_before_its_region_is_deployed_leaves_no_job_to_adopt(world_of, regions_of):
    first = regions_of().pass_time(1500)
    first.deaf.add(msg.DeployTasks)
    before, zombie = dict(first.workers), worker_of(first, SOURCE)
    first.kill(zombie).pass_time(DELAY_MS)
    assert first.attempts.of(SOURCE) == (1 << 16) + 1, "recorded before any task is sent"
    first.workers = before
    second = world_of(first.graph, generation=2).take_over(first)
    second.slots[zombie] = second.free.pop()
    second.register().pass_time(3000)
    assert {e.id.attempt for e in second.master.deployment.executions.values()} == {2 << 16}


def test_new_splits_of_the_regions_that_go_on_wait_for_the_restart(regions_of):
    world = regions_of().pass_time(1500)
    world.deaf.add(msg.DeployTasks)
    world.kill(worker_of(world, SOURCE)).pass_time(DELAY_MS)
    world.assigned.clear()
    epoch = world.master.deployment.ids.epoch
    world.post(ev.SplitsDiscovered("src-2", epoch, ({"id": "t-9"},)))
    world.post(ev.SplitsDiscovered("src", epoch, ({"id": "t-8"},)))
    assert world.assigned == []
    world.deaf.clear()
    world.kill(next(w for w in world.workers if w != worker_of(world, SOURCE_2))).pass_time(DELAY_MS)
    assert [ids for _, ids, _ in world.assigned if "t-9" in ids] == [("t-9",)]
    assert not any("t-8" in ids for _, ids, _ in world.assigned), "an answer to the enumerator before"


def test_a_bounded_job_whose_region_restarts_after_the_end_of_its_input_ends_once_that_has_come_again(regions_of):
    world = regions_of(bounded=True, checkpoint_interval_ms=None)
    world.auto_ack = False
    kept = world.workers[worker_of(world, SOURCE_2)]
    for report in kept.input_ended():
        world.post(ev.WorkerReported(kept.worker_id, report))
    for report in world.workers[worker_of(world, SOURCE)].input_ended()[:1]:
        world.post(ev.WorkerReported(worker_of(world, SOURCE), report))
    world.kill(worker_of(world, SOURCE)).pass_time(DELAY_MS)
    assert world.master.region_restart == ""
    world.auto_ack = True
    world.pass_time(5_000)
    assert world.terminal is None
    new = world.workers[worker_of(world, SOURCE)]
    for report in new.input_ended():
        world.post(ev.WorkerReported(new.worker_id, report))
    world.pass_time(5_000)
    assert world.terminal.state == "FINISHED"


def test_the_shown_counts_of_the_regions_that_go_on_stay(regions_of):
    world = regions_of()
    world.counts = {"numRecordsOut": 10}
    world.pass_time(1500)
    before = world.master.checkpointing.history.newest_totals
    world.kill(worker_of(world, SOURCE)).pass_time(DELAY_MS)
    history = world.master.checkpointing.history
    assert history.newest_totals == before
    assert history.totals[SOURCE] == {"numRecordsOut": 10}
    assert SOURCE_2 not in history.totals
    world.counts = {"numRecordsOut": 25}
    world.pass_time(1500)
    totals = history.newest_totals
    assert (totals[SOURCE]["numRecordsOut"], totals[SOURCE_2]["numRecordsOut"]) == (35, 25)
    assert f"{SOURCE}/0" in world.master.metrics


def test_commands_of_a_restart_kill_no_worker_of_another_region(regions_of):
    world = regions_of(3).pass_time(1500)
    killed, execute = [], world._execute

    def watched(command):
        if isinstance(command, cmd.KillWorker):
            killed.append(command.worker_id)
        execute(command)

    world._execute = watched
    failed = worker_of(world, SOURCE_2)
    imitation = world.workers[failed]
    report = msg.TaskState(
        job_id=JOB, vertex_id=SINK_2, subtask=0, attempt=imitation.tasks[0].execution.attempt, state="FAILED", error="x"
    )
    world.post(ev.WorkerReported(failed, report)).pass_time(DELAY_MS)
    assert killed == [failed]
    assert attempts(world)[SOURCE_2] == 1
