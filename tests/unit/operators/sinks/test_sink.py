"""The sink operator: when output is published, named again, held back."""

import sys
import threading
import types

import msgspec
import pyarrow as pa
import pytest
from tests.property.pools import pooled
from tests.support.sizes import given
from tests.support.waiting import DEADLINE_S

from penstock.config.settings import JobSettings
from penstock.connector.sink import CommitOutcome, SinkSpec
from penstock.connector.staging import decode_chunk, encode_chunk
from penstock.core import failpoints
from penstock.core.elements import Barrier, BarrierKind, Batch, Watermark
from penstock.core.permits import CommitPermit
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import Committable, FileRef
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.rows.columns import ColumnError, with_ts
from penstock.operators.sinks.sink_operator import SinkOperator, SinkOverflowError

SCHEMA = pa.schema([pa.field("v", pa.int64())])


class Outside:
    """A connector whose committer remembers what it was asked to publish."""

    def __init__(self):
        self.commits: list[tuple[int, tuple[str, ...]]] = []
        self.error: Exception | None = None
        self.closed = 0
        self.writer = None

    def create_writer(self, spec, context):
        return self.writer

    def create_committer(self, spec, context):
        return self

    def commit(self, permit, committables, read):
        if self.error is not None:
            raise self.error
        for committable in committables:
            for file in committable.files:
                decode_chunk(read(file))
        self.commits.append((permit.checkpoint_id, tuple(c.id for c in committables)))
        return tuple(CommitOutcome(c.id, "published", c.rows) for c in committables)

    def close(self):
        self.closed += 1


@pytest.fixture
def outside(monkeypatch):
    made = Outside()
    module = types.ModuleType("recording_sink")
    module.Factory = type("Factory", (), {"create_writer": None, "__new__": lambda cls: made})
    monkeypatch.setitem(sys.modules, "recording_sink", module)
    return made


def opened(bench, delivery="exactly-once", settings=None, **config):
    sink = SinkSpec(factory="recording_sink:Factory", config={}, delivery=delivery, schema=schema_to_text(SCHEMA))
    spec = OperatorSpec(uid="out", name="out", kind="sink", config={"sink": msgspec.to_builtins(sink), **config})
    operator = SinkOperator()
    changes = {} if settings is None else {"settings": settings}
    operator.open(bench.context(spec, with_ts(SCHEMA), **changes))
    return operator


def feed(operator, *values):
    batch = pa.record_batch([pa.array(values, pa.int64()), pa.array(values, pa.int64())], schema=with_ts(SCHEMA))
    operator.process_batch(Batch(batch), 0, None)


def upload(bench, operator, staged):
    """What the task does in the background, then in the subtask's thread."""
    files = []
    for number, chunk in enumerate(staged.chunks):
        path = f"pending/{staged.committable.id}/{number}"
        bench.files[path] = chunk()
        files.append(FileRef(path=path, length=len(bench.files[path])))
    operator.staged_written(msgspec.structs.replace(staged.committable, files=tuple(files)))


def checkpoint(bench, operator, number, *values):
    feed(operator, *values)
    snapshot = operator.snapshot(Barrier(number), None)
    for staged in snapshot.staged:
        upload(bench, operator, staged)
    return snapshot


def permit(number, run="run1"):
    return CommitPermit("job", run, 1, number, number)


def ids(*numbers):
    return tuple(f"out/run1/0/{n}" for n in numbers)


def test_an_epoch_is_published_once_its_checkpoint_is_durable(bench, outside):
    operator = opened(bench)
    snapshot = checkpoint(bench, operator, 1, 10, 20)
    (staged,) = snapshot.staged
    assert staged.committable.transactional_id == "orders.out.run1.0"
    assert staged.committable.rows == 2
    assert decode_chunk(bench.files["pending/out/run1/0/1/0"]).to_pydict() == {"v": [10, 20]}
    assert bench.jobs == []
    operator.notify_complete(permit(1))
    assert operator.publishing
    assert outside.commits == [], "publishing must not run in the subtask's thread"
    bench.run_jobs()
    assert outside.commits == [(1, ids(1))]
    assert bench.reported == [ids(1)]
    assert not operator.publishing
    assert operator.snapshot(Barrier(2), None).committables == ()


def test_an_epoch_without_rows_has_no_output(bench, outside):
    operator = opened(bench)
    snapshot = operator.snapshot(Barrier(1), None)
    assert snapshot.staged == snapshot.committables == ()
    operator.notify_complete(permit(1))
    assert bench.jobs == []


def test_output_of_an_aborted_checkpoint_is_named_again_and_leaves_with_the_next_permit(bench, outside):
    operator = opened(bench)
    checkpoint(bench, operator, 1, 1)
    operator.notify_aborted(1)
    second = checkpoint(bench, operator, 2, 2)
    assert [c.id for c in second.committables] == list(ids(1))
    assert second.committables[0].files, "later snapshots carry the files"
    operator.notify_complete(permit(2))
    bench.run_jobs()
    assert outside.commits == [(2, ids(1, 2))]


def test_an_upload_that_failed_or_still_runs_is_offered_again(bench, outside):
    operator = opened(bench)
    feed(operator, 1)
    first = operator.snapshot(Barrier(1), None)
    feed(operator, 2)
    second = operator.snapshot(Barrier(2), None)
    assert [s.committable.id for s in second.staged] == list(ids(1, 2))
    assert decode_chunk(second.staged[0].chunks[0]()) == decode_chunk(first.staged[0].chunks[0]())
    operator.notify_complete(permit(2))
    assert bench.jobs == [], "nothing is published before it is written"
    for staged in second.staged:
        upload(bench, operator, staged)
        bench.run_jobs()
    assert [entry for _, entry in outside.commits] == [ids(1), ids(2)]


def test_a_permit_releases_nothing_of_later_checkpoints(bench, outside):
    operator = opened(bench)
    checkpoint(bench, operator, 1, 1)
    checkpoint(bench, operator, 2, 2)
    operator.notify_complete(permit(1))
    bench.run_jobs()
    assert outside.commits == [(1, ids(1))]
    assert [c.id for c in operator.snapshot(Barrier(3), None).committables] == list(ids(2))


def test_a_permit_of_another_run_releases_nothing(bench, outside):
    operator = opened(bench)
    checkpoint(bench, operator, 1, 1)
    operator.notify_complete(permit(5, run="run0"))
    assert bench.jobs == []


def test_an_intermediate_savepoint_keeps_its_epoch_pending(bench, outside):
    operator = opened(bench)
    feed(operator, 1)
    (staged,) = operator.snapshot(Barrier(1, BarrierKind.SAVEPOINT), None).staged
    upload(bench, operator, staged)
    assert bench.jobs == []
    checkpoint(bench, operator, 2, 2)
    operator.notify_complete(permit(2))
    bench.run_jobs()
    assert outside.commits == [(2, ids(1, 2))]


def test_one_publication_at_a_time_and_the_newest_permit_wins(bench, outside):
    operator = opened(bench)
    checkpoint(bench, operator, 1, 1)
    operator.notify_complete(permit(1))
    for number in (2, 3):
        checkpoint(bench, operator, number, number)
        operator.notify_complete(permit(number))
    assert len(bench.jobs) == 1
    bench.run_jobs()
    bench.run_jobs()
    assert outside.commits == [(1, ids(1)), (3, ids(2, 3))]
    assert bench.wakes


def test_what_is_being_published_is_still_named(bench, outside):
    operator = opened(bench)
    checkpoint(bench, operator, 1, 1)
    operator.notify_complete(permit(1))
    assert [c.id for c in operator.snapshot(Barrier(2), None).committables] == list(ids(1))


def test_a_failed_publication_fails_the_task_with_its_own_error(bench, outside):
    operator = opened(bench)
    checkpoint(bench, operator, 1, 1)
    outside.error = RuntimeError("broker says no")
    operator.notify_complete(permit(1))
    with pytest.raises(RuntimeError, match="broker says no"):
        bench.run_jobs()
    assert bench.reported == []
    assert [c.id for c in operator.snapshot(Barrier(2), None).committables] == list(ids(1))


def test_an_epoch_is_cut_into_chunks_in_order(bench, outside):
    operator = opened(bench, chunk_bytes=80)
    for start in range(0, 100, 25):
        feed(operator, *range(start, start + 25))
    (staged,) = operator.snapshot(Barrier(1), None).staged
    tables = [decode_chunk(chunk()) for chunk in staged.chunks]
    assert max(table.nbytes for table in tables) <= 80
    assert pa.concat_tables(tables).column("v").to_pylist() == list(range(100))
    assert staged.committable.rows == 100


def test_pending_output_at_its_limit_asks_for_back_pressure(bench, outside):
    operator = opened(bench, settings=JobSettings(checkpoint_interval_ms=1, sink_pending_max_epochs=2))
    assert operator.available
    checkpoint(bench, operator, 1, 1)
    checkpoint(bench, operator, 2, 2)
    assert not operator.available
    operator.notify_complete(permit(2))
    bench.run_jobs()
    assert operator.available


def test_bytes_of_the_running_epoch_count_too(bench, outside):
    operator = opened(bench, settings=JobSettings(checkpoint_interval_ms=1, sink_pending_max_bytes=20))
    feed(operator, 1, 2)
    assert operator.available
    feed(operator, 3)
    assert not operator.available
    checkpoint(bench, operator, 1, 4)
    operator.notify_complete(permit(1))
    bench.run_jobs()
    assert operator.available


def test_rows_in_memory_are_bounded_below_what_a_worker_is_killed_for(bench, outside, monkeypatch):
    """Until they are written with a checkpoint they are nowhere else; written ones count as pending only."""
    given(monkeypatch, held_output_bytes=20)
    operator = opened(bench)
    feed(operator, 1, 2, 3)
    assert not operator.available
    (staged,) = operator.snapshot(Barrier(1), None).staged
    assert not operator.available, "not written yet"
    upload(bench, operator, staged)
    assert operator.available
    feed(operator, 4)
    assert operator.available
    feed(operator, 5, 6)
    assert not operator.available
    alone = opened(bench, settings=JobSettings())
    feed(alone, 1, 2, 3)
    assert alone.available, "without checkpoints nothing would ever let it go on"


def test_rows_that_wait_do_not_hold_the_pool_of_their_views(bench, outside, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SCHEMA", pa.schema([("v", pa.string_view())]))
    operator = opened(bench)
    column = pooled(["a value of some length"], pa.string_view(), b"pool" * 100_000)
    operator.process_batch(Batch(pa.record_batch([column], schema=SCHEMA)), 0, None)
    assert operator._buffer.size_bytes < 100
    (staged,) = operator.snapshot(Barrier(1), None).staged
    upload(bench, operator, staged)
    assert decode_chunk(bench.files["pending/out/run1/0/1/0"]).to_pydict() == {"v": ["a value of some length"]}
    assert len(bench.files["pending/out/run1/0/1/0"]) < 2000


def test_a_job_without_checkpoints_cannot_wait_for_ever(bench, outside):
    operator = opened(bench, settings=JobSettings(sink_pending_max_bytes=24))
    feed(operator, 1, 2)
    with pytest.raises(SinkOverflowError, match="set checkpoint_interval"):
        feed(operator, 3)


def test_rows_must_fit_the_schema_of_the_sink(bench, outside):
    operator = opened(bench)
    with pytest.raises(ColumnError, match="sink 'out': column 'v' is missing"):
        operator.process_batch(Batch(pa.record_batch({"w": [1]})), 0, None)


def test_nothing_follows_a_sink(bench, outside, out):
    operator = opened(bench)
    operator.process_watermark(Watermark(1), out)
    assert out.elements == []


class Writer:
    """Prepares one committable an epoch, as an open transaction would."""

    def __init__(self):
        self.rows = 0
        self.prepared: list[int] = []
        self.closed = 0

    def write(self, batch):
        assert batch.schema == SCHEMA
        self.rows += batch.num_rows

    def prepare_commit(self, checkpoint_id):
        self.prepared.append(checkpoint_id)
        made = Committable(
            id=f"out/run1/0/{checkpoint_id}", uid="out", run_id="run1", subtask=0, checkpoint_id=checkpoint_id
        )
        return (made,) if checkpoint_id else ()

    def close(self):
        self.closed += 1


def test_two_phase_commit_prepares_at_the_barrier_and_commits_with_the_permit(bench, outside):
    outside.writer = Writer()
    operator = opened(bench, delivery="exactly-once-2pc")
    feed(operator, 1)
    assert [c.id for c in operator.snapshot(Barrier(1), None).committables] == list(ids(1))
    operator.notify_aborted(1)
    assert [c.id for c in operator.snapshot(Barrier(2), None).committables] == list(ids(1, 2))
    operator.notify_complete(permit(2))
    bench.run_jobs()
    assert outside.commits == [(2, ids(1, 2))]


@pytest.mark.parametrize(("delivery", "prepared"), [("at-least-once", [1, 0]), ("none", [0])])
def test_the_weaker_modes_write_at_once(bench, outside, delivery, prepared):
    outside.writer = Writer()
    outside.writer.prepare_commit = lambda number: outside.writer.prepared.append(number) or ()
    operator = opened(bench, delivery=delivery)
    feed(operator, 1)
    assert outside.writer.rows == 1
    assert operator.snapshot(Barrier(1), None).committables == ()
    operator.finish(None)
    assert outside.writer.prepared == prepared
    flushes = ["flushing checkpoint 1", "flushing the last rows"][-len(prepared) :]
    target = operator._spec.target
    assert bench.waits == [f"sink 'out' (0): {wait} to {target}" for wait in ("writing", *flushes)]


def test_failpoints_stand_before_and_behind_the_commit(bench, outside, monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_FAILPOINT_DIR", str(tmp_path))
    for name, commits in (("sink.before_publish", 0), ("sink.after_commit", 1)):
        monkeypatch.setenv("PENSTOCK_FAILPOINTS", f"{name}=error")
        failpoints.reset()
        outside.commits.clear()
        operator = opened(bench)
        checkpoint(bench, operator, 1, 1)
        operator.notify_complete(permit(1))
        with pytest.raises(failpoints.FailpointError, match=name):
            bench.run_jobs()
        assert len(outside.commits) == commits
        assert ids(1)[0] in (tmp_path / f"{name}.hit").read_text()
    monkeypatch.delenv("PENSTOCK_FAILPOINTS")
    failpoints.reset()


def test_close_waits_for_the_publication_that_is_under_way(bench, outside):
    SinkOperator().close()
    operator = opened(bench)
    checkpoint(bench, operator, 1, 1)
    operator.notify_complete(permit(1))
    operator.close()
    assert outside.closed == 0
    worker = threading.Thread(target=bench.jobs[0][0])
    worker.start()
    worker.join(DEADLINE_S)
    assert outside.closed == 1
    operator.close()
    assert outside.closed == 1


def test_close_after_the_publication_ended_but_before_its_mail(bench, outside):
    operator = opened(bench)
    checkpoint(bench, operator, 1, 1)
    operator.notify_complete(permit(1))
    bench.jobs[0][0]()
    operator.close()
    assert outside.closed == 1


@pytest.mark.parametrize(("rows", "batches"), [([0, 3, 0, 2], 1), ([0, 0], 0), ([9000, 9000], 2), ([5], 1), ([], 0)])
def test_small_batches_are_staged_as_one_and_large_ones_as_they_come(rows, batches):
    schema = pa.schema([("v", pa.int64()), ("names", pa.list_(pa.string()))])
    written = [pa.record_batch([range(n), [["a", None]] * n], schema=schema) for n in rows]
    found = decode_chunk(encode_chunk(schema, written))
    assert len(found.to_batches()) == batches
    assert found.equals(pa.Table.from_batches(written, schema))
