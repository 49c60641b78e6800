"""Chains with an operator whose rows get ready outside calls: back-pressure while a barrier comes."""

from collections import deque

import msgspec
import pytest

from penstock.config.settings import JobSettings
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.operator import Operator
from penstock.rpc.worker_commands import TriggerCheckpoint
from penstock.task.row_pieces import LEAST_ROWS
from penstock.task.step import StepResult

CAPACITY = 10


class Asking(Operator):
    """Holds rows until the test says that so many are ready."""

    def __init__(self, rows):
        self.rows = rows
        self.waiting, self.ready, self.most = deque(), 0, 0

    def open(self, context):
        """Nothing to open."""

    @property
    def available(self):
        return len(self.waiting) < CAPACITY

    def process_batch(self, batch, input_index, out):
        self.waiting.extend(batch.data.column(0).to_pylist())
        self.most = max(self.most, len(self.waiting))

    def go_on(self, out):
        count = min(self.ready, len(self.waiting))
        if count:
            self.ready -= count
            out.batch(self.rows(*(self.waiting.popleft() for _ in range(count))))
        return bool(count)


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
    assert asking.asking.most <= CAPACITY - 1 + LEAST_ROWS
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
