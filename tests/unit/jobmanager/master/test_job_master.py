"""The whole life of a job, decided without clocks, threads or sockets."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.jobmanager.conftest import JOB, SINK, acknowledge

from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment, SubtaskSnapshot
from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc import messages as msg


def kinds(world) -> list[str]:
    return [type(message).__name__ for _, message in world.sent]


def test_a_first_start_assigns_all_splits_once_and_fences_nothing(world_of):
    world = world_of().start()
    assert world.master.status.state is JobStatus.RUNNING
    assert world.resolved == []
    splits = [split for _, ids, _ in world.assigned for split in ids]
    assert sorted(splits) == ["t-0", "t-1", "t-2"]
    assert all(not no_more for _, _, no_more in world.assigned)


def test_checkpoints_come_by_interval_and_release_their_output_by_permit(world_of):
    world = world_of().start().pass_time(3500)
    manifests = world.manifests()
    assert [m.checkpoint_id for m in manifests] == [1, 2, 3]
    assert all(len(m.subtasks) == 4 for m in manifests)
    assert set(world.output.values()) == {1}
    assert len(world.output) == 6
    assert world.master.checkpointing.pending == {}
    permits = {p.checkpoint_id: p.manifest_sequence for p in world.permits}
    assert permits == {m.checkpoint_id: m.sequence for m in manifests}


def test_output_stays_in_every_manifest_until_it_is_reported_published(world_of):
    world = world_of().start()
    world.deaf.add(msg.CheckpointCompleted)
    world.pass_time(2500)
    first, second = world.manifests()
    assert {c.checkpoint_id for c in second.pending} == {1, 2}
    assert {c.id for c in first.pending} < {c.id for c in second.pending}


def test_published_output_is_in_no_later_manifest_though_a_barrier_passed_before(world_of, graph_of):
    world = world_of(graph_of(max_concurrent_checkpoints=3))
    world.auto_ack = False
    world.start().pass_time(3500)
    triggers = {m.checkpoint_id: m for _, m in world.sent if isinstance(m, msg.TriggerCheckpoint)}
    acks = {
        number: [(worker.worker_id, ack) for worker in world.workers.values() for ack in worker.acks(trigger)]
        for number, trigger in sorted(triggers.items())
    }
    assert list(acks) == [1, 2, 3]
    for worker_id, ack in [of for number in (1, 2, 3) for of in acks[number]]:
        world.post(ev.WorkerReported(worker_id, ack))
    assert [{c.checkpoint_id for c in m.pending} for m in world.manifests()] == [{1}, {2}, {3}]
    assert world.master.checkpointing.pending == {}
    assert set(world.output.values()) == {1}


@pytest.mark.parametrize(("interval_ms", "together"), [(100, True), (1000, False)])
def test_a_permit_that_no_output_waits_for_goes_with_a_trigger_that_is_due_soon(
    world_of, graph_of, interval_ms, together
):
    world = world_of(graph_of(checkpoint_interval_ms=interval_ms)).start()
    world.auto_ack = False
    world.pass_time(interval_ms)
    trigger = next(message for _, message in world.sent if isinstance(message, msg.TriggerCheckpoint))
    world.sent.clear()
    for worker in world.workers.values():
        for report in worker.acks(trigger):
            snapshots = [msgspec.structs.replace(ack.snapshot, committables=()) for ack in report.acks]
            acks = tuple(msgspec.structs.replace(a, snapshot=s) for a, s in zip(report.acks, snapshots, strict=True))
            world.post(ev.WorkerReported(worker.worker_id, msgspec.structs.replace(report, acks=acks)))
    assert len(world.manifests()) == 1
    assert kinds(world) == ([] if together else ["CheckpointCompleted"] * 2)
    world.pass_time(interval_ms)
    assert kinds(world) == ["CheckpointCompleted"] * 2 + ["TriggerCheckpoint"] * 2


def test_no_checkpoint_before_the_sources_know_their_splits(world_of):
    world = world_of()
    world.hold_discovery = True
    world.start().pass_time(5000)
    assert world.manifests() == []
    world.post(world.held_discovery[0]).pass_time(1500)
    assert [m.checkpoint_id for m in world.manifests()] == [1]


def test_a_lost_worker_restarts_all_from_the_newest_checkpoint_after_the_output_is_resolved(world_of):
    world = world_of().start()
    world.deaf.add(msg.CheckpointCompleted)
    world.pass_time(1500)
    world.sent.clear()
    world.kill(next(iter(world.workers)))
    assert world.master.status.state is JobStatus.RESTARTING
    world.pass_time(200)
    assert world.master.status.state is JobStatus.RUNNING
    names = kinds(world)
    assert names.index("ResolvePending") < names.index("DeployTasks") < names.index("AssignSplits")
    assert names.count("ResolvePending") == 1
    resolve = world.resolved[0]
    assert resolve.prefixes == {"out": ("job.out.r.",)}
    assert {c.checkpoint_id for c in resolve.committables} == {1}
    assert resolve.permit.checkpoint_id == 1
    tasks = [t for w in world.workers.values() for t in w.tasks]
    assert {t.restored_checkpoint for t in tasks} == {1}
    assert {t.execution.attempt for t in tasks} == {(1 << 16) + 1}


def test_restored_splits_are_spread_again_without_a_loss(world_of):
    world = world_of().start().pass_time(1500)
    world.assigned.clear()
    world.kill(next(iter(world.workers))).pass_time(200)
    assert sorted(s for _, ids, _ in world.assigned for s in ids) == ["t-0", "t-1", "t-2"]


def test_ids_go_on_after_a_restart(world_of):
    world = world_of().start().pass_time(1500)
    world.auto_ack = False
    world.pass_time(1000)
    world.kill(next(iter(world.workers)))
    world.auto_ack = True
    world.pass_time(2000)
    ids = [m.checkpoint_id for m in world.manifests()]
    assert ids[0] == 1
    assert 2 not in ids
    assert ids == sorted(set(ids))


def checkpoint_story(world) -> list[str]:
    return [entry.text for entry in world.master.event_log.entries() if entry.kind == "checkpoint"]


def shown(world) -> tuple[int, int, dict[int, tuple[str, str]]]:
    """Numbers of completed and failed checkpoints, and status and failure by id, as REST has them."""
    view = world.master.checkpointing.history.view((0, 0, 0))
    return view.completed, view.failed, {c.id: (c.status, c.failure) for c in view.history}


@pytest.mark.parametrize("appended", [True, False])
def test_a_checkpoint_whose_manifest_was_on_its_way_at_a_failure_is_reported_as_the_log_has_it(world_of, appended):
    world = world_of().start()
    held, append = [], world._append
    world._append = lambda *manifest: held.append(manifest)
    world.pass_time(1500).kill(next(iter(world.workers)))
    assert shown(world) == (0, 0, {1: ("IN_PROGRESS", "")})
    world._append = append
    world.append_error = None if appended else "disk full"
    append(*held[0])
    world.post(ev.Tick())
    world.append_error = None
    if appended:
        assert shown(world) == (1, 0, {1: ("COMPLETED", "")})
        assert checkpoint_story(world) == ["checkpoint 1 completed"]
    else:
        assert shown(world) == (0, 1, {1: ("FAILED", "the manifest was not written: disk full")})
        assert checkpoint_story(world) == ["checkpoint 1 failed: the manifest was not written: disk full"]


def test_the_event_log_has_each_failed_checkpoint_with_the_reason_that_is_shown(world_of):
    world = world_of().start()
    world.auto_ack = False
    world.pass_time(1500).kill(next(iter(world.workers)))
    reason = world.master.error
    assert shown(world) == (0, 1, {1: ("FAILED", reason)})
    assert checkpoint_story(world) == [f"checkpoint 1 failed: {reason}"]


def test_no_new_worker_starts_while_an_old_one_may_live(world_of):
    world = world_of().start()
    executed = []
    original = world._execute

    def hold_kills(command):
        executed.append(command)
        if not isinstance(command, cmd.KillWorker):
            original(command)

    world._execute = hold_kills
    world.kill(next(iter(world.workers))).pass_time(5000)
    assert not any(isinstance(c, cmd.LaunchWorker) for c in executed)
    (left,) = [c for c in executed if isinstance(c, cmd.KillWorker)]
    world.post(ev.WorkerLost(left.worker_id, "stopped"))
    assert sum(isinstance(c, cmd.LaunchWorker) for c in executed) == 2


def failed_report(world, worker_id, error):
    task = world.workers[worker_id].tasks[0].execution
    report = msg.TaskState(
        job_id="a", vertex_id=task.vertex_id, subtask=task.subtask, attempt=task.attempt, state="FAILED", error=error
    )
    return ev.WorkerReported(worker_id, report)


def failure_story(world) -> list[str]:
    return [entry.text for entry in world.master.event_log.entries() if entry.kind == "failure"]


def test_a_lost_connection_is_reported_as_the_end_of_the_other_worker(world_of):
    """The worker at this side may report first."""
    world = world_of().start().pass_time(1500)
    dead, peer = list(world.workers)
    lost = f"ConnectionLostError: connection to worker {dead} lost: [Errno 104] Connection reset by peer"
    world.post(failed_report(world, peer, lost))
    assert not world.master.failures
    world.post(ev.WorkerLost(dead, "it was killed by SIGKILL", "its last lines"))
    (failure,) = world.master.failures
    assert failure.error == f"worker {dead} was lost: it was killed by SIGKILL"
    assert (failure.detail, failure.worker_id, failure.taskmanager_id) == ("its last lines", dead, "tm")
    assert world.master.error == failure.error
    assert failure_story(world) == [failure.error]
    world.pass_time(2000)
    assert world.master.status.state is JobStatus.RUNNING
    assert world.master.restarts == 1


def slots_in_use(world) -> set[int]:
    return {worker.slot.index for worker in world.master.deployment.workers.values()}


@pytest.mark.parametrize("together", [True, False])
def test_a_refused_slot_is_replaced_by_another_and_is_no_failure(world_of, together):
    world = world_of()
    world.refused = set(world.free[:2] if together else world.free[1:2])
    world.start().pass_time(1500)
    assert world.master.status.state is JobStatus.RUNNING
    assert (world.master.restarts, list(world.master.failures), world.master.error) == (0, [], "")
    assert slots_in_use(world).isdisjoint(slot.index for slot in world.refused)
    assert len(slots_in_use(world)) == 2
    assert len({*world.workers}) == 2
    told = [entry.text for entry in world.master.event_log.entries() if entry.kind == "slots"]
    assert len(told) == len(world.refused)
    assert told[0].startswith(f"another slot is requested: worker {JOB[:8]}-g1-r0-")
    assert told[0].endswith(" could not start: the slot is held by worker w")


def test_a_job_waits_for_another_slot_in_place_of_a_refused_one(world_of):
    world = world_of()
    world.free, more = world.free[:2], world.free[2:]
    world.refused = {world.free[0]}
    world.start().pass_time(1500)
    assert world.master.status.state is JobStatus.CREATED
    assert "workers: 1 of 2 are ready" in world.master.deployment.waiting_for()
    world.post(ev.SlotsGranted(tuple(more[:3])))
    assert world.master.status.state is JobStatus.RUNNING
    assert slots_in_use(world) == {1, 2}
    assert world.free == more[1:3], "what nobody needs is released"


def test_a_lost_worker_is_reported_with_the_function_that_it_was_in(world_of):
    world = world_of().start().pass_time(1500)
    worker_id = next(iter(world.workers))
    call = msg.SlowCall(number=1, what="operator 'm' (0)", for_ms=7000, at="job.py:3 in endless")
    report = msg.WorkerMetrics(
        worker_id=worker_id, job_id=world.master.identity.job_id, tasks={}, worker={}, slow=(call,)
    )
    world.post(ev.WorkerReported(worker_id, report)).post(ev.WorkerLost(worker_id, "it used 9 MB of memory"))
    text = f"worker {worker_id} was lost: it used 9 MB of memory; operator 'm' (0) has been in one call for 7 s, at "
    assert [failure.error for failure in world.master.failures] == [f"{text}job.py:3 in endless"]


def test_a_lost_connection_to_a_worker_that_lives_is_a_failure_of_its_own(world_of):
    world = world_of().start().pass_time(1500)
    alive, peer = list(world.workers)
    lost = f"ConnectionLostError: connection to worker {alive} lost: [Errno 104] Connection reset by peer"
    world.post(failed_report(world, peer, lost)).post(failed_report(world, alive, lost.replace(alive, peer)))
    world.pass_time(2000)
    assert [(failure.error, failure.worker_id) for failure in world.master.failures] == [
        (lost.replace(" lost:", " of TaskManager tm lost:"), peer)
    ]
    assert world.master.status.state is JobStatus.RUNNING


def test_an_error_of_the_worker_at_the_other_side_is_the_cause_of_a_lost_connection(world_of):
    world = world_of().start().pass_time(1500)
    broken, peer = list(world.workers)
    lost = f"ConnectionLostError: connection to worker {broken} lost: the connection was closed by the peer"
    world.post(failed_report(world, peer, lost)).post(failed_report(world, broken, "StorageError: disk full"))
    world.pass_time(2000)
    assert [failure.error for failure in world.master.failures] == ["StorageError: disk full"]


def test_reports_of_an_old_worker_are_dropped(world_of):
    world = world_of().start().pass_time(1500)
    old = next(iter(world.workers))
    report = failed_report(world, old, "x")
    world.kill(old).pass_time(200)
    world.post(report)
    assert world.master.status.state is JobStatus.RUNNING


def test_a_dead_taskmanager_takes_its_slots_with_it(world_of):
    world = world_of().start()
    world.workers.clear()
    world.post(ev.TaskManagerLost("tm", "silent")).pass_time(200)
    assert world.master.status.state is JobStatus.RUNNING
    assert len(world.free) == 4


def test_subtasks_keep_their_slots_when_another_taskmanager_is_lost(world_of):
    world = world_of()
    world.free = [Slot("lost", 0), Slot("tm", 0), Slot("other", 0)]
    world.start().pass_time(1500)

    def slots():
        deployment = world.master.deployment
        return {e.id.subtask: deployment.workers[e.worker_id].slot for e in deployment.executions.values()}

    assert slots() == {0: Slot("lost", 0), 1: Slot("tm", 0)}
    (lost,) = [name for name, w in world.master.deployment.workers.items() if w.slot == Slot("lost", 0)]
    world.workers.pop(lost)
    world.post(ev.TaskManagerLost("lost", "silent")).pass_time(500)
    assert world.master.status.state is JobStatus.RUNNING
    assert slots() == {0: Slot("other", 0), 1: Slot("tm", 0)}


def test_a_bounded_job_takes_its_final_checkpoint_without_an_interval(world_of, graph_of):
    world = world_of(graph_of(bounded=True, checkpoint_interval_ms=None)).start()
    assert all(no_more for _, _, no_more in world.assigned)
    assert {subtask for subtask, _, _ in world.assigned} == {0, 1}
    world.end_input()
    assert world.terminal == cmd.JobTerminal("FINISHED", "")
    (final,) = world.manifests()
    assert final.barrier == "final"
    assert set(world.output.values()) == {1}
    (end,) = world.manifests("end")
    assert end.pending == ()
    assert world.workers == {}


def test_a_bounded_job_is_not_finished_before_its_tail_is_published(world_of, graph_of):
    world = world_of(graph_of(bounded=True, checkpoint_interval_ms=None)).start()
    world.deaf.add(msg.CheckpointCompleted)
    world.end_input()
    assert world.terminal is None
    world.kill(next(iter(world.workers)))
    assert world.master.status.state is JobStatus.RESTARTING
    world.sent.clear()
    world.pass_time(1000)
    assert world.terminal == cmd.JobTerminal("FINISHED", world.master.error)
    assert "DeployTasks" not in kinds(world)
    assert set(world.output.values()) == {1}


def test_an_input_that_ended_before_the_other_sources_had_their_splits_counts(world_of, graph_of):
    world = world_of(graph_of(bounded=True, checkpoint_interval_ms=None))
    world.hold_discovery = True
    world.start().end_input()
    assert world.terminal is None
    world.post(world.held_discovery.pop())
    assert world.terminal == cmd.JobTerminal("FINISHED", "")


def test_a_start_may_take_as_long_as_its_state_needs_to_be_read(world_of):
    def state(gigabytes):
        file = FileRef(path="data/x.pack", length=gigabytes << 30)
        segment = Segment(
            file=file, position=1, writer="w", rows=1, hash_min=0, hash_max=0, namespace_min=0, namespace_max=0
        )
        keyed = KeyedStateSnapshot(
            uid="out", state="s", schema="", hash_low=HASH_MIN, hash_high=HASH_MAX, segments=(segment,)
        )
        return msgspec.structs.replace(first, subtasks=(SubtaskSnapshot(vertex_id=SINK, subtask=0, keyed=(keyed,)),))

    (first,) = world_of().start().pass_time(1500).manifests()
    for generation, gigabytes, restarts in ((2, 0, 1), (3, 10, 0)):
        world = world_of(generation=generation, run_id=f"r{generation}", source=state(gigabytes), note="fresh")
        world.deaf.add(msg.DeployTasks)
        world.start().pass_time(600_000)
        assert world.master.restarts == restarts
    world.pass_time(24 * 3_600_000)
    assert world.master.restarts
    assert "did not start in time; it is waiting for subtasks to run" in world.master.failures[0].error


def test_output_owed_by_a_sink_that_no_longer_publishes_is_not_forgotten(world_of, graph_of):
    first = world_of().start()
    first.deaf.add(msg.CheckpointCompleted)
    first.pass_time(1500)
    (source,) = first.manifests()
    world = world_of(graph_of(delivery="at-least-once"), generation=2, run_id="r2", source=source).start()
    assert world.terminal.state == "FAILED"
    assert "no exactly-once sink with that uid" in world.terminal.error


def test_a_savepoint_publishes_nothing_and_its_output_leaves_with_the_next_checkpoint(world_of):
    world = world_of().start()
    world.post(ev.SavepointRequested("req", "memory://sp"))
    assert world.operations["req"] == cmd.OperationEnded("req", "memory://sp", 1)
    assert world.permits == []
    assert world.output == {}
    (entry,) = world.manifests("savepoint")
    assert {c.checkpoint_id for c in entry.pending} == {1}
    world.pass_time(1500)
    assert {c.checkpoint_id for c in world.manifests()[0].pending} == {1, 2}
    assert set(world.output.values()) == {1}
    assert len(world.output) == 4


def test_a_savepoint_is_no_recovery_point(world_of):
    world = world_of().start().pass_time(1500)
    world.post(ev.SavepointRequested("req", "memory://sp"))
    world.kill(next(iter(world.workers))).pass_time(200)
    assert {t.restored_checkpoint for w in world.workers.values() for t in w.tasks} == {1}


def test_cancel_keeps_the_checkpoints_and_records_what_is_owed(world_of):
    world = world_of().start()
    world.deaf.add(msg.CheckpointCompleted)
    world.pass_time(1500)
    world.post(ev.CancelRequested())
    assert world.terminal == cmd.JobTerminal("CANCELED", "")
    assert len(world.manifests()) == 1
    (end,) = world.manifests("end")
    assert {c.checkpoint_id for c in end.pending} == {1}


def test_cancel_does_not_wait_for_ever(world_of):
    world = world_of().start()
    world.deaf.add(msg.CancelTasks)
    world.post(ev.CancelRequested())
    assert world.terminal is None
    world.pass_time(11_000)
    assert world.terminal.state == "CANCELED"


def test_cancel_ends_a_job_that_restarts(world_of):
    world = world_of().start()
    fail(world, "OSError: no answer")
    assert world.master.status.state is JobStatus.RESTARTING
    world.post(ev.CancelRequested())
    assert world.terminal.state == "CANCELED"
    assert world.pass_time(60_000).master.status.state is JobStatus.CANCELED


@pytest.mark.parametrize("error", ["BadRecordError: row 7", "penstock.core.errors.LostTransactionError: gone"])
def test_errors_that_come_back_end_the_job(world_of, error):
    world = world_of().start()
    fail(world, error)
    assert world.terminal == cmd.JobTerminal("FAILED", error)


def fail(world, error):
    """A task reports an error."""
    worker = next(iter(world.workers.values()))
    e = worker.tasks[0].execution
    report = msg.TaskState(
        job_id="a", vertex_id=e.vertex_id, subtask=e.subtask, attempt=e.attempt, state="FAILED", error=error
    )
    world.post(ev.WorkerReported(worker.worker_id, report))


def test_an_error_of_user_code_before_the_first_checkpoint_ends_the_job(world_of):
    world = world_of().start()
    fail(world, error := "UserFunctionError: map 'm': ValueError: x")
    assert world.terminal == cmd.JobTerminal("FAILED", error)


def test_a_worker_that_the_jobs_code_has_ended_counts_as_an_error_of_user_code(world_of):
    world = world_of().start()
    worker_id = next(iter(world.workers))
    world.post(ev.WorkerLost(worker_id, "it exited with status 3", by_user_code=True))
    assert world.master.status.state is JobStatus.FAILED


def test_an_error_of_user_code_after_a_checkpoint_restarts_the_job_also_under_the_next_leader(world_of):
    first = world_of().start().pass_time(1500)
    fail(first, "UserFunctionError: map 'm': ValueError: x")
    assert (first.terminal, first.master.restarts) == (None, 1)
    second = world_of(generation=2).start()
    fail(second, "UserFunctionError: map 'm': ValueError: x")
    assert (second.terminal, second.master.restarts) == (None, 1)


def test_the_restart_strategy_ends_the_job(world_of, graph_of):
    from penstock.config.settings import RestartStrategy

    graph = graph_of(restart=RestartStrategy(kind="fixed-delay", attempts=1, delay_ms=10))
    world = world_of(graph).start()
    world.kill(next(iter(world.workers))).pass_time(100)
    world.kill(next(iter(world.workers))).pass_time(100)
    assert world.terminal.state == "FAILED"
    assert "SIGKILL" in world.terminal.error


def test_a_new_leader_recovers_the_newest_checkpoint_and_the_same_run(world_of):
    first = world_of().start()
    first.deaf.add(msg.CheckpointCompleted)
    first.pass_time(2500)
    second = world_of(generation=2).start()
    assert {t.restored_checkpoint for w in second.workers.values() for t in w.tasks} == {2}
    restored = second.master.checkpointing.history.latest_restored
    assert (restored.checkpoint_id, restored.savepoint) == (2, False)
    assert {c.checkpoint_id for c in second.resolved[0].committables} == {1, 2}
    second.pass_time(1000)
    assert second.manifests()[-1].checkpoint_id == 1003  # 3 may have been given away and aborted


def test_the_run_after_a_stop_resumes_from_the_savepoint(world_of):
    first = world_of().start().pass_time(1500)
    first.post(ev.StopRequested("q", "memory://sp", drain=False))
    assert first.terminal.state == "FINISHED"
    second = world_of(generation=2, run_id="r2").start()
    restored = second.master.checkpointing.history.latest_restored
    assert (restored.savepoint, restored.uri) == (True, "memory://sp")
    (told,) = [entry.text for entry in second.master.event_log.entries() if entry.kind == "recovery"]
    assert told.startswith(f"savepoint memory://sp (checkpoint {restored.checkpoint_id}) of run r;")


def test_an_open_stop_has_the_time_of_its_request_and_the_step_that_it_waits_for(world_of):
    world = world_of().start().pass_time(1500)
    asked_ms = world.clock.now_ms()

    def phases():
        return [(r.what, r.since_ms, r.phase) for r in world.master.checkpointing.open_requests]

    assert phases() == []
    world.auto_ack = False
    world.post(ev.StopRequested("q", "memory://sp", drain=False))
    assert phases() == [("stop", asked_ms, "checkpoint")]
    world.deaf.add(msg.CheckpointCompleted)
    acknowledge(world)
    assert phases() == [("stop", asked_ms, "publish")]


def test_a_run_that_has_ended_is_not_started_again_by_the_next_leader(world_of):
    """The leader before wrote the end, and died before it could record it elsewhere."""
    first = world_of().start().pass_time(1500)
    first.post(ev.CancelRequested())
    assert first.terminal.state == "CANCELED"
    second = world_of(generation=2).start().pass_time(20_000)
    assert second.terminal.state == "CANCELED"
    assert not any(worker.tasks for worker in second.workers.values())
    assert len(second.manifests("end")) == 1


def test_a_superseded_leader_appends_nothing_grants_nothing_and_deletes_nothing(world_of, store):
    first = world_of().start().pass_time(1500)
    world_of(generation=2).start()
    granted, entries = len(first.permits), store.list("")
    first.pass_time(5000)
    assert first.lost
    assert len(first.permits) == granted
    assert store.list("") == entries


def test_a_changed_graph_is_refused_with_the_way_out(world_of, graph_of):
    import msgspec

    world_of().start().pass_time(1500)
    changed = msgspec.structs.replace(graph_of(), fingerprint="other")
    world = world_of(changed, generation=2, run_id="r2").start()
    assert world.terminal.state == "FAILED"
    assert "--fresh" in world.terminal.error


def test_fresh_starts_a_new_history_and_still_fences_the_old_run(world_of):
    world_of().start().pass_time(1500)
    world = world_of(generation=2, run_id="r2", note="fresh").start()
    assert {t.restored_checkpoint for w in world.workers.values() for t in w.tasks} == {None}
    assert world.resolved[0].prefixes["out"] == ("job.out.r.", "job.out.r2.")
    assert world.resolved[0].committables == ()


def test_retention_keeps_the_newest_and_deletes_what_only_dropped_ones_name(world_of, store):
    world = world_of().start()
    store.put("pending/r/65536/out-0/1", b"x")
    world.pass_time(6500)
    assert [m.checkpoint_id for m in world.manifests()] == [4, 5, 6]
    assert store.list("pending/") == []


def test_a_rescale_restores_all_state_and_splits(world_of, graph_of):
    world_of().start().pass_time(1500)
    world = world_of(graph_of(parallelism=3), generation=2, run_id="r2").start()
    assert world.master.status.state is JobStatus.RUNNING
    assert sorted(ids for _, ids, _ in world.assigned) == [("t-0",), ("t-1",), ("t-2",)]


def test_discovery_that_fails_at_the_first_start_ends_the_job(world_of):
    world = world_of()
    world.hold_discovery = True
    world.start()
    found = world.held_discovery[0]
    world.post(ev.DiscoveryFailed(found.uid, found.epoch, "broker unreachable"))
    assert world.terminal.state == "FAILED"
    assert "broker unreachable" in world.terminal.error


def test_failed_checkpoints_beyond_the_tolerated_restart_the_job(world_of):
    world = world_of().start()
    world.append_error = "store is down"
    world.pass_time(1001)
    assert world.master.status.state is JobStatus.RESTARTING
    assert "store is down" in world.master.error


def test_tolerated_failures_do_not(world_of, graph_of):
    world = world_of(graph_of(checkpoint_tolerated_failures=1)).start()
    world.append_error = "store is down"
    world.pass_time(1500)
    world.append_error = None
    world.pass_time(3000)
    assert world.master.restarts == 0
    assert len(world.manifests()) >= 2
    assert world.master.checkpointing.history.failed == 1


def test_metrics_that_come_after_the_end_of_a_subtask_do_not_replace_its_last_ones(world_of, graph_of):
    world = world_of(graph_of(bounded=True)).start()
    execution = next(iter(world.master.deployment.executions.values()))
    worker_id = execution.worker_id
    vertex_id, subtask = execution.id.vertex_id, execution.id.subtask
    name = f"{vertex_id}/{subtask}"

    def report(rows):
        measured = msg.WorkerMetrics(worker_id=worker_id, job_id=JOB, tasks={name: {"rows": rows}}, worker={})
        world.post(ev.WorkerReported(worker_id, measured))

    report(1.0)
    assert world.master.metrics[name] == {"rows": 1.0}
    ended = msg.TaskState(
        job_id=JOB, vertex_id=vertex_id, subtask=subtask, attempt=execution.id.attempt, state="FINISHED",
        metrics={"rows": 3.0},
    )  # fmt: skip
    world.post(ev.WorkerReported(worker_id, ended))
    report(2.0)
    assert world.master.metrics[name] == {"rows": 3.0}


def test_rows_at_the_last_barrier_are_counted_without_later_metrics(world_of):
    world = world_of().start()
    name, execution = next((f"{e.id.vertex_id}/{e.id.subtask}", e) for e in world.master.deployment.executions.values())

    def report(rows):
        tasks = {name: {"numRecordsOut": rows, "busy": 5.0}}
        measured = msg.WorkerMetrics(worker_id=execution.worker_id, job_id=JOB, tasks=tasks, worker={})
        world.post(ev.WorkerReported(execution.worker_id, measured))

    report(30.0)
    world.counts = {"numRecordsOut": 20}
    world.pass_time(1_500)
    assert world.master.metrics[name] == {"numRecordsOut": 30.0, "busy": 5.0}, "measured after the barrier"
    world.counts = {"numRecordsOut": 50}
    world.post(ev.StopRequested("q", "memory://sp", drain=False))
    assert world.terminal.state == "FINISHED"
    assert world.master.metrics[name] == {"numRecordsOut": 50.0, "busy": 5.0}
