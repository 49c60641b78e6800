"""A task whose rows wait for state that is fetched or loaded: what passes, what waits too, and what a barrier takes."""

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
from penstock.state.memory.limits import PRODUCTION
from penstock.state.store import KeyedState

COUNTED = schema_to_text(pa.schema([pa.field("x", pa.int64()), pa.field("n", pa.int64(), nullable=False)]))
COUNT = {"key": ["x"], "aggregates": [{"alias": "n", "fn": "count", "column": None}]}


@pytest.fixture
def start(world, tmp_path):
    """Start a source, and a count of each number in a chain with the sink; with the state of an acknowledgement."""

    def started(acked=None, **settings):
        settings = {"state_backend": "remote", "unaligned_checkpoints": True, **settings}
        made = world(
            settings=JobSettings(checkpoint_root="memory://unit", buffer_timeout_ms=0, **settings),
            state_dir=tmp_path,
            limits=PRODUCTION.changed(restored_at_once_rows=3, loaded_rows=1, group_rows=2),
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


def test_no_row_passes_a_watermark_that_waits_for_a_fetch(waiting, batch_of):
    """Rows that come all the time could hold it up without an end."""
    waiting.sources[0].script += [Watermark(50), batch_of(2)]
    waiting.settle(background=False)
    assert waiting.subtasks("sink")[0].metrics.read()["numRecordsAwaitingState"] == 2
    fetch(waiting)
    assert waiting.sink.seen == [(1, 2), (1, 3), ("watermark", 50), (2, 2)]


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


class Loading:
    """The task after a restart with the counts of 1 to 20 in memory, which it loads in parts, one a step."""

    def __init__(self, start, batch_of, **settings):
        settings["state_backend"] = "hashmap"
        first = start(**settings)
        first.sources[0].script.append(batch_of(*range(1, 21)))
        first.settle()
        first.trigger(1)
        first.settle()
        self.world = start(first.acks("sink")[-1].snapshot, **settings)
        self.sink = self.world.subtasks("sink")[0]
        self.step()
        assert not self.sink.links[0].capabilities.arriving.complete

    def send(self, *elements):
        self.world.sources[0].script += elements
        for _ in range(5):
            self.world.subtasks("source")[0].step()
            self.world.transport.pump_all()

    def step(self):
        self.sink.step()

    @property
    def seen(self):
        return self.world.sink.seen

    @property
    def waiting(self):
        return self.sink.metrics.read()["numRecordsAwaitingState"]


@pytest.fixture(params=[True, False], ids=["unaligned", "aligned"])
def loading(start, batch_of, request):
    return Loading(start, batch_of, unaligned_checkpoints=request.param)


def test_rows_of_loaded_keys_pass_rows_whose_state_is_not_loaded(loading, batch_of):
    for _ in range(10):
        loading.step()
    loading.send(batch_of(*range(1, 21)))
    loading.step()
    there = list(loading.seen)
    assert 0 < len(there) < 20
    assert loading.waiting == 20 - len(there)
    loading.send(batch_of(*range(1, 21)))
    loading.world.settle()
    assert {(x, 2) for x in range(1, 21)} | {(x, 3) for x in range(1, 21)} == set(loading.seen)
    assert len(loading.seen) == 40
    assert loading.waiting == 0


def test_watermarks_and_queries_wait_for_the_rest_of_the_state(loading):
    loading.send(Watermark(50))
    loading.step()
    assert loading.seen == []
    loading.sink.run_in_mailbox(lambda _, stores: loading.seen.append(stores[0].restore.complete))
    loading.world.settle()
    assert loading.seen == [True, ("watermark", 50)]


def test_rows_and_newer_watermarks_are_read_while_a_watermark_waits_for_a_restore(loading, batch_of):
    loading.send(Watermark(50), batch_of(*range(1, 21)), Watermark(60), Watermark(70), batch_of(*range(1, 21)))
    for _ in range(8):
        loading.send()
        loading.step()
    assert 20 < loading.waiting + len(loading.seen) <= 40
    loading.world.settle()
    assert set(loading.seen[:-1]) == {(x, n) for x in range(1, 21) for n in (2, 3)}
    assert loading.seen[-1] == ("watermark", 70)


def test_a_checkpoint_needs_no_state_that_is_not_loaded(loading, start, batch_of):
    aligned = not loading.world.settings.unaligned_checkpoints
    loading.send(batch_of(*range(1, 21)))
    loading.world.trigger(2)
    for _ in range(10):
        loading.send()
        loading.step()
        if ("barrier", 2) in loading.seen:
            break
    waiting = loading.waiting
    assert waiting
    assert (("barrier", 2) in loading.seen) != aligned, "no row is in flight in an aligned checkpoint"
    loading.world.settle()
    snapshot = acked(loading.world, 2)
    assert len(numbers(snapshot)) == (0 if aligned else waiting)
    again = start(snapshot, state_backend="hashmap", unaligned_checkpoints=not aligned)
    again.sources[0].script.append(batch_of(*range(1, 21)))
    again.settle()
    assert dict(again.sink.seen) == dict.fromkeys(range(1, 21), 3)


def test_no_compaction_begins_before_the_state_is_loaded(loading, monkeypatch):
    complete = []
    monkeypatch.setattr(KeyedState, "compaction", lambda store: complete.append(store.restore.complete))
    loading.world.trigger(2)
    loading.world.settle()
    assert ("barrier", 2) in loading.seen
    assert complete
    assert all(complete)


def test_a_state_that_is_loaded_at_once_lets_no_row_wait(start, saved):
    made = start(saved, state_backend="hashmap")
    made.settle()
    assert made.subtasks("sink")[0].links[0].capabilities.arriving is None
