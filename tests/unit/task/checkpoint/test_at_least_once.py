"""Checkpoints whose barriers block no channel, and several of them at a time, in scripted subtasks."""

import pytest

from penstock.config.settings import JobSettings
from penstock.core.elements import BarrierKind
from penstock.rpc.messages import AskTasks

SETTINGS = JobSettings(checkpoint_root="memory://unit", buffer_timeout_ms=0, checkpoint_mode="at-least-once")


@pytest.fixture
def job(world):
    """Two sources, both at work."""
    made = world(sources=2, settings=SETTINGS)
    made.deploy()
    made.settle()
    return made


def barrier(job, source, checkpoint_id, kind=BarrierKind.CHECKPOINT):
    """Send a barrier from one source alone."""
    job.subtasks("source")[source].trigger(checkpoint_id, kind)
    job.settle()


def emit(job, source, *batches):
    job.sources[source].script += batches
    job.settle()


def seen(job):
    return [value for value in job.sink.seen if isinstance(value, int) or value[0] == "barrier"]


def test_rows_after_a_barrier_are_processed_before_the_snapshot(job, batch_of):
    barrier(job, 0, 1)
    emit(job, 0, batch_of(1))
    emit(job, 1, batch_of(2))
    barrier(job, 1, 1)
    assert seen(job) == [1, 2, ("barrier", 1)]
    assert [ack.checkpoint_id for ack in job.acks("sink")] == [1]


def test_a_savepoint_holds_rows_after_its_barrier_back(job, batch_of):
    barrier(job, 0, 1, BarrierKind.SAVEPOINT)
    emit(job, 0, batch_of(1))
    emit(job, 1, batch_of(2))
    assert seen(job) == [2]
    barrier(job, 1, 1, BarrierKind.SAVEPOINT)
    assert seen(job) == [2, ("barrier", 1), 1]


def test_two_checkpoints_wait_at_a_time_and_are_acknowledged_in_order(job, batch_of):
    barrier(job, 0, 1)
    emit(job, 0, batch_of(1))
    barrier(job, 0, 2)
    barrier(job, 1, 1)
    barrier(job, 1, 2)
    assert seen(job) == [1, ("barrier", 1), ("barrier", 2)]
    assert [ack.checkpoint_id for ack in job.acks("sink")] == [1, 2]


def test_a_sink_at_its_limit_takes_no_rows_after_a_barrier_but_those_before_it(job, batch_of):
    job.sink.available = False
    for subtask in job.subtasks("sink"):
        subtask.expect(1)
    barrier(job, 0, 1)
    emit(job, 0, batch_of(1))
    emit(job, 1, batch_of(2))
    assert seen(job) == [2]
    barrier(job, 1, 1)
    assert seen(job) == [2, ("barrier", 1)]
    job.sink.available = True
    job.settle()
    assert seen(job) == [2, ("barrier", 1), 1]


def test_an_announced_barrier_wakes_a_sink_at_its_limit_for_the_rows_before_it(job, batch_of):
    woken, (subtask,) = [], job.subtasks("sink")
    subtask._wake = lambda: woken.append(1)
    subtask.expect(1)
    assert woken == []
    job.sink.available = False
    emit(job, 0, batch_of(1))
    subtask.expect(2)
    assert woken == [1]
    job.settle()
    assert seen(job) == [1]


def test_no_barrier_is_waited_for_when_its_leader_has_ended(job, batch_of):
    barrier(job, 0, 1)
    barrier(job, 0, 2)
    job.broadcast(AskTasks(job_id="job", generation=2))
    job.settle()
    assert [value for value in job.sink.seen if value[0] == "aborted"] == [("aborted", 1), ("aborted", 2)]
    barrier(job, 1, 1)
    barrier(job, 1, 2)
    assert job.acks("sink") == []


def test_aligned_checkpoints_overlap_too(world, batch_of):
    """The first source is two barriers ahead: the second barrier waits in its channel."""
    job = world(sources=2)
    job.deploy()
    job.settle()
    barrier(job, 0, 1)
    emit(job, 0, batch_of(1))
    barrier(job, 0, 2)
    emit(job, 1, batch_of(2))
    assert seen(job) == [2]
    barrier(job, 1, 1)
    assert seen(job) == [2, ("barrier", 1), 1]
    barrier(job, 1, 2)
    assert seen(job) == [2, ("barrier", 1), 1, ("barrier", 2)]
    assert [ack.checkpoint_id for ack in job.acks("sink")] == [1, 2]
