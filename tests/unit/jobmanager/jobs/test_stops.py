"""Stops: a last cut, its publication, its copy, the end; and what a failure in between makes of the request."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from penstock.checkpoint.ha_records import JobRecord
from penstock.checkpoint.manifest_log import decode_manifest
from penstock.core.errors import StorageError, UnreachableError, UsageError
from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.jobs import savepoint_folders
from penstock.jobmanager.jobs.known_jobs import KnownJob
from penstock.jobmanager.jobs.savepoint_folders import savepoint_target
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.rpc import messages as msg


def kinds(world) -> list[str]:
    return [type(message).__name__ for _, message in world.sent]


def test_the_copy_of_a_stop_owes_nothing(world_of):
    """It is made after all is published; a marker may have expired when somebody starts from it."""
    world = world_of().start()
    world.post(ev.StopRequested("req", "memory://sp", drain=False))
    (copy,) = [decode_manifest(m.manifest) for _, m in world.sent if isinstance(m, msg.SealSavepoint)]
    assert copy.barrier == "stop"
    assert copy.pending == ()
    assert {part.committables for part in copy.subtasks} == {()}
    assert world.manifests()[-1].pending  # the log says what was owed at the cut


def test_stop_with_savepoint_publishes_before_the_copy_and_the_end(world_of):
    world = world_of().start()
    world.post(ev.StopRequested("req", "memory://sp", drain=False))
    assert world.terminal == cmd.JobTerminal("FINISHED", "")
    names = kinds(world)
    assert names.index("CheckpointCompleted") < names.index("SealSavepoint") < names.index("FinishTasks")
    assert world.savepoints == ["memory://sp"]
    assert world.operations["req"] == cmd.OperationEnded("req", "memory://sp", 1, kind="stop")
    assert world.manifests()[-1].barrier == "stop"


def test_a_copy_that_takes_longer_than_a_checkpoint_may_is_waited_for(world_of, graph_of):
    world = world_of(graph_of(checkpoint_timeout_ms=5_000)).start()
    world.deaf.add(msg.SealSavepoint)
    world.post(ev.StopRequested("req", "memory://sp", drain=False))
    world.pass_time(60_000)
    assert kinds(world).count("SealSavepoint") == 1
    assert world.terminal is None


def test_drain_sends_the_drain_barrier(world_of):
    world = world_of().start()
    world.post(ev.StopRequested("req", "memory://sp", drain=True))
    assert {m.kind for _, m in world.sent if isinstance(m, msg.TriggerCheckpoint)} == {"drain"}


def test_a_failure_during_a_stop_leaves_the_job_restarting_and_the_stop_is_carried_out_then(world_of):
    world = world_of().start()
    world.deaf.add(msg.SealSavepoint)
    world.post(ev.StopRequested("req", "memory://sp"))
    assert world.terminal is None
    world.kill(next(iter(world.workers)))
    assert world.master.status.state is JobStatus.RESTARTING
    world.deaf.clear()
    world.pass_time(1000)
    assert world.terminal.state == "FINISHED"
    assert world.operations["req"].error == ""
    assert world.savepoints == ["memory://sp"]


def test_a_stop_whose_barrier_never_completed_restarts_the_job_and_refuses_the_request(world_of):
    world = world_of().start().pass_time(1500)
    world.auto_ack = False
    world.post(ev.StopRequested("req", "memory://sp"))
    world.kill(next(iter(world.workers)))
    world.auto_ack = True
    world.pass_time(500)
    assert world.operations["req"].error
    assert world.master.status.state is JobStatus.RUNNING


async def test_a_target_that_fails_at_present_may_be_asked_for_again(world_of, graph_of, monkeypatch):
    record = JobRecord(job_id="a" * 32, name="job", run_id="r", token="", submitted_ms=0, graph=b"")
    job = KnownJob(record, graph_of(), SimpleNamespace(master=world_of().start().master))

    def full(*_):
        raise StorageError("the disk is full")

    monkeypatch.setattr(savepoint_folders, "_write", full)
    with pytest.raises(UnreachableError, match="cannot be written at present: the disk is full"):
        await savepoint_target(job, "/full", "req", probe=True)


def test_a_stop_whose_manifest_is_of_unknown_fate_is_answered_by_what_the_log_says(world_of, store):
    """The PUT took effect and no answer came: the restart finds the last cut, and the request was carried out."""
    world = world_of().start().pass_time(1500)
    applied = []

    def lost_answers(operation, key, phase):
        if operation == "put" and key.startswith("manifests/") and (applied or phase == "after"):
            applied.append(key)
            raise StorageError("no answer")

    store.fault = lost_answers
    world.post(ev.StopRequested("req", "memory://sp"))
    assert world.master.status.state is JobStatus.RESTARTING
    assert "req" not in world.operations, "nobody knows yet"
    store.fault = lambda *_: None
    world.pass_time(1000)
    assert world.terminal.state == "FINISHED"
    assert world.operations["req"] == cmd.OperationEnded("req", "memory://sp", 2, kind="stop")


def test_a_stop_whose_manifest_was_never_written_is_refused_after_the_restart(world_of):
    world = world_of().start().pass_time(1500)
    world.append_error = "the store is away"
    world.post(ev.StopRequested("req", "memory://sp"))
    world.append_error = None
    world.pass_time(500)
    assert world.operations["req"].error
    assert world.master.status.state is JobStatus.RUNNING


def successor(world_of, world):
    """A new leader of the same log; the old one has lost all its workers."""
    found = world_of(generation=world.generation + 1)
    found.output, found.splits, found.owed = world.output, world.splits, []
    return found


@pytest.mark.parametrize(("drain", "native"), [(False, False), (True, True)])
def test_the_next_leader_answers_the_stop_it_finds_in_the_log(world_of, drain, native):
    request = ev.StopRequested("req", "memory://sp", drain, native)
    world = world_of().start()
    world.deaf.add(msg.SealSavepoint)
    world.post(request)
    assert "req" not in world.operations
    after = successor(world_of, world)
    after.post(request)  # asked again before it has read the log
    assert after.operations == {}
    after.start()
    assert after.terminal.state == "FINISHED"
    assert after.operations["req"] == cmd.OperationEnded("req", "memory://sp", 1, kind="stop")
    assert after.savepoints == ["memory://sp"]
    assert [decode_manifest(m.manifest).native for _, m in after.sent if isinstance(m, msg.SealSavepoint)] == [native]
    assert after.master.checkpointing.stopped == after.operations["req"]


@pytest.mark.parametrize("asked_again", [False, True])
def test_the_next_leader_answers_a_stop_whose_job_has_ended_already(world_of, asked_again):
    world = world_of().start()
    world.post(ev.StopRequested("req", "memory://sp"))
    assert world.terminal.state == "FINISHED"
    after = successor(world_of, world)
    if asked_again:
        after.post(ev.StopRequested("req", "memory://sp"))
    after.post(ev.StopRequested("other", "memory://sp")).start()
    assert after.terminal.state == "FINISHED"
    assert after.operations["req"] == cmd.OperationEnded("req", "memory://sp", 1, kind="stop")
    assert after.operations["other"].error == "the job is FINISHED"
    assert after.savepoints == []


async def test_where_a_savepoint_goes_is_tried_only_if_the_job_goes_on(world_of, graph_of, tmp_path):
    """The next leader is asked again for the stop that it finds in the log, and its target is gone by then."""
    (tmp_path / "file").touch()
    record = JobRecord(job_id="a" * 32, name="job", run_id="r", token="", submitted_ms=0, graph=b"")

    async def tried(world):
        job = KnownJob(record, graph_of(), SimpleNamespace(master=world.master))
        with contextlib.suppress(UsageError):
            await savepoint_target(job, str(tmp_path / "file"), "req", probe=True)
            return False
        return True

    world = world_of()
    world.hold_discovery = True
    assert not await tried(world), "its log is not read yet"
    assert await tried(world.start()), "it is read, and the job starts"
    for found in world.held_discovery:
        world.post(found)
    assert await tried(world)
    world.deaf.add(msg.SealSavepoint)
    world.post(ev.StopRequested("req", "memory://sp"))
    assert not await tried(world), "its sources are silent"
    after = successor(world_of, world)
    assert not await tried(after)
    after.deaf.add(msg.SealSavepoint)
    assert not await tried(after.start())
    assert after.terminal is None
    assert not await tried(successor(world_of, after).start())


def test_another_request_behind_a_stop_in_the_log_is_refused(world_of):
    world = world_of().start()
    world.deaf.add(msg.SealSavepoint)
    world.post(ev.StopRequested("req", "memory://sp"))
    after = successor(world_of, world)
    after.post(ev.SavepointRequested("other", "memory://other")).start()
    assert after.operations["other"].error == "the job is about to end"
    assert after.operations["req"].error == ""


def test_what_is_asked_of_a_job_that_starts_waits_for_it(world_of):
    world = world_of()
    world.hold_discovery = True
    world.start().post(ev.SavepointRequested("req", "memory://sp"))
    assert world.operations == {}
    for found in world.held_discovery:
        world.post(found)
    assert world.operations["req"].uri == "memory://sp"


def test_it_does_not_wait_for_ever(world_of):
    world = world_of()
    world.free = []
    world.start().post(ev.StopRequested("req", "memory://sp")).pass_time(29_000)
    assert world.operations == {}
    world.pass_time(2_000)
    assert world.operations["req"].error.startswith("the job is not running (cancel it;")


def test_it_is_refused_when_the_start_fails(world_of):
    world = world_of()
    world.hold_discovery = True
    world.start().post(ev.StopRequested("req", "memory://sp"))
    world.kill(next(iter(world.workers)))
    assert "was lost" in world.operations["req"].error
