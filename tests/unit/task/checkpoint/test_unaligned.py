"""A checkpoint that overtakes, from the trigger to a restore, in scripted subtasks."""

import msgspec
import pytest

from penstock.config.settings import JobSettings
from penstock.core.elements import BarrierKind
from penstock.graph.task_deployment import InputSpec, OutputSpec, RestoredRows
from penstock.network.in_flight import decode_rows
from penstock.rpc.messages import AskTasks, LetBarriersOvertake, TriggerCheckpoint

SETTINGS = JobSettings(
    checkpoint_root="memory://unit",
    buffer_timeout_ms=0,
    buffer_size_bytes=100,
    exclusive_buffers=2,
    floating_buffers=0,
    unaligned_checkpoints=True,
)


@pytest.fixture
def job(world):
    """Two sources whose sink takes nothing: each channel is full at both ends."""
    made = world(sources=2, settings=SETTINGS)

    def overtaking(specs: tuple[InputSpec | OutputSpec, ...]):
        return tuple(msgspec.structs.replace(spec, overtakes="edge") for spec in specs)

    deployment = made.deployment
    made.deployment = lambda *where: msgspec.structs.replace(
        deployment(*where),
        inputs=overtaking(deployment(*where).inputs),
        outputs=overtaking(deployment(*where).outputs),
    )
    return made


def fill(job, batch_of):
    """Let the sources emit until they have to stop; the sink is at its limit from the start."""
    job.sink.available = False
    job.deploy()
    for number, source in enumerate(job.sources):
        source.script += [batch_of(10 * number + n) for n in range(60)]
    job.settle()


def trigger(job, checkpoint_id, *, overtakes):
    message = TriggerCheckpoint(
        job_id="job", run_id="run", generation=1, checkpoint_id=checkpoint_id, kind="checkpoint", overtakes=overtakes
    )
    job.broadcast(message)
    job.settle()


def taken(job):
    """Return the files of rows in flight, those of the sink first."""
    parts = [part for ack in job.acks("sink") + job.acks("source") for part in ack.snapshot.in_flight]
    return sorted(parts, key=lambda part: part.at_sender)


def seen(job):
    return [value for value in job.sink.seen if isinstance(value, int)]


def test_a_sink_that_takes_no_row_takes_part_and_the_rows_are_restored(job, world, batch_of):
    fill(job, batch_of)
    trigger(job, 1, overtakes=True)
    assert len(job.acks("sink")) == 1
    assert len(job.acks("source")) == 2
    assert seen(job) == []
    emitted = sum(source.position for source in job.sources)
    parts = taken(job)
    assert {part.at_sender for part in parts} == {False, True}
    metrics = job.acks("sink")[0].metrics
    assert metrics.unaligned
    assert metrics.persisted_bytes > 0

    again = world(settings=SETTINGS)
    again.store = job.store
    again.deploy(in_flight=tuple(RestoredRows(part=part, input_index=0) for part in parts))
    again.sources[0].script.append(batch_of(1000))
    again.settle()
    assert seen(again)[-1] == 1000
    assert len(seen(again)) == emitted + 1


def step_sources(job):
    """Step the sources until they have nothing to do; the sink does nothing at all."""
    for _ in range(100):
        for subtask in job.subtasks("source"):
            subtask.step()
        job.transport.pump_all()
        job.background.run_all()


def test_an_ack_waits_for_a_barrier_in_a_full_queue_until_it_may_overtake(job, batch_of):
    fill(job, batch_of)
    message = {"job_id": "job", "run_id": "run", "generation": 1, "checkpoint_id": 1}
    job.broadcast(TriggerCheckpoint(**message, kind="checkpoint"))
    step_sources(job)
    assert job.acks("source") == []
    job.broadcast(LetBarriersOvertake(**message))
    step_sources(job)
    assert len(job.acks("source")) == 2
    job.settle()
    assert len(job.acks("sink")) == 1


def test_an_aborted_collection_leaves_no_file_and_the_next_checkpoint_is_whole(job, batch_of):
    fill(job, batch_of)
    trigger(job, 1, overtakes=True)
    job.abort(1)
    before = len(job.reports)
    trigger(job, 2, overtakes=True)
    acks = [r for r in job.reports[before:] if getattr(r, "checkpoint_id", 0) == 2]
    assert len(acks) == 3


def test_a_checkpoint_that_nobody_aborts_does_not_hold_up_the_next_one(job, batch_of):
    fill(job, batch_of)
    job.broadcast(TriggerCheckpoint(job_id="job", run_id="run", generation=1, checkpoint_id=1, kind="checkpoint"))
    step_sources(job)
    assert job.acks("source") == []
    trigger(job, 2, overtakes=True)
    assert [ack.checkpoint_id for ack in job.acks("source") + job.acks("sink")] == [2, 2, 2]


def test_rows_are_no_longer_collected_for_a_leader_that_has_ended(job, batch_of):
    fill(job, batch_of)
    job.broadcast(
        TriggerCheckpoint(job_id="job", run_id="run", generation=1, checkpoint_id=1, kind="checkpoint", overtakes=True)
    )
    one, _other = job.subtasks("source")
    (sink,) = job.subtasks("sink")
    for _ in range(20):
        one.step()
        job.transport.pump_all()
        sink.step()
    assert ("barrier", 1) in job.sink.seen
    job.broadcast(AskTasks(job_id="job", generation=2))
    sink.step()
    assert job.sink.seen[-1] == ("aborted", 1)


def test_a_channel_does_not_wait_for_the_barrier_of_a_leader_that_has_ended(world, batch_of):
    job = world(sources=2)
    job.deploy()
    job.settle()
    one, _other = job.subtasks("source")
    one.trigger(1, BarrierKind.CHECKPOINT)  # the leader ended before it triggered the other one
    job.sources[0].script.append(batch_of(7))
    job.settle()
    assert seen(job) == []
    job.broadcast(AskTasks(job_id="job", generation=2))
    job.settle()
    assert seen(job) == [7]


def test_a_subtask_with_a_broadcast_input_aligns_all_inputs(job, batch_of):
    """The barrier of the other input leaves its sender before the queued rows there, and is read in order."""
    overtaking = job.deployment

    def with_broadcast(vertex, subtask):
        task = overtaking(vertex, subtask)
        if vertex == "source":
            kept = () if subtask == 0 else tuple(msgspec.structs.replace(spec, overtakes="") for spec in task.outputs)
            return msgspec.structs.replace(task, outputs=kept or task.outputs)
        (spec,) = task.inputs
        keyed, broadcast = spec.channels
        inputs = (
            msgspec.structs.replace(spec, channels=(keyed,)),
            msgspec.structs.replace(spec, channels=(broadcast,), input_index=1, overtakes=""),
        )
        return msgspec.structs.replace(task, inputs=inputs)

    job.deployment = with_broadcast
    fill(job, batch_of)
    emitted = [source.position for source in job.sources]
    trigger(job, 1, overtakes=True)
    (ack,) = job.acks("sink")
    assert ack.snapshot.in_flight == ()
    processed = seen(job)[: job.sink.seen.index(("barrier", 1))]
    files = [
        (part.at_sender, value)
        for part in taken(job)
        for rows in decode_rows(part.file.inline, combined=part.combined)
        for value in rows.data.column(0).to_pylist()
    ]
    assert files
    assert all(at_sender for at_sender, _ in files)
    assert len(processed) + len(files) == sum(emitted)
