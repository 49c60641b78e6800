"""Rows of the latency benchmark are made when they are due, and late rows are counted as late."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.bench.latency import percentile
from penstock.connector.sink import SinkContext
from penstock.connector.source import SourceContext
from penstock.core.clock import ManualClock
from penstock.core.errors import GraphError
from penstock_connectors.workloads.paced import BIN_US, BINS, DelaySink, PacedSource, read_delays


def reader(clock, **options):
    spec = PacedSource(**options).spec()
    from penstock.connector.sink import load_factory

    factory = load_factory(spec.factory)
    splits = factory.create_enumerator(spec, first_run=True).discover(frozenset())
    context = SourceContext(subtask=0, parallelism=1, job_name="j", uid="u", clock=clock)
    return factory.create_reader(spec, context), splits


def test_rows_come_when_they_are_due_with_that_moment():
    clock = ManualClock()
    made, splits = reader(clock, rows=100, splits=1, rate=1000.0)
    began = clock.monotonic_ms()
    made.add_splits(splits)
    assert made.poll(1000).batches == ()
    clock.sleep_ms(10)
    (batch,) = made.poll(1000).batches
    assert batch.data.num_rows == 10
    due = batch.data.column("due").to_numpy() / 1000 - began
    assert due.tolist() == pytest.approx(list(range(10)), abs=0.002)
    clock.sleep_ms(500)
    last = made.poll(1000)
    assert sum(b.data.num_rows for b in last.batches) == 90
    assert last.finished == ("paced-0",)


def test_a_restored_reader_goes_on_without_a_backlog():
    clock = ManualClock()
    made, splits = reader(clock, rows=100, splits=1, rate=1000.0)
    made.add_splits(splits)
    clock.sleep_ms(20)
    made.poll(1000)
    (saved,) = made.snapshot()
    assert saved.state == {"position": 20}
    clock.sleep_ms(1000)
    again, _ = reader(clock, rows=100, splits=1, rate=1000.0)
    again.add_splits((saved,))
    assert again.poll(1000).batches == ()
    clock.sleep_ms(5)
    assert again.poll(1000).batches[0].data.num_rows == 5


def test_delays_are_counted_once_the_job_has_settled(tmp_path):
    clock = ManualClock()
    schema = pa.schema([pa.field("due", pa.int64(), nullable=False)])
    spec = DelaySink(folder=str(tmp_path), settle_ms=100.0).spec(schema)
    from penstock.connector.sink import load_factory

    context = SinkContext(job_name="j", uid="u", run_id="r", subtask=3, parallelism=4, attempt=0, clock=clock)
    writer = load_factory(spec.factory).create_writer(spec, context)
    first = clock.monotonic_ms()
    writer.write(pa.record_batch([pa.array([int(first * 1000)])], schema=schema))
    clock.sleep_ms(200)
    now_us = int(clock.monotonic_ms() * 1000)
    writer.write(pa.record_batch([pa.array([now_us - 50, now_us - 7 * BIN_US - 1, now_us - 99_000])], schema=schema))
    writer.close()
    (seen,) = read_delays(tmp_path)
    assert (seen.rows, seen.largest_us) == (4, 99_000)
    assert {i: n for i, n in enumerate(seen.counts) if n} == {0: 1, 7: 1, 990: 1}


def test_percentiles_are_the_upper_ends_of_bins():
    counts = np.zeros(BINS, np.int64)
    counts[[3, 9]] = [99, 1]
    assert percentile(counts, 0.5) == 0.4
    assert percentile(counts, 0.99) == 0.4
    assert percentile(counts, 0.999) == 1.0
    assert percentile(np.zeros(BINS, np.int64), 0.5) == 0.0


def test_nonsense_is_refused():
    with pytest.raises(GraphError, match="PacedSource"):
        PacedSource(rows=0).spec()
    with pytest.raises(GraphError, match="due"):
        DelaySink(folder="x").spec(pa.schema([("a", pa.int64())]))
