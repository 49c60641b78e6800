"""Chains with an operator whose rows get ready outside calls: back-pressure while a barrier comes, the end of input."""

from collections import deque

import msgspec
import pytest

from penstock.config.settings import JobSettings
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.operator import Capabilities, Operator
from penstock.rpc.messages import CancelTasks, TriggerCheckpoint
from penstock.task.drive.batch_sizer import FIRST_ROWS
from penstock.task.drive.subtask import StepResult

CAPACITY = 10


class Asking(Operator):
    """Holds rows until the test says that so many are ready."""

    def __init__(self, rows):
        self.rows = rows
        self.waiting, self.ready, self.most = deque(), 0, 0
        self.finished = 0

    def open(self, context):
        return Capabilities(pending_output=self, available=lambda: self.available)

    @property
    def available(self):
        return len(self.waiting) < CAPACITY

    def process_batch(self, batch, input_index, out):
        self.waiting.extend(batch.data.column(0).to_pylist())
        self.most = max(self.most, len(self.waiting))

    def emit_ready(self, out):
        count = min(self.ready, len(self.waiting))
        if count:
            self.ready -= count
            out.batch(self.rows(*(self.waiting.popleft() for _ in range(count))))
        return bool(count)

    @property
    def has_pending_output(self):
        return bool(self.waiting)

    def finish(self, out):
        assert not self.waiting, "a worker's other tasks would wait too"
        self.finished += 1


@pytest.fixture
def asking(world, batch_of):
    """A source, then an `Asking` and a sink in one chain, with little room between."""
    made = world(
        settings=JobSettings(
            checkpoint_root="memory://u", buffer_timeout_ms=0, buffer_size_bytes=64, floating_buffers=0
        )
    )
    made.asking = Asking(batch_of)
    made._new["map_async"] = deque([made.asking])
    deployment = made.deployment

    def chained(vertex, subtask):
        task = deployment(vertex, subtask)
        if vertex == "sink":
            (sink,) = task.operators
            ask = OperatorSpec(uid="ask", name="ask", kind="map_async", output_schema=sink.output_schema)
            task = msgspec.structs.replace(task, operators=(ask, sink))
        return task

    made.deployment = chained
    made.deploy()
    made.settle()
    return made


def announce(world, checkpoint_id):
    """Trigger at the source, and tell the other task that a barrier comes."""
    world.trigger(checkpoint_id)
    message = TriggerCheckpoint(
        job_id="job", run_id="run", generation=1, checkpoint_id=checkpoint_id, kind="checkpoint"
    )
    world.runtime("sink").handle(message)
    world.settle()


def values(world):
    return [item for item in world.sink.seen if isinstance(item, int)]


def test_an_operator_that_is_full_takes_no_rows_for_a_barrier_either(asking, batch_of):
    sent = 0
    for checkpoint in (1, 2, 3):
        asking.sources[0].script.extend(batch_of(*range(sent + n, sent + n + 100)) for n in range(0, 2000, 100))
        sent += 2000
        asking.settle()
        announce(asking, checkpoint)
        assert len(asking.acks("sink")) == checkpoint - 1, "the barrier waits behind rows that are not taken"
        assert asking.subtasks("sink")[0].step() is StepResult.BACKPRESSURED
        asking.asking.ready = 2000
        asking.settle()
        assert len(asking.acks("sink")) == checkpoint
    assert asking.asking.most <= CAPACITY - 1 + FIRST_ROWS
    asking.asking.ready = sent
    asking.settle()
    assert values(asking) == list(range(sent))


def test_a_full_operator_before_a_sink_at_its_limit_gets_rid_of_its_rows_when_a_barrier_comes(asking, batch_of):
    asking.sink.available = False
    asking.asking.waiting.extend(range(CAPACITY))
    asking.asking.ready = CAPACITY + 200
    asking.sources[0].script.append(batch_of(*range(CAPACITY, CAPACITY + 200)))
    asking.settle()
    assert values(asking) == [], "the sink takes none"
    announce(asking, 1)
    assert len(asking.acks("sink")) == 1
    assert values(asking) == list(range(CAPACITY + 200))
    asking.asking.waiting.append(-1)
    asking.asking.ready = 1
    asking.settle()
    assert -1 not in values(asking), "that barrier has come"


def ending(world, batch):
    """Rows come, then the end of input, and none of them is ready."""
    world.sources[0].script.append(batch)
    world.sources[0].ended = True
    world.settle()


def test_at_the_end_of_input_mails_and_barriers_do_not_wait_for_calls(asking, batch_of):
    ending(asking, batch_of(1, 2, 3))
    assert asking.ended() == ["source"]
    assert asking.subtasks("sink")[0].step() is StepResult.IDLE
    announce(asking, 1)
    (ack,) = asking.acks("sink")
    assert not ack.snapshot.finished, "rows are still to come"
    asking.complete(1)
    asking.settle()
    assert asking.sink.seen[-1] == ("complete", 1)
    asking.asking.ready = 2
    asking.settle()
    assert (values(asking), asking.asking.finished) == ([1, 2], 0)
    asking.sink.available = False
    asking.asking.ready = 1
    asking.settle()
    assert values(asking) == [1, 2, 3], "no checkpoint may come that would relieve the sink"
    assert asking.sink.seen[-1] == "finish"
    assert asking.asking.finished == 1
    assert asking.ended() == ["source", "sink"]
    announce(asking, 2)
    assert asking.acks("sink")[1].snapshot.finished


def test_a_task_that_waits_for_the_last_calls_can_be_cancelled(asking, batch_of):
    ending(asking, batch_of(1))
    asking.broadcast(CancelTasks(job_id="job", generation=1))
    asking.settle()
    assert asking.states("sink")[-1] == "CANCELED"
    assert asking.ended() == ["source"]


def test_behind_the_barrier_that_stops_the_job_the_rest_is_not_emitted(asking, batch_of):
    ending(asking, batch_of(1))
    asking.trigger(1, "stop")
    asking.settle()
    asking.asking.ready = 1
    asking.settle()
    assert values(asking) == []
    assert asking.sink.seen[-1] == ("barrier", 1)
    asking.finish()
    asking.settle()
    assert asking.states("sink")[-1] == "FINISHED"


def draining(world, *rows):
    """A drain has come behind rows of which none is ready."""
    world.asking.waiting.extend(rows)
    world.trigger(1, "drain")
    world.settle()
    assert world.acks("sink") == []


def test_a_drain_waits_for_calls_while_mails_and_other_tasks_go_on(asking):
    draining(asking, 1, 2, 3)
    assert asking.subtasks("sink")[0].step() is StepResult.IDLE, "the thread is free"
    asking.complete(7)
    asking.settle()
    assert asking.sink.seen[-1] == ("complete", 7)
    asking.asking.ready = 2
    asking.settle()
    assert (values(asking), asking.acks("sink")) == ([1, 2], [])
    asking.sink.available = False
    asking.asking.ready = 1
    asking.settle()
    assert values(asking) == [1, 2, 3], "the sink is relieved by no other checkpoint than this one"
    assert len(asking.acks("sink")) == 1
    assert asking.sink.seen[-2:] == ["finish", ("barrier", 1)]
    assert asking.asking.finished == 1
    asking.finish()
    asking.settle()
    assert asking.states("sink")[-1] == "FINISHED"


def test_a_drain_that_waits_can_be_cancelled(asking):
    draining(asking, 1)
    asking.broadcast(CancelTasks(job_id="job", generation=1))
    asking.settle()
    assert asking.states("sink")[-1] == "CANCELED"
    assert asking.acks("sink") == []


def test_a_drain_that_is_called_off_while_it_waits_is_not_acknowledged(asking):
    draining(asking, 1)
    asking.abort(1)
    asking.asking.ready = 1
    asking.settle()
    assert (values(asking), asking.acks("sink")) == ([1], [])


def test_timers_of_the_clock_do_not_keep_a_drain_busy(asking):
    draining(asking, 1)
    subtask = asking.subtasks("sink")[0]
    subtask._chain._timed = ((0, Due()),)
    assert subtask.next_deadline_ms() > asking.clock.monotonic_ms()


class Due:
    """A timer that is due."""

    next_timer_ms = 0
