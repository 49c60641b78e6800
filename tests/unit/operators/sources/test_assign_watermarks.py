"""Event time given behind the source: times, watermarks, idleness, restores, and what is refused."""

import json

import msgspec
import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.api.watermarks import code_of
from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark, WatermarkStatus
from penstock.core.errors import BadRecordError, GraphError
from penstock.eventtime.strategy import WatermarkStrategy, strategy_to_builtins
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.sources.assign_watermarks import AssignWatermarksOperator

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
ROWS = pa.schema([pa.field("at", pa.int64()), pa.field("mark", pa.int64())])
INPUT = pa.schema([*ROWS, pa.field(TS_COLUMN, pa.int64(), nullable=False)])
BOUNDED = WatermarkStrategy.bounded_out_of_orderness("2s", timestamp="at", unit="us")


def opened(bench, strategy=BOUNDED, restored=(), schema=INPUT):
    config = json.loads(json.dumps({"watermarks": strategy_to_builtins(strategy)}))
    payload = code_of(strategy, ROWS, "here")
    spec = OperatorSpec(uid="anew", name="anew", kind="assign_watermarks", config=config, payload=payload)
    operator = AssignWatermarksOperator()
    operator.open(bench.context(spec, schema, restored=restored))
    return operator


def batch(*seconds, marks=None):
    at = [None if s is None else START + s * SECOND for s in seconds]
    marks = [None if m is None else START + m * SECOND for m in marks or [None] * len(seconds)]
    return Batch(pa.record_batch([pa.array(at, pa.int64()), pa.array(marks, pa.int64()), [7] * len(at)], schema=INPUT))


def marks(out):
    return [mark if mark == MAX_TIMESTAMP else (mark - START) / SECOND for mark in out.watermarks]


def test_rows_get_new_times_and_a_watermark_follows_them(bench, out):
    operator = opened(bench)
    operator.process_batch(batch(5, 3), 0, out)
    operator.process_batch(batch(4), 0, out)
    assert [(row[TS_COLUMN] - START) // SECOND for row in out.rows] == [5, 3, 4]
    assert out.watermarks == [START + 3 * SECOND - 1]
    assert isinstance(out.elements[-1], Batch)


def test_without_watermarks_rows_have_times_until_the_input_ends(bench, out):
    strategy = WatermarkStrategy.no_watermarks(timestamp="at", unit="us").with_idleness("1s")
    operator = opened(bench, strategy)
    operator.process_batch(batch(5, 3), 0, out)
    assert [(row[TS_COLUMN] - START) // SECOND for row in out.rows] == [5, 3]
    for _ in range(12):
        bench.clock.advance(200)
        operator.process_time(bench.clock.now_ms(), out)
    assert (out.watermarks, out.statuses) == ([], [True]), "quiet, it holds nobody back"
    restored = opened(bench, strategy, operator.snapshot(Barrier(1), out).operator)
    restored.process_batch(batch(9), 0, out)
    assert out.watermarks == []
    restored.process_watermark(Watermark(MAX_TIMESTAMP), out)
    assert out.watermarks == [MAX_TIMESTAMP]


def test_what_comes_from_before_counts_no_longer_but_its_end_does(bench, out):
    operator = opened(bench)
    operator.process_watermark(Watermark(START + 100 * SECOND), out)
    operator.process_status(WatermarkStatus(idle=True), out)
    assert out.elements == []
    operator.process_watermark(Watermark(MAX_TIMESTAMP), out)
    assert out.watermarks == [MAX_TIMESTAMP]
    assert operator.next_timer_ms is None
    assert operator.snapshot(Barrier(1), out) == type(operator.snapshot(Barrier(1), out))()


def test_rows_may_carry_watermarks_and_batches_be_cut_at_them(bench, out):
    strategy = WatermarkStrategy.punctuated(timestamp="at", watermark=pl.col("mark"), unit="us", exact=True)
    operator = opened(bench, strategy)
    operator.process_batch(batch(1, 2, 3, marks=[None, 1, None]), 0, out)
    kinds = [e.num_rows if isinstance(e, Batch) else (e.timestamp - START) // SECOND for e in out.elements]
    assert kinds == [2, 1, 1]


def test_after_a_restore_the_watermark_is_the_least_that_stood_downstream(bench, out):
    one, other = opened(bench), opened(bench)
    one.process_batch(batch(10), 0, out)
    other.process_batch(batch(20), 0, out)
    saved = [state for operator in (one, other) for state in operator.snapshot(Barrier(1), out).operator]
    out.elements.clear()
    again = opened(bench, restored=tuple(saved))
    assert again.next_timer_ms is not None, "nobody waits for the next row"
    again.process_time(bench.clock.now_ms(), out)
    again.process_batch(batch(9), 0, out)
    assert marks(out) == [pytest.approx(8, abs=1e-5)]
    again.process_batch(batch(11), 0, out)
    assert marks(out)[1:] == [pytest.approx(9, abs=1e-5)]


def test_a_generator_is_asked_as_time_passes(bench, out):
    operator = opened(bench, WatermarkStrategy.for_generator(Clocked, timestamp="at", unit="us"))
    operator.process_batch(batch(1), 0, out)
    assert out.watermarks == []
    bench.clock.advance(200)
    operator.process_time(bench.clock.now_ms(), out)
    assert out.watermarks == [bench.clock.now_ms()]


class Clocked(ps.WatermarkGenerator):
    """Says the clock's milliseconds."""

    def on_batch(self, times, rows):
        return None

    def on_periodic(self, now):
        return now // 1000


def tick(operator, bench, out, times):
    for _ in range(times):
        bench.clock.advance(200)
        operator.process_time(bench.clock.now_ms(), out)


def test_quiet_input_is_idle_until_rows_come_but_not_behind_a_pause(bench, out):
    operator = opened(bench, BOUNDED.with_idleness("1s"))
    operator.process_batch(batch(1), 0, out)
    tick(operator, bench, out, 4)
    bench.clock.advance(60_000)  # the output had no room: rows may wait
    operator.process_time(bench.clock.now_ms(), out)
    assert out.statuses == []
    tick(operator, bench, out, 7)
    assert out.statuses == [True]
    operator.process_batch(batch(2), 0, out)
    assert out.statuses == [True, False]


@pytest.mark.parametrize(("idle", "floor"), [((), 3), ((0,), 6), ((1,), 3), ((0, 1), 6)])
def test_idle_subtasks_hold_nobody_back_at_a_restore_but_all_of_them_forget_nothing(bench, out, idle, floor):
    saved = []
    for place, seconds in enumerate((5, 8)):
        operator = opened(bench, BOUNDED.with_idleness("1s"))
        operator.process_batch(batch(seconds), 0, out)
        if place in idle:
            tick(operator, bench, out, 7)
        saved += operator.snapshot(Barrier(1), out).operator
    again = opened(bench, BOUNDED.with_idleness("1s"), restored=json_of(saved))
    out.elements.clear()
    again.process_batch(batch(1), 0, out)
    assert marks(out) == [pytest.approx(floor, abs=1e-5)]


def json_of(states):
    """As they come back from a snapshot."""
    return tuple(msgspec.json.decode(msgspec.json.encode(state), type=type(state)) for state in states)


def test_a_row_without_a_time_is_a_loud_error(bench, out):
    with pytest.raises(BadRecordError, match=r"watermarks 'anew': event time 'at' is null .*: None"):
        opened(bench).process_batch(batch(1, None), 0, out)


def stream():
    from penstock_connectors.datagen import DatagenSource

    return ps.Environment().from_source(DatagenSource(rows=1, splits=1), uid="in")


def test_windows_are_possible_behind_it():
    made = stream().assign_timestamps_and_watermarks(WatermarkStrategy.monotonic(timestamp="ts")).uid("anew")
    assert made.flow.has_event_time
    made.key_by("user_id").window(ps.Tumbling("1s"))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (WatermarkStrategy.none(), "gives no event time"),
        (WatermarkStrategy.monotonic(timestamp="when"), "no column 'when'"),
        (WatermarkStrategy.monotonic(timestamp="ts").with_watermark_alignment("g", "1s"), "only sources can wait"),
    ],
)
def test_a_strategy_that_does_not_fit_is_refused_when_the_job_is_built(strategy, message):
    with pytest.raises(GraphError, match=message):
        stream().assign_timestamps_and_watermarks(strategy)
