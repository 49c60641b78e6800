"""The loop of one subtask: alignment, end of input, back-pressure, failure, time."""

import msgspec
import pytest

from penstock.config.settings import JobSettings
from penstock.core.elements import MAX_TIMESTAMP, BarrierKind, Watermark, WatermarkStatus
from penstock.core.snapshot import OperatorStateSnapshot
from penstock.graph.task_deployment import (
    AllToAll,
    InputSpec,
    OperatorRestore,
    PeerTable,
    encode_deployment,
    encode_peers,
)
from penstock.rpc.messages import (
    AskTasks,
    AssignSplits,
    CancelTasks,
    CheckpointAborted,
    CheckpointDeclined,
    DeployPeers,
    DeployTasks,
    FinishTasks,
    OutputPublished,
    TasksReported,
    TaskState,
    TriggerCheckpoint,
)
from penstock.task.chain.background import SLOW_MS
from penstock.task.drive.subtask import StepResult


def running(world, **options):
    made = world(**options)
    made.deploy()
    made.settle()
    return made


def test_a_subtask_goes_from_deploying_to_running_and_passes_rows(world, batch_of):
    w = running(world)
    assert w.states("source") == w.states("sink") == ["DEPLOYING", "INITIALIZING", "RUNNING"]
    w.sources[0].script.extend([batch_of(1, 2), Watermark(10), batch_of(3)])
    w.settle()
    assert w.sink.seen == [1, 2, ("watermark", 10), 3]


def test_the_barrier_waits_for_all_channels_and_rows_behind_it_wait_too(world, batch_of):
    w = running(world, sources=2)
    first, second = w.subtasks("source")
    first.trigger(1, BarrierKind.CHECKPOINT)
    w.sources[0].script.append(batch_of(10))
    while first.step() is StepResult.BUSY:
        pass
    w.transport.pump_all()
    sink = w.subtasks("sink")[0]
    while sink.step() is StepResult.BUSY:
        pass
    assert w.sink.seen == []
    w.sources[1].script.append(batch_of(20))
    while second.step() is StepResult.BUSY:
        pass
    second.trigger(1, BarrierKind.CHECKPOINT)
    w.clock.advance(30)
    w.settle()
    assert w.sink.seen == [20, ("barrier", 1), 10]
    (ack,) = w.acks("sink")
    assert ack.metrics.alignment_ms == 30
    assert ack.metrics.processed_bytes > 0, "20 came in while the second barrier was waited for"
    assert ack.metrics.buffered_bytes == ack.metrics.processed_bytes, "10, of the same size, was held back"


def test_one_channel_waits_for_nothing(world, batch_of):
    w = running(world)
    w.sources[0].script.append(batch_of(1))
    w.trigger(1)
    w.settle()
    (ack,) = w.acks("sink")
    assert (ack.metrics.alignment_ms, ack.metrics.processed_bytes, ack.metrics.buffered_bytes) == (0, 0, 0)


def test_an_ack_carries_positions_and_the_inputs_watermark(world, batch_of):
    w = running(world)
    w.sources[0].script.extend([batch_of(1, 2, 3), Watermark(7)])
    w.settle()
    w.trigger(1)
    w.settle()
    assert w.acks("source")[0].snapshot.operator[0].items == (3,)
    (own,) = w.acks("sink")[0].snapshot.operator
    assert (own.uid, own.mode, own.items) == ("sink", "subtask", (7,))


def test_the_inputs_watermark_comes_back_at_a_restore_as_the_lowest_of_all_subtasks(world):
    w = world()
    saved = [OperatorStateSnapshot(uid="sink", name="__input_watermark", mode="subtask", items=(n,)) for n in (9, 5)]
    w.deploy(restore=(OperatorRestore(uid="sink", operator=tuple(saved)),), restored_checkpoint=3)
    w.settle()
    assert w.sink.seen == [("watermark", 5)]
    assert w.sink.context.restored == tuple(saved)
    assert w.sink.context.restored_checkpoint == 3


@pytest.mark.parametrize(("saved", "seen"), [((MAX_TIMESTAMP,), []), ((MAX_TIMESTAMP, 5), [("watermark", 5)])])
def test_the_end_of_time_does_not_come_back_at_a_restore(world, saved, seen):
    w = world()
    states = tuple(
        OperatorStateSnapshot(uid="sink", name="__input_watermark", mode="subtask", items=(n,)) for n in saved
    )
    w.deploy(restore=(OperatorRestore(uid="sink", operator=states),), restored_checkpoint=3)
    w.settle()
    assert w.sink.seen == seen
    w.sources[0].script.append(Watermark(7))
    w.settle()
    assert w.sink.seen == [*seen, ("watermark", 7)]


def test_end_of_input_then_barriers_go_on_until_told_to_finish(world, batch_of):
    w = running(world, sources=2)
    w.sources[0].script.append(batch_of(1))
    w.sources[0].ended = True
    w.settle()
    assert w.ended() == ["source"]
    w.trigger(1)
    w.settle()
    assert len(w.acks("sink")) == 1
    assert not w.acks("sink")[0].snapshot.finished
    w.sources[1].ended = True
    w.settle()
    assert sorted(w.ended()) == ["sink", "source", "source"]
    assert w.sink.seen[-2:] == [("watermark", MAX_TIMESTAMP), "finish"]
    w.trigger(2)
    w.settle()
    assert w.acks("sink")[1].snapshot.finished
    assert "FINISHED" not in w.states("sink")
    w.finish()
    w.settle()
    assert w.states("sink")[-1] == w.states("source", 1)[-1] == "FINISHED"
    assert w.sink.closed == 1


def test_finishing_waits_for_a_publication_under_way(world):
    w = running(world)
    w.sources[0].ended = True
    w.sink.publishing = True
    w.settle()
    w.finish()
    w.settle()
    assert w.states("sink")[-1] == "RUNNING"
    w.sink.publishing = False
    w.settle()
    assert w.states("sink")[-1] == "FINISHED"


def test_drain_sends_the_end_of_time_before_the_barrier_and_stop_does_not(world, batch_of):
    for kind, expected in (
        ("drain", [("watermark", MAX_TIMESTAMP), "finish", ("barrier", 1)]),
        ("stop", [("barrier", 1)]),
    ):
        w = running(world)
        w.trigger(1, kind)
        w.settle()
        w.sources[0].script.append(batch_of(5))
        w.settle()
        assert w.sink.seen == expected
        assert w.sources[0].suspended
        w.finish()
        w.settle()
        assert w.states("source")[-1] == w.states("sink")[-1] == "FINISHED"


def test_drain_ends_time_downstream_of_idle_sources_too(world):
    w = running(world, sources=2)
    for source in w.sources:
        source.script.extend([Watermark(10), WatermarkStatus(idle=True)])
    w.settle()
    w.trigger(1, "drain")
    w.settle()
    assert w.sink.seen[:2] == [("watermark", 10), ("idle", True)]
    assert w.sink.seen[2:] == [("idle", False), ("watermark", MAX_TIMESTAMP), "finish", ("barrier", 1)]


def test_a_full_output_stops_the_source_but_not_its_barriers(world, batch_of):
    settings = JobSettings(checkpoint_root="memory://u", buffer_timeout_ms=0, buffer_size_bytes=64, floating_buffers=0)
    w = running(world, settings=settings)
    source = w.subtasks("source")[0]
    w.sources[0].script.extend(batch_of(*range(100)) for _ in range(50))
    results = []
    while not results or results[-1] is StepResult.BUSY:
        results.append(source.step())
    assert results[-1] is StepResult.BACKPRESSURED
    assert w.sources[0].polled_backpressured == 1
    assert w.sources[0].script
    w.trigger(1)
    while source.step() is StepResult.BUSY:
        pass
    assert len(w.acks("source")) == 1
    w.settle()
    assert len([x for x in w.sink.seen if isinstance(x, int)]) == 5000
    assert len(w.acks("sink")) == 1


def test_a_cut_that_holds_more_than_the_managed_memory_holds_up_the_rows_behind_it(world, batch_of):
    w = running(world)
    w.sink.state_size, w.sink.frozen_bytes = 10, 257 << 20
    w.trigger(1)
    w.sources[0].script.append(batch_of(1))
    w.settle(background=False)
    assert w.sink.seen == [("barrier", 1)]
    assert w.acks("sink") == []
    w.settle()
    assert w.sink.seen == [("barrier", 1), 1]
    assert len(w.acks("sink")) == 1


def test_a_sink_at_its_limit_takes_no_rows_but_lets_barriers_through(world, batch_of):
    w = running(world)
    w.sink.available = False
    w.sources[0].script.append(batch_of(1))
    w.settle()
    assert w.sink.seen == []
    w.trigger(1)
    w.settle()
    assert w.sink.seen == [1, ("barrier", 1)]
    w.sources[0].script.append(batch_of(2))
    w.settle()
    assert w.sink.seen == [1, ("barrier", 1)]
    assert w.subtasks("sink")[0].step() is StepResult.BACKPRESSURED


def test_a_sink_at_its_limit_takes_the_rows_before_a_barrier_that_was_announced(world, batch_of):
    settings = JobSettings(checkpoint_root="memory://u", buffer_timeout_ms=0, buffer_size_bytes=64, floating_buffers=0)
    w = running(world, settings=settings)
    w.sink.available = False
    w.sources[0].script.extend(batch_of(*range(100)) for _ in range(50))
    w.settle()
    assert w.sink.seen == []
    w.trigger(1)
    w.settle()
    assert not w.acks("sink"), "the barrier waits behind rows that have no credit"
    w.runtime("sink").handle(
        TriggerCheckpoint(job_id="job", run_id="run", generation=1, checkpoint_id=1, kind="checkpoint")
    )
    w.settle()
    assert len(w.acks("sink")) == 1
    taken = len(w.sink.seen)
    w.settle()
    assert len(w.sink.seen) == taken


def test_a_failing_operator_fails_its_subtask_with_its_own_frames_first(world, batch_of):
    w = running(world)
    w.sink.fail_on = 2
    w.sources[0].script.append(batch_of(1, 2, 3))
    w.settle()
    failed = w.of(TaskState)[-1]
    assert failed.state == "FAILED"
    assert "ValueError: cannot take 2" in failed.error
    assert "conftest.py" in failed.detail.splitlines()[1]
    assert failed.metrics["numRecordsIn"] == 3, "rows up to the one that failed count"
    assert w.sink.closed == 1
    assert w.subtasks("sink")[0].step() is StepResult.DONE
    assert w.states("source")[-1] == "RUNNING"


def test_cancelling_ends_all_subtasks_and_mails_afterwards_are_dropped(world, batch_of):
    w = running(world)
    w.broadcast(CancelTasks(job_id="job", generation=1))
    w.settle()
    assert w.states("source")[-1] == w.states("sink")[-1] == "CANCELED"
    w.trigger(1)
    w.complete(1)
    w.settle()
    assert not w.acks("source")


def test_splits_reach_the_attempt_they_were_meant_for(world):
    w = running(world, sources=2)
    for attempt in (1, 2):
        message = AssignSplits(
            job_id="job", generation=1, vertex_id="source", subtask=1, attempt=attempt,
            splits=({"id": str(attempt)},), no_more=False,
        )  # fmt: skip
        w.runtime("source").handle(message)
    w.settle()
    assert w.sources[0].splits == []
    assert w.sources[1].splits == [{"id": "1"}]


def test_messages_of_another_run_or_an_older_generation_are_dropped(world):
    w = running(world)
    w.complete(1)
    w.settle()
    for changes in ({"run_id": "other"}, {"generation": 0}):
        from penstock.core.permits import CommitPermit
        from penstock.rpc.messages import CheckpointCompleted

        permit = CommitPermit(job_id="job", run_id="run", generation=1, checkpoint_id=2, manifest_sequence=1)
        w.broadcast(CheckpointCompleted(permit=msgspec.structs.replace(permit, **changes)))
    w.settle()
    assert [x for x in w.sink.seen if x[0] == "complete"] == [("complete", 1)]


def test_an_earlier_leader_has_no_effect_once_a_later_one_has_sent_a_command(world):
    w = running(world)
    w.complete(1, generation=2)
    w.settle()
    old = {"job_id": "job", "generation": 1}
    for command in (
        CancelTasks(**old),
        FinishTasks(**old),
        CheckpointAborted(**old, run_id="run", checkpoint_id=2),
        AssignSplits(**old, vertex_id="source", subtask=0, attempt=1, splits=({"id": "late"},), no_more=False),
    ):
        w.broadcast(command)
    w.settle()
    assert w.sources[0].splits == []
    assert not [seen for seen in w.sink.seen if seen[0] == "aborted"]
    assert not any(subtask.has_ended for subtask in w.runtime("source").subtasks)


def told(w, vertex="source"):
    """Return what the worker of a vertex tells the leader of generation 2."""
    w.runtime(vertex).handle(AskTasks(job_id="job", generation=2))
    return w.of(TasksReported)[-1]


def test_a_worker_tells_a_new_leader_what_runs_in_it(world):
    w = running(world)
    before = told(w)
    assert (before.run_id, before.attempt, before.generation, before.stopping) == ("run", 1, 2, False)
    assert [(task.state, task.splits) for task in before.tasks] == [("RUNNING", None)]
    split = AssignSplits(
        job_id="job", generation=2, vertex_id="source", subtask=0, attempt=1, splits=({"id": "a"},), no_more=False
    )
    w.runtime("source").handle(split)
    assert told(w).tasks[0].splits == ("a",), "the subtask has not taken it yet, but it has it"
    w.runtime("source").handle(msgspec.structs.replace(split, generation=1, splits=({"id": "b"},)))
    assert told(w).tasks[0].splits == ("a",)


def test_a_worker_tells_a_new_leader_of_a_stop_and_of_the_end_of_input(world):
    w = running(world)
    w.trigger(7, "stop")
    assert told(w).stopping, "also before the source has seen it"
    assert told(w).newest_checkpoint == 7
    w = running(world)
    w.sources[0].ended = True
    w.settle()
    assert told(w).tasks[0].input_ended


def test_a_worker_without_tasks_has_none_to_tell_of(world):
    w = running(world)
    w.runtime("source").handle(AskTasks(job_id="another", generation=2))
    assert w.of(TasksReported)[-1].tasks == ()


def test_a_newer_barrier_makes_the_subtask_decline_the_older(world):
    w = running(world, sources=2)
    first, second = w.subtasks("source")
    first.trigger(1, BarrierKind.CHECKPOINT)
    first.trigger(2, BarrierKind.CHECKPOINT)
    second.trigger(2, BarrierKind.CHECKPOINT)
    w.settle()
    # channel 0 is blocked at barrier 1 until channel 1 brings barrier 2
    (declined,) = w.of(CheckpointDeclined)
    assert declined.checkpoint_id == 1
    assert [a.checkpoint_id for a in w.acks("sink")] == [2]


def test_an_aborted_checkpoint_frees_its_channels(world, batch_of):
    w = running(world, sources=2)
    w.subtasks("source")[0].trigger(1, BarrierKind.CHECKPOINT)
    w.sources[0].script.append(batch_of(1))
    w.settle()
    assert w.sink.seen == []
    w.abort(1)
    w.settle()
    assert sorted(map(str, w.sink.seen)) == sorted(map(str, [("aborted", 1), 1]))


def test_async_work_comes_back_in_the_subtasks_own_step(world):
    w = running(world)
    came = []
    w.sink.context.run_async(lambda: 42, lambda result, error: came.append((result, error)), "a call")
    w.sink.context.report_published(("c1",))
    w.blocking.run_all()
    assert came == []
    w.settle()
    assert came == [(42, None)]
    assert w.of(OutputPublished)[0].committable_ids == ("c1",)


def test_work_that_waits_in_the_subtasks_thread_is_a_slow_call_until_it_ends(world):
    w = running(world)
    slow = lambda: [(call.what, call.for_ms) for call in w.runtime("sink").metrics({})[0].slow]

    def work():
        w.clock.advance(SLOW_MS)
        return slow()

    assert w.sink.context.run_waiting(work, "flushing to topic t") == [("flushing to topic t", SLOW_MS)]
    assert slow() == []


def test_an_error_in_async_work_that_the_operator_raises_fails_the_subtask(world):
    w = running(world)

    def done(result, error):
        raise error

    w.sink.context.run_async(lambda: 1 / 0, done, "a call")
    w.settle()
    assert "ZeroDivisionError" in w.of(TaskState)[-1].error


def test_time_is_booked_and_published_under_flinks_names(world, batch_of):
    w = running(world)
    w.sources[0].script.append(batch_of(1, 2))
    w.settle()
    w.clock.advance(1500)
    w.settle()
    metrics = w.runtime("sink").metrics({})[0].tasks["sink/0"]
    assert metrics["numRecordsIn"] == 2
    assert metrics["idleTimeMsPerSecond"] == 1000
    assert metrics["busyTimeMsPerSecond"] == 0


def test_a_second_deployment_while_the_first_runs_is_refused(world):
    w = running(world)
    w.deploy()
    refused = w.of(TaskState)[-1]
    assert refused.state == "FAILED"
    assert "still runs an earlier attempt" in refused.error


def keyed_by_rule(world, epoch):
    """Deploy with the sink's input as "all subtasks of the source", whose table is of deployment `epoch`."""
    (edge,) = world.deployment("sink", 0).inputs
    inputs = (InputSpec(input_index=0, schema=edge.schema, all_of=AllToAll(0, "source", 1)),)
    peers = PeerTable(epoch=epoch, workers=(("w-source", "memory:w-source"),), places={"source": (0,)})
    sink = encode_deployment(msgspec.structs.replace(world.deployment("sink", 0), inputs=inputs))
    source = encode_deployment(world.deployment("source", 0))
    world.runtime("sink").handle(DeployPeers(job_id="job", table=encode_peers(peers)))
    for vertex, task in (("source", source), ("sink", sink)):
        world.runtime(vertex).handle(DeployTasks(job_id="job", generation=1, tasks=(task,)))


def test_the_channels_of_a_subtask_follow_from_the_table_of_peers(world, batch_of):
    w = world()
    w.sources[0].script.append(batch_of(3, 4))
    keyed_by_rule(w, epoch=1)
    w.settle()
    assert w.sink.seen == [3, 4]


def test_a_table_of_peers_of_another_deployment_fails_the_task(world):
    w = world()
    keyed_by_rule(w, epoch=2)
    refused = w.of(TaskState)[-1]
    assert refused.state == "FAILED"
    assert "lacks the peer table" in refused.error


def test_a_source_with_nothing_to_give_is_asked_less_and_less_often(world, batch_of):
    w = running(world)
    (source,) = w.subtasks("source")

    def waits(count):
        found = []
        for _ in range(count):
            assert source.step() is StepResult.IDLE
            found.append(source.next_deadline_ms() - w.clock.monotonic_ms())
            w.clock.advance(found[-1])
        return found

    quiet = waits(6)
    assert quiet == sorted(quiet)
    assert quiet[-1] == 160
    w.sources[0].script.append(batch_of(1))
    while source.step() is StepResult.BUSY:
        pass
    assert waits(2) == [20, 40]  # the step that ended the loop above had asked for the first 10 ms


def after_a_report(world, batch_of):
    """Return the world and the metrics of its sink, which has published them after 100 rows."""
    w = running(world)
    w.sources[0].script.append(batch_of(*range(100)))
    w.settle()
    w.clock.advance(1_000)
    w.settle()
    return w, w.subtasks("sink")[0].metrics


def test_rates_of_a_subtask_that_publishes_nothing_are_those_of_its_present_state(world, batch_of):
    w, metrics = after_a_report(world, batch_of)
    now = w.clock.monotonic_ms()
    assert metrics.latest["numRecordsInPerSecond"] > 0
    assert metrics.at(now + 4_999) is metrics.latest
    stale = metrics.at(now + 5_000)
    assert stale["numRecordsInPerSecond"] == stale["busyTimeMsPerSecond"] == 0
    assert stale["idleTimeMsPerSecond"] == 1_000
    assert stale["numRecordsIn"] == 100
    assert stale.keys() == metrics.latest.keys()


def test_a_report_after_a_barrier_has_not_less_than_the_ack(world, batch_of):
    w, metrics = after_a_report(world, batch_of)
    w.sources[0].script.append(batch_of(*range(20)))
    w.settle()
    assert metrics.latest["numRecordsIn"] == 100
    known = {**metrics.latest}
    assert metrics.at_barrier(unprocessed=0)["numRecordsIn"] == 120
    assert metrics.latest == known | {"numRecordsIn": 120.0, "numRecordsOut": 120.0}
    assert metrics.at_barrier(unprocessed=50)["numRecordsIn"] == 70
    assert metrics.latest["numRecordsIn"] == 120.0


def test_rows_that_wait_for_a_barrier_are_the_used_network_memory_of_the_worker(world, batch_of):
    w = running(world, sources=2)
    w.subtasks("source")[0].trigger(1, BarrierKind.CHECKPOINT)
    w.sources[0].script.append(batch_of(1))
    w.settle()
    w.clock.advance(1500)
    w.settle()
    used = lambda: w.runtime("sink").metrics({"processCpuMs": 1.0})[0].worker
    assert used()["networkMemoryUsed"] > 0
    w.abort(1)
    w.settle()
    assert used() == {"processCpuMs": 1.0, "managedMemoryUsed": 0.0, "networkMemoryUsed": 0.0}


def test_with_a_debloating_target_a_subtask_tells_what_waits_by_bytes_and_time(world, batch_of):
    settings = JobSettings(checkpoint_root="memory://unit", buffer_timeout_ms=0, buffer_debloat_target_ms=100)
    w = running(world, settings=settings)
    (source,), (sink,) = w.subtasks("source"), w.subtasks("sink")
    take = w.sink.process_batch

    def take_slowly(*rows):
        w.clock.advance(100)
        take(*rows)

    w.sink.process_batch = take_slowly
    w.sources[0].script += [batch_of(*range(100))] * 40
    for taken in (True,) * 3 + (False,) * 5:
        source.step()
        w.transport.pump_all()
        if taken:
            sink.step()
    told = sink.metrics.read()
    assert told["inputQueueSize"] == sink.gate.bytes_queued > 0
    assert told["debloatedBufferSize"] == sink.gate.window
    assert 0 < told["estimatedTimeToConsumeBuffersMs"] <= 100
    w.settle()
    assert sink.metrics.read()["inputQueueSize"] == 0


def test_without_a_target_a_subtask_tells_no_window(world):
    assert "debloatedBufferSize" not in running(world).subtasks("sink")[0].metrics.read()
