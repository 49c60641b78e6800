"""A paced source gives rows when they are due and keeps those moments; late rows and late windows count as late."""

import json

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connector.sink import SinkContext, load_factory
from penstock.connector.source import PollResult, SourceBatch, SourceContext, SourceSpec, SourceSplit
from penstock.core.clock import ManualClock
from penstock.core.errors import GraphError
from penstock_lab.workloads import ChecksumSink, WorkloadSource
from penstock_lab.workloads.delays import (
    BIN_US,
    DelayRecorder,
    Schedule,
    completed_us,
    never,
    read_delays,
    read_schedules,
)
from penstock_lab.workloads.paced import PacedReader, PacedSource, _Config


def reader(clock, *, events, splits=1, **options):
    inner = WorkloadSource(events=events, splits=splits, keys=10)
    spec = msgspec.json.decode(
        json.dumps(msgspec.to_builtins(PacedSource(source=inner, splits=splits, **options).spec())), type=SourceSpec
    )
    factory = load_factory(spec.factory)
    factory.validate(spec)
    found = factory.create_enumerator(spec, first_run=True).discover(frozenset())
    return factory.create_reader(spec, SourceContext(3, 4, "j", "u", clock)), found


def test_rows_come_when_they_are_due_with_that_moment():
    clock = ManualClock()
    made, splits = reader(clock, events=100, rate=1000.0)
    began = clock.monotonic_ms()
    made.add_splits(splits)
    (first,) = made.poll(1000).batches
    assert first.data.num_rows == 1
    assert made.poll(1000).batches == ()
    clock.sleep_ms(10)
    (batch,) = made.poll(1000).batches
    assert batch.data.schema.names == ["user_id", "amount", "ts", "due"]
    due = batch.data.column("due").to_numpy() / 1000 - began
    assert due.tolist() == pytest.approx(list(range(1, 11)), abs=0.002)
    clock.sleep_ms(500)
    last = made.poll(1000)
    assert sum(b.data.num_rows for b in last.batches) == 89
    assert last.finished == ("events-0",)


def test_without_a_rate_all_is_given_and_due_at_once():
    clock = ManualClock()
    made, splits = reader(clock, events=100)
    made.add_splits(splits)
    clock.sleep_ms(7)
    (batch,) = made.poll(1000).batches
    assert batch.data.num_rows == 100
    assert set(batch.data.column("due").to_pylist()) == {int(clock.monotonic_ms() * 1000)}


def test_a_restored_reader_goes_on_without_a_backlog():
    clock = ManualClock()
    made, splits = reader(clock, events=100, rate=1000.0)
    made.add_splits(splits)
    made.poll(1000)
    clock.sleep_ms(20)
    made.poll(1000)
    (saved,) = made.snapshot()
    assert saved.state["position"] == 21
    clock.sleep_ms(1000)
    again, _ = reader(clock, events=100, rate=1000.0)
    again.add_splits((saved,))
    assert again.poll(1000).batches[0].data.num_rows == 1
    clock.sleep_ms(5)
    assert again.poll(1000).batches[0].data.num_rows == 5


class Scripted:
    """A reader that gives what it was told, whatever it is asked for."""

    def __init__(self, batches):
        self._batches = list(batches)

    def add_splits(self, splits):
        pass

    def poll(self, max_rows):
        assert max_rows > 0
        return PollResult(self._batches.pop(0)) if self._batches else PollResult()

    def close(self):
        pass


TIMES = st.lists(st.tuples(st.integers(0, 1), st.integers(-50, 50)), min_size=1, max_size=6)


@given(st.lists(TIMES, min_size=1, max_size=6), st.lists(st.integers(-60, 60), min_size=1, max_size=5))
def test_a_window_is_due_with_the_row_that_moves_the_last_splits_watermark_past_it(tmp_path_factory, polls, ends):
    folder, clock, bound = tmp_path_factory.mktemp("paced"), ManualClock(), 7
    batches = []
    for rows in polls:
        index, times = (np.array(column) for column in zip(*rows, strict=True))
        data = pa.record_batch({"at": pa.array(times)})
        batches.append((SourceBatch(data, ("a", "b"), index),))
    inner = WorkloadSource(events=1).spec()
    config = _Config(source=inner, splits=2, rate=0.0, stamp=False, time="at", folder=str(folder))
    made = PacedReader(config, Scripted(batches), SourceContext(0, 1, "j", "u", clock))
    made.add_splits((SourceSplit(id="a"), SourceSplit(id="b")))
    due = {}
    high = [None, None]
    for rows in polls:
        clock.sleep_ms(3)
        made.poll(100)
        for split, time in rows:
            high[split] = time if high[split] is None else max(high[split], time)
        for end in ends:
            seen = {split for split, time in ((s, t) for s, t in enumerate(high) if t is not None)}
            passed = all(high[split] >= end + bound for split in seen)
            if passed and seen == {split for rows in polls for split, _ in rows}:
                due.setdefault(end, int(clock.monotonic_ms() * 1000))
    made.close()
    schedules = read_schedules(folder)
    found = completed_us(np.array(ends) * 1000, schedules, bound * 1000)
    assert [None if late else at for at, late in zip(found.tolist(), never(found), strict=True)] == [
        due.get(end) for end in ends
    ]
    assert sum(s.rows for s in schedules) == sum(len(rows) for rows in polls)


def sink(folder, schema, **options):
    spec = ChecksumSink(folder=str(folder), form="rows", columns=(schema.names[0],) * 4, **options).spec(schema)
    clock = ManualClock()
    context = SinkContext(job_name="j", uid="u", run_id="r", subtask=3, parallelism=4, attempt=0, clock=clock)
    return load_factory(spec.factory).create_writer(spec, context), clock


def test_delays_of_rows_are_counted_once_the_job_has_settled(tmp_path):
    schema = pa.schema([pa.field("due", pa.int64(), nullable=False)])
    writer, clock = sink(tmp_path, schema, timed="rows", settle_ms=100.0)
    first = int(clock.monotonic_ms() * 1000)
    writer.write(pa.record_batch([pa.array([first])], schema=schema))
    clock.sleep_ms(200)
    now_us = int(clock.monotonic_ms() * 1000)
    writer.write(pa.record_batch([pa.array([now_us - 50, now_us - 7 * BIN_US - 1, now_us - 99_000])], schema=schema))
    writer.close()
    (seen,) = read_delays(tmp_path)
    assert (seen.rows, seen.largest_us) == (4, 99_000)
    assert {i: n for i, n in enumerate(seen.counts) if n} == {0: 1, 7: 1, 990: 1}


@pytest.mark.parametrize("timed", ["windows", "clock"])
def test_arrivals_of_windows_are_noted_by_their_end(tmp_path, timed):
    schema = pa.schema([pa.field("window_end", pa.timestamp("us", tz="UTC"), nullable=False)])
    writer, clock = sink(tmp_path, schema, timed=timed)
    arrivals = []
    for ends in ([10, 20, 10], [20]):
        clock.sleep_ms(5)
        arrivals.append(int((clock.now_ms() if timed == "clock" else clock.monotonic_ms()) * 1000))
        writer.write(pa.record_batch([pa.array(ends, pa.timestamp("us", tz="UTC"))], schema=schema))
    writer.close()
    (seen,) = read_delays(tmp_path)
    one, two = arrivals
    assert seen.windows().tolist() == [[10, one, 2], [20, one, 1], [20, two, 1]]
    assert seen.rows == 4


def test_a_recorder_that_saw_nothing_leaves_nothing_to_count(tmp_path):
    DelayRecorder("windows", 0.0, ManualClock()).leave(str(tmp_path), 0)
    (seen,) = read_delays(tmp_path)
    assert (seen.rows, len(seen.windows())) == (0, 0)
    assert completed_us(np.zeros(0, np.int64), [Schedule(rows=0, first_ms=0, last_ms=0, wall_ms=0)], 0).tolist() == []


def test_nonsense_is_refused():
    events = WorkloadSource(events=1)
    with pytest.raises(GraphError, match="PacedSource: 0 splits"):
        PacedSource(source=events, splits=0).spec()
    with pytest.raises(GraphError, match="no column 'when'"):
        PacedSource(source=events, splits=1, time="when").spec()
    for timed, missing in (("rows", "due"), ("windows", "window_end")):
        with pytest.raises(GraphError, match=f"no column `{missing}`"):
            ChecksumSink(folder="x", form="rows", columns=("a",) * 4, timed=timed).spec(pa.schema([("a", pa.int64())]))
