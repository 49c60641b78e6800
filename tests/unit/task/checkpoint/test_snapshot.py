"""From barrier to ack: order, retries, aborts, staged output, failpoints."""

from itertools import permutations

import pytest

from penstock.core import failpoints
from penstock.core.errors import StorageError
from penstock.core.snapshot import Committable
from penstock.operators.operator import StagedOutput
from penstock.rpc.messages import CheckpointAck, CheckpointDeclined, TaskState, TriggerCheckpoint
from penstock.state.memory.limits import PRODUCTION
from penstock.task.checkpoint.snapshot_pipeline import MAX_ATTEMPTS

LARGE = PRODUCTION.inline_state_bytes


def running(world, state_size=LARGE):
    w = world()
    w.sink.state_size = state_size
    w.deploy()
    w.settle()
    return w


def fail_puts(w, times):
    left = [times]

    def fault(operation, key, phase):
        if operation == "put" and phase == "before" and left[0]:
            left[0] -= 1
            raise StorageError("the store is down")

    w.store.fault = fault
    return left


def positions(ack):
    return [segment.position for segment in ack.snapshot.keyed[0].segments]


def test_small_segments_travel_in_the_ack_and_large_ones_lie_in_one_object(world):
    w = running(world, state_size=100)
    w.trigger(1)
    w.settle()
    (segment,) = w.acks("sink")[0].snapshot.keyed[0].segments
    assert segment.file.inline == b"\x01" * 100
    assert w.store.list("") == []
    w.sink.state_size = LARGE
    w.trigger(2)
    w.settle()
    _, second = w.acks("sink")[1].snapshot.keyed[0].segments
    assert second.file.path == w.store.list("data/")[0] == "data/run/w-sink-1.pack"
    assert w.acks("sink")[1].metrics.new_bytes == LARGE


def test_pages_are_copied_between_batches(world, batch_of):
    w = running(world)
    w.sink.pages = 200
    w.trigger(1)
    sink = w.subtasks("sink")[0]
    w.subtasks("source")[0].step()
    w.subtasks("source")[0].step()
    w.sources[0].script.append(batch_of(1))
    w.subtasks("source")[0].step()
    w.transport.pump_all()
    for _ in range(3):
        sink.step()
    assert w.sink.seen == [("barrier", 1), 1]
    assert not w.background.waiting
    w.settle()
    assert w.acks("sink")


def test_a_failed_upload_is_tried_again_and_then_acked(world):
    w = running(world)
    fail_puts(w, 2)
    w.trigger(1)
    w.settle()
    assert not w.acks("sink")
    for _ in range(2):
        w.clock.advance(w.subtasks("sink")[0].next_deadline_ms() - w.clock.monotonic_ms())
        w.settle()
    for _ in range(3):
        w.clock.advance(1000)
        w.settle()
    assert positions(w.acks("sink")[0]) == [1]


def give_up(w):
    for _ in range(MAX_ATTEMPTS + 2):
        w.settle()
        w.clock.advance(10_000)
    w.settle()


def test_an_upload_given_up_declines_and_its_segments_go_with_the_next(world):
    w = running(world)
    fail_puts(w, 100)
    w.trigger(1)
    give_up(w)
    (declined,) = w.of(CheckpointDeclined)
    assert declined.checkpoint_id == 1
    assert "the store is down" in declined.reason
    fail_puts(w, 0)
    w.trigger(2)
    w.settle()
    assert [ack.checkpoint_id for ack in w.acks("sink")] == [2]
    assert positions(w.acks("sink")[0]) == [1, 2]
    assert w.states("sink")[-1] == "RUNNING"


def test_acks_keep_the_order_of_the_barriers_whatever_the_background_does(world):
    w = running(world)
    for checkpoint in (1, 2, 3):
        w.trigger(checkpoint)
    w.settle(background=False)
    assert not w.acks("sink")
    w.settle()
    assert [ack.checkpoint_id for ack in w.acks("sink")] == [1, 2, 3]
    assert [positions(ack) for ack in w.acks("sink")] == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.parametrize("events", sorted(set(permutations(("upload", "abort", "complete", "next")))))
def test_every_interleaving_names_every_segment_up_to_its_barrier(world, events):
    w = running(world)
    w.trigger(1)
    w.settle(background=False)
    for event in events:
        if event == "upload":
            w.settle()
        elif event == "abort":
            w.abort(1)
            w.settle(background=False)
        elif event == "complete":
            w.complete(1)
            w.settle(background=False)
        else:
            w.trigger(2)
            w.settle(background=False)
    w.settle()
    acks = w.acks("sink")
    assert acks[-1].checkpoint_id == 2
    assert positions(acks[-1]) == [1, 2]
    acked_first = events.index("upload") < events.index("abort")
    assert [ack.checkpoint_id for ack in acks] == ([1, 2] if acked_first else [2])


@pytest.mark.parametrize("fails", range(2 * MAX_ATTEMPTS + 1))
def test_no_number_of_failed_uploads_loses_a_segment(world, fails):
    w = running(world)
    fail_puts(w, fails)
    for checkpoint in (1, 2, 3):
        w.trigger(checkpoint)
        give_up(w)
    last = w.acks("sink")[-1]
    assert last.checkpoint_id == 3
    assert positions(last) == [1, 2, 3]
    over = {ack.checkpoint_id for ack in w.acks("sink")} | {d.checkpoint_id for d in w.of(CheckpointDeclined)}
    assert over == {1, 2, 3}


def staged(number, size=20_000):
    committable = Committable(id=f"sink/run/0/{number}", uid="sink", run_id="run", subtask=0, checkpoint_id=number)
    return StagedOutput(committable, (lambda: b"a" * size, lambda: b"b" * size))


def test_staged_output_is_written_before_the_ack_and_given_back_to_the_sink(world):
    w = running(world, state_size=0)
    w.sink.staged = {"sink/run/0/1": staged(1)}
    w.trigger(1)
    w.settle()
    (committable,) = w.acks("sink")[0].snapshot.committables
    first, second = committable.files
    assert first.path == second.path == "pending/run/w-sink-1.pack"
    assert (first.offset, second.offset) == (0, 20_000)
    assert ("written", "sink/run/0/1", 2) in w.sink.seen
    assert committable.size_bytes == 40_000


def test_output_offered_again_while_it_is_being_written_is_written_once(world):
    w = running(world, state_size=0)
    w.sink.staged = {"sink/run/0/1": staged(1)}
    w.trigger(1)
    w.settle(background=False)
    w.sink.staged["sink/run/0/2"] = staged(2)
    w.trigger(2)
    w.settle(background=False)
    w.settle()
    assert [len(ack.snapshot.committables) for ack in w.acks("sink")] == [1, 2]
    assert len(w.store.list("pending/")) == 2
    assert all(c.files for ack in w.acks("sink") for c in ack.snapshot.committables)


def test_state_and_output_of_one_checkpoint_make_one_object_each(world):
    w = running(world)
    w.sink.staged = {"sink/run/0/1": staged(1)}
    w.trigger(1)
    w.settle()
    assert len(w.store.list("data/")) == len(w.store.list("pending/")) == 1


def test_a_store_that_keeps_other_bytes_than_it_was_given_is_found_out(world):
    w = running(world)
    put = w.store.put
    w.store.put = lambda key, data: put(key, data[:-1] + b"?")
    w.trigger(1)
    give_up(w)
    assert "does not hold what was written" in w.of(CheckpointDeclined)[0].reason


@pytest.mark.parametrize("point", ["task.before_ack", "task.after_ack", "segment.upload"])
def test_failpoints_lie_where_they_say(world, point, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", f"{point}=error")
    monkeypatch.setenv("PENSTOCK_FAILPOINT_DIR", str(tmp_path))
    failpoints.reset()
    try:
        w = running(world)
        w.subtasks("source")[0].cancel()
        w.settle()
        w = running(world)
        w.trigger(1)
        w.settle()
    finally:
        monkeypatch.undo()
        failpoints.reset()
    assert (tmp_path / f"{point}.hit").exists()
    assert [s.state for s in w.of(TaskState)].count("FAILED") == 1
    expected = {"task.before_ack": 0, "task.after_ack": 1, "segment.upload": 1}
    assert len(w.of(CheckpointAck)) >= expected[point]
    if point != "task.after_ack":
        assert not w.acks("sink") or not w.acks("source")


def test_frozen_pages_are_copied_at_once_while_the_sink_takes_no_rows(world):
    job = world()
    job.deploy()
    job.settle()
    job.sink.available, job.sink.state_size, job.sink.pages = False, 10, 1_000
    job.broadcast(TriggerCheckpoint(job_id="job", run_id="run", generation=1, checkpoint_id=1, kind="checkpoint"))
    job.settle()
    assert len(job.acks("sink")) == 1
