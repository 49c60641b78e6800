"""A task whose rows wait for state in the object store: what passes them, what waits too, and what a barrier takes."""

from collections import deque

import msgspec
import pyarrow as pa
import pytest

from penstock.config.settings import JobSettings
from penstock.core.elements import MAX_TIMESTAMP, Watermark
from penstock.core.errors import StorageError
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.task_deployment import OperatorRestore, RestoredRows
from penstock.network.in_flight import decode_rows
from penstock.operators.aggregates.running_operators import RunningAggregateOperator
from penstock.rpc.messages import LetBarriersOvertake

COUNTED = schema_to_text(pa.schema([pa.field("x", pa.int64()), pa.field("n", pa.int64(), nullable=False)]))
COUNT = {"key": ["x"], "aggregates": [{"alias": "n", "fn": "count", "column": None}]}


@pytest.fixture
def start(world, tmp_path):
    """Start a source, and a count of each number in a chain with the sink; with the state of an acknowledgement."""

    def started(acked=None, **settings):
        settings = {"state_backend": "remote", "unaligned_checkpoints": True, **settings}
        made = world(
            settings=JobSettings(checkpoint_root="memory://unit", buffer_timeout_ms=0, **settings), state_dir=tmp_path
        )
        edge = "edge" if settings["unaligned_checkpoints"] else ""
        made._new["running_aggregate"] = deque([RunningAggregateOperator()])
        deployment = made.deployment

        def counted(vertex, subtask):
            task = deployment(vertex, subtask)
            if vertex == "source":
                outputs = tuple(msgspec.structs.replace(one, overtakes=edge) for one in task.outputs)
                return msgspec.structs.replace(task, outputs=outputs)
            count = OperatorSpec(
                uid="count", name="", kind="running_aggregate", config=COUNT, stateful=True, output_schema=COUNTED
            )
            task = msgspec.structs.replace(
                task,
                operators=(count, *task.operators),
                inputs=tuple(msgspec.structs.replace(one, overtakes=edge) for one in task.inputs),
            )
            if acked is None:
                return task
            rows = tuple(RestoredRows(part=part, input_index=0) for part in acked.in_flight)
            restore = (OperatorRestore(uid="count", keyed=acked.keyed),)
            return msgspec.structs.replace(task, restore=restore, in_flight=rows, restored_checkpoint=1)

        made.deployment = counted
        record = made.sink.process_batch

        def noted(batch, input_index, out):
            record(batch, input_index, out)
            made.sink.seen[-batch.num_rows :] = zip(*batch.data.to_pydict().values(), strict=True)

        made.sink.process_batch = noted
        made.deploy()
        return made

    return started


@pytest.fixture
def saved(start, batch_of):
    """The state after 1, 2 and 3 came once each."""
    first = start()
    first.sources[0].script.append(batch_of(1, 2, 3))
    first.settle()
    first.trigger(1)
    first.settle()
    return first.acks("sink")[-1].snapshot


@pytest.fixture
def waiting(start, saved, batch_of):
    """The task after a restart: 1 and 1 have come, and wait. The fetch is kept from the background."""
    made = start(saved)
    made.sources[0].script.append(batch_of(1, 1))
    made.settle(background=False)
    assert made.sink.seen == []
    made.fetch = made.background.waiting.popleft()
    assert not made.background.waiting
    return made


def fetch(world):
    world.background.waiting.append(world.fetch)
    world.settle()


def acked(world, checkpoint_id):
    found = [ack.snapshot for ack in world.acks("sink") if ack.checkpoint_id == checkpoint_id]
    return found[-1] if found else None


def numbers(snapshot):
    return [
        value
        for part in snapshot.in_flight
        for rows in decode_rows(part.file.inline, combined=part.combined)
        for value in rows.data.column(0).to_pylist()
    ]


def test_rows_wait_until_their_state_has_come(waiting):
    subtask = waiting.subtasks("sink")[0]
    assert subtask.has_pending_output
    assert subtask.metrics.read()["numRecordsAwaitingState"] == 2
    fetch(waiting)
    assert waiting.sink.seen == [(1, 2), (1, 3)]
    assert not subtask.has_pending_output
    assert subtask.metrics.read()["numRecordsAwaitingState"] == 0


def test_a_barrier_takes_the_waiting_rows_along_and_a_restart_processes_them_first(waiting, start, batch_of):
    waiting.trigger(2)
    waiting.settle()
    assert waiting.sink.seen == [("barrier", 2)]
    assert numbers(acked(waiting, 2)) == [1, 1]
    again = start(acked(waiting, 2))
    again.sources[0].script.append(batch_of(1))
    again.settle()
    assert again.sink.seen == [(1, 2), (1, 3), (1, 4)]


def test_rows_are_counted_as_read_when_they_are_processed(waiting):
    waiting.trigger(2)
    waiting.settle()
    (ack,) = (ack for ack in waiting.acks("sink") if ack.checkpoint_id == 2)
    assert "numRecordsIn" not in ack.metrics.counts


def test_a_watermark_waits_and_a_barrier_that_may_overtake_passes_both(waiting):
    waiting.sources[0].script.append(Watermark(50))
    waiting.settle()
    waiting.trigger(2)
    waiting.settle()
    assert waiting.sink.seen == []
    waiting.broadcast(LetBarriersOvertake(job_id="job", run_id="run", generation=1, checkpoint_id=2))
    waiting.settle()
    assert waiting.sink.seen == [("barrier", 2)]
    assert numbers(acked(waiting, 2)) == [1, 1]
    fetch(waiting)
    assert waiting.sink.seen == [("barrier", 2), (1, 2), (1, 3), ("watermark", 50)]


@pytest.mark.parametrize("kind", ["savepoint", "stop"])
def test_a_savepoint_waits_and_has_no_rows_in_flight(waiting, kind):
    waiting.trigger(2, kind)
    waiting.settle()
    assert waiting.sink.seen == []
    fetch(waiting)
    assert waiting.sink.seen == [(1, 2), (1, 3), ("barrier", 2)]
    assert acked(waiting, 2).in_flight == ()


def test_the_end_of_input_waits(waiting):
    waiting.sources[0].ended = True
    waiting.settle()
    assert waiting.sink.seen == []
    fetch(waiting)
    assert waiting.sink.seen == [(1, 2), (1, 3), ("watermark", MAX_TIMESTAMP), "finish"]


def test_the_operator_fetches_the_state_when_the_background_could_not(waiting):
    def failing():
        raise StorageError("no answer")

    waiting.background.waiting.append((failing, waiting.fetch[1]))
    waiting.settle()
    assert waiting.sink.seen == [(1, 2), (1, 3)]


def test_nothing_waits_if_barriers_stay_in_order(start, saved, batch_of):
    made = start(saved, unaligned_checkpoints=False)
    made.sources[0].script.append(batch_of(1))
    made.settle(background=False)
    assert made.sink.seen == [(1, 2)]
