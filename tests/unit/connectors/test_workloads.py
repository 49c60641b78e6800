"""Source and sink of the benchmarks against the formula in plain NumPy."""

import json

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.connector.sink import SinkContext, SinkSpec, load_factory
from penstock.connector.source import SourceContext, SourceSpec, SourceSplit
from penstock.core.clock import ManualClock
from penstock.core.errors import GraphError
from penstock.core.permits import CommitPermit
from penstock.core.schema import schema_from_text
from penstock_lab.bench.measuring import reference
from penstock_lab.workloads import ChecksumSink, WorkloadSource, kernels, read_marks

PERMIT = CommitPermit("job", "run", 1, 1, 1)
TIME = pa.timestamp("us", tz="UTC")


def open_reader(source, splits=None):
    spec = msgspec.json.decode(json.dumps(msgspec.to_builtins(source.spec())), type=SourceSpec)
    factory = load_factory(spec.factory)
    factory.validate(spec)
    reader = factory.create_reader(spec, SourceContext(0, 1, "job", "uid", ManualClock()))
    if splits is None:
        splits = factory.create_enumerator(spec, first_run=True).discover(frozenset())
    reader.add_splits(splits)
    return reader


def drain(reader, max_rows=1 << 20, polls=1000):
    found = []
    for _ in range(polls):
        result = reader.poll(max_rows)
        found += [batch.data for batch in result.batches]
        if all(split.finished for split in reader.snapshot()):
            break
    return pa.Table.from_batches(found)


def right(count, keys=100_000):
    key, amount, times = reference.events(0, count, keys)
    return sorted(zip(key.tolist(), amount.tolist(), (times * 1000).tolist(), strict=True))


def rows_of(table):
    times = table["ts"].cast(pa.int64())
    return sorted(zip(table["user_id"].to_pylist(), table["amount"].to_pylist(), times.to_pylist(), strict=True))


@pytest.mark.parametrize("keys", [1, 2, 3, 1000, 65_536, 100_000, 1_000_000, (1 << 23) - 1])
def test_events_are_those_of_the_formula_for_any_number_of_keys(keys):
    source = WorkloadSource(events=3001, keys=keys, splits=3, batch_rows=500)
    assert rows_of(drain(open_reader(source))) == right(3001, keys)


def test_a_late_event_of_a_long_run_is_right_too():
    count = 2_000_000_000
    source = WorkloadSource(events=count, splits=2)
    position = count // 2 - 10
    reader = open_reader(source, (SourceSplit(id="events-1", state={"index": 1, "position": position}),))
    key, amount, times = (column[1::2] for column in reference.events(count - 20, count))
    expected = sorted(zip(key.tolist(), amount.tolist(), (times * 1000).tolist(), strict=True))
    assert rows_of(drain(reader)) == expected


def test_splits_advance_together_and_a_replay_gives_exactly_the_rest():
    source = WorkloadSource(events=10_000, splits=4, batch_rows=100)
    reader = open_reader(source)
    before = pa.Table.from_batches([b.data for _ in range(37) for b in reader.poll(1000).batches])
    positions = [split.state["position"] for split in reader.snapshot()]
    assert max(positions) - min(positions) <= 100
    rest = drain(open_reader(source, reader.snapshot()))
    assert sorted(rows_of(before) + rows_of(rest)) == right(10_000)


def test_strings_and_nulls_hold_the_same_values():
    plain = drain(open_reader(WorkloadSource(events=5000, keys=50, splits=1)))
    other = drain(open_reader(WorkloadSource(events=5000, keys=50, splits=1, key_type="string", nullable=True)))
    users = [None if u == 0 else f"u{u:07}" for u in plain["user_id"].to_pylist()]
    assert other["user_id"].to_pylist() == users
    assert other["amount"].to_pylist() == [None if a % 10 == 0 else a for a in plain["amount"].to_pylist()]


@pytest.mark.parametrize(
    "wrong", [{"events": 0}, {"keys": 0}, {"keys": 1 << 29}, {"splits": 0}, {"batch_rows": 0}, {"events": 1 << 40}]
)
def test_sizes_that_make_no_sense_are_refused(wrong):
    with pytest.raises(GraphError, match="must be from 1 to"):
        WorkloadSource(**{"events": 10, **wrong}).spec()


# --- the sink ---------------------------------------------------------------------------------------------------------


def sink_parts(sink, schema, subtask=0):
    spec = msgspec.json.decode(json.dumps(msgspec.to_builtins(sink.spec(schema))), type=SinkSpec)
    assert schema_from_text(spec.schema) == schema
    factory = load_factory(spec.factory)
    factory.validate(spec, None)
    context = SinkContext("job", "out", "run", subtask, 2, 0, ManualClock())
    return factory.create_writer(spec, context), factory.create_committer(spec, context)


def test_the_compiled_sums_of_rows_are_those_of_numpy():
    draw = np.random.default_rng(7)
    user, second, third = (draw.integers(-(10**9), 10**9, 5000) for _ in range(3))
    times = kernels.START_US + draw.integers(-(10**12), 10**12, 5000)
    times[:4] = kernels.START_US + np.array([-1, 0, 999, -1000])
    small = user % 1000
    for key in (user, small):
        check = int(((key * 31 + third) % kernels.MODULUS).sum())
        plain, timed = np.zeros(4, np.int64), np.zeros(4, np.int64)
        kernels.add_rows(key, times, second, third, plain)
        kernels.add_timed_rows(key, times, second, third, timed)
        milliseconds = (times - kernels.START_US) // 1000
        assert plain.tolist() == [5000, int(times.sum()), int(second.sum()), check]
        assert timed.tolist() == [5000, int(milliseconds.sum()), int(second.sum()), check]


def test_rows_are_summed_and_published_once_however_often_they_are_committed(tmp_path):
    schema = WorkloadSource(events=1).row_schema
    sink = ChecksumSink(folder=str(tmp_path), form="rows", columns=("user_id", "ts", "amount", "amount"))
    table = drain(open_reader(WorkloadSource(events=4000, splits=2, batch_rows=300)))
    writer, committer = sink_parts(sink, schema)
    halves = []
    for checkpoint, batches in ((1, table.to_batches()[:5]), (2, table.to_batches()[5:])):
        for batch in batches:
            writer.write(batch)
        halves += writer.prepare_commit(checkpoint)
    assert writer.prepare_commit(3) == (), "an epoch without rows owes nothing"
    assert read_marks(tmp_path).sums == (0, 0, 0, 0)
    assert [o.resolution for o in committer.commit(PERMIT, tuple(halves[:1]), None)] == ["published"]
    outcomes = committer.recover(PERMIT, ("job.out.",), tuple(halves), None)
    assert [o.resolution for o in outcomes] == ["already-published", "published"]
    assert read_marks(tmp_path).checksum == reference.all_rows(4000)


@pytest.mark.parametrize(("text", "nullable"), [(False, False), (True, False), (True, True), (False, True)])
def test_windows_are_summed_up_to_the_cut_whatever_the_key(tmp_path, text, nullable):
    count = 1_200_000
    key, amount, times = reference.events(0, count)
    ends = times // 1000 * 1000 + 1000  # tumbling windows of a second
    used = amount % 10 != 0 if nullable else np.ones(count, np.bool_)
    groups, inverse = np.unique(ends * 100_000 + key, return_inverse=True)
    counts, seen = np.bincount(inverse), np.bincount(inverse, used)
    sums = np.bincount(inverse, np.where(used, amount, 0)).astype(np.int64)
    users = groups % 100_000
    plain = [None if nullable and u == 0 else (f"u{u:07}" if text else u) for u in users.tolist()]
    batch = pa.record_batch(
        {
            "user_id": pa.array(plain, pa.string() if text else pa.int64()),
            "window_end": pa.array(groups // 100_000 * 1000).view(TIME),
            "cnt": pa.array(counts.astype(np.int64)),
            "sm": pa.array(sums, mask=seen == 0),
        }
    )
    cut = reference.last_sure_window(count, 1000)
    sink = ChecksumSink(
        folder=str(tmp_path), form="windows", columns=tuple(batch.schema.names), unit_us=1_000_000, cut_us=cut * 1000
    )
    writer, committer = sink_parts(sink, batch.schema)
    for start in range(0, batch.num_rows, 70_001):
        writer.write(batch.slice(start, 70_001))
    committer.commit(PERMIT, writer.prepare_commit(1), None)
    assert read_marks(tmp_path).checksum == reference.windows(count, 1000, 1000, nullable=nullable)


def test_views_are_taken_but_for_keys_which_are_asked_for_as_strings(tmp_path):
    names = ("user_id", "ts", "amount", "amount")
    views = pa.schema([("user_id", pa.string_view()), ("ts", TIME), ("amount", pa.int64()), ("note", pa.string_view())])
    sink = ChecksumSink(folder=str(tmp_path), form="rows", columns=names)
    assert sink.takes_views
    asked = schema_from_text(sink.spec(views).schema)
    assert asked.types == [pa.string(), TIME, pa.int64(), pa.string_view()]


def test_columns_that_are_not_there_are_refused(tmp_path):
    sink = ChecksumSink(folder=str(tmp_path), form="rows", columns=("user_id", "ts", "net", "net"))
    with pytest.raises(GraphError, match="cannot be made of columns"):
        sink.spec(WorkloadSource(events=1).row_schema)
