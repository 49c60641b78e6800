"""Strategies of a source beyond bounded disorder: punctuated, generators, ingestion time; times ahead of the clock."""

import datetime as dt
import pickle
from types import SimpleNamespace

import cloudpickle
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from tests.property.pools import pooled
from tests.unit.operators.scripted_source import SCHEMA, batch, opened, poll, scripted_reader, splits

from penstock.api.functions.watermark_checks import check_strategy
from penstock.api.functions.watermark_code import pack_code
from penstock.connector.source import PollResult, SourceBatch, SourceSplit
from penstock.core.elements import TS_COLUMN, Barrier, Watermark
from penstock.core.errors import GraphError, PenstockError
from penstock.eventtime.strategy import WatermarkStrategy
from penstock.operators.rows.user_functions import FunctionLoadError, UserFunctionError

START_US = 1_700_000_000_000_000
MARKED = pa.schema([*SCHEMA, pa.field("mark", pa.timestamp("ms", tz="UTC")), pa.field("last", pa.bool_())])
DAY_US = 86_400_000_000


@pytest.fixture
def reader(monkeypatch):
    return scripted_reader(monkeypatch)


def packed(strategy, schema=MARKED):
    return b"" if strategy.code is None else pack_code(strategy, schema, "source")


def running(bench, strategy, schema=SCHEMA, ids=("a",), **more):
    operator = opened(bench, strategy, schema, payload=packed(strategy, schema), **more)
    operator.add_splits(splits(*ids), no_more=False)
    return operator


def marked(times, marks, last=None, **more):
    data = batch(times, schema=SCHEMA, **more)
    columns = [*data.data.columns, pa.array(marks, MARKED.field("mark").type), pa.array(last or [None] * len(times))]
    columns[-1] = columns[-1].cast(pa.bool_())
    return type(data)(pa.record_batch(columns, schema=MARKED), data.split_ids, data.split_index)


class Slow:
    """Ten behind the smallest time of a batch; between batches as far as the clock less a second."""

    def __init__(self):
        self.batches = 0

    def on_batch(self, times, rows):
        assert rows.column(TS_COLUMN).to_pylist() == times.tolist()
        self.batches += 1
        return int(times.min()) - 10

    def on_periodic(self, now):
        return now - 1_000_000 if self.batches > 1 else None


class Broken:
    def on_batch(self, times, rows):
        raise RuntimeError("no idea")

    def on_periodic(self, now):
        return None


class Texts(Broken):
    def on_batch(self, times, rows):
        return "soon"


def test_rows_carry_their_watermarks_in_a_column(bench, reader, out):
    strategy = WatermarkStrategy.punctuated(timestamp="ts", watermark="mark")
    operator = running(bench, strategy, MARKED)
    poll(operator, reader, out, PollResult((marked([5000, 9000, 7000], [None, None, None]),)))
    assert out.watermarks == [], "no row carried one, however far their times are"
    poll(operator, reader, out, PollResult((marked([9000, 8000], [6, 4]),)))
    assert out.watermarks == [6000], "milliseconds of the column, microseconds inside"
    poll(operator, reader, out, PollResult((marked([9000], [3]),)))
    assert out.watermarks == [6000], "one that goes back is ignored"


def test_without_watermarks_rows_have_times_alone(bench, reader, out):
    operator = running(bench, WatermarkStrategy.no_watermarks(timestamp="ts"))
    poll(operator, reader, out, PollResult((batch([START_US, START_US + 5]),)))
    poll(operator, reader, out, PollResult((batch([START_US + DAY_US]),)))
    assert [row[TS_COLUMN] for row in out.rows] == [START_US, START_US + 5, START_US + DAY_US]
    assert out.watermarks == []


def test_an_expression_marks_rows_and_exact_cuts_behind_them(bench, reader, out):
    expression = pl.when(pl.col("last")).then(pl.col("ts"))
    strategy = WatermarkStrategy.punctuated(timestamp="ts", watermark=expression, exact=True)
    operator = running(bench, strategy, MARKED)
    flags = [False, True, None, True]
    poll(operator, reader, out, PollResult((marked([5, 3, 9, 4], [None] * 4, flags),)))
    shape = [e.timestamp if isinstance(e, Watermark) else e.num_rows for e in out.elements]
    assert shape == [2, 3, 2, 4]


def test_each_split_has_the_marks_of_its_own_rows(bench, reader, out):
    operator = running(bench, WatermarkStrategy.punctuated(timestamp="ts", watermark="mark"), MARKED, ids=("a", "b"))
    rows = marked([1, 2, 3, 4], [50, None, None, 20], ids=("a", "b"), index=[0, 1, 0, 1])
    poll(operator, reader, out, PollResult((rows,)))
    assert out.watermarks == [20_000]


def test_a_generator_belongs_to_a_split_and_is_asked_between_batches(bench, reader, out):
    operator = running(bench, WatermarkStrategy.for_generator(Slow, timestamp="ts"), ids=("a", "b"))
    times = [START_US + n for n in (50, 20, 60, 30)]
    poll(operator, reader, out, PollResult((batch(times, ("a", "b"), [0, 1, 0, 1]),)))
    assert out.watermarks == [START_US + 10]
    poll(operator, reader, out, PollResult((batch([START_US + 70]),)))
    assert out.watermarks == [START_US + 10], "b, with one batch so far, says nothing between batches"
    poll(operator, reader, out, PollResult((batch([START_US + 40], ids=("b",)),)))
    bench.clock.advance(5000)
    poll(operator, reader, out, PollResult())
    assert out.watermarks[-1] == START_US + 4_000_000


def test_a_generator_is_shown_the_views_of_its_own_split(bench, reader, out):
    schema = pa.schema([("v", pa.string_view()), SCHEMA.field("ts")])
    times = [START_US + n for n in (50, 20, 60, 30)]
    texts = pooled(["a text of some length", None, "short", "another text of some length"], pa.string_view())
    data = pa.record_batch([texts, pa.array(times, schema[1].type)], schema=schema)
    operator = running(bench, WatermarkStrategy.for_generator(Slow, timestamp="ts"), schema, ids=("a", "b"))
    poll(operator, reader, out, PollResult((SourceBatch(data, ("a", "b"), np.array([0, 1, 0, 1])),)))
    assert out.watermarks == [START_US + 10]
    assert [row["v"] for row in out.rows] == texts.to_pylist()


@pytest.mark.parametrize(
    ("generator", "message"), [(Broken, "RuntimeError: no idea at .*test_source"), (Texts, "'soon'")]
)
def test_an_error_of_a_generator_names_the_place(bench, reader, out, generator, message):
    operator = running(bench, WatermarkStrategy.for_generator(generator, timestamp="ts"))
    with pytest.raises(UserFunctionError, match=message) as raised:
        poll(operator, reader, out, PollResult((batch([5]),)))
    assert not raised.value.values or raised.value.values.startswith("first row of a batch of 1: ")


def test_code_that_cannot_be_loaded_is_an_error_of_the_source(bench, reader):
    strategy = WatermarkStrategy.for_generator(Slow, timestamp="ts")
    with pytest.raises(FunctionLoadError, match="watermark generator: the function cannot be loaded"):
        opened(bench, strategy, payload=cloudpickle.dumps(Slow)[:-4])


def test_ingestion_time_is_the_clocks_and_never_goes_back(bench, reader, out):
    operator = running(bench, WatermarkStrategy.ingestion_time(), ids=("a", "quiet"))
    poll(operator, reader, out, PollResult((batch([5, 9]),)))
    assert [row[TS_COLUMN] for row in out.rows] == [START_US, START_US]
    assert out.watermarks == [START_US - 1], "the split without rows holds nothing back"
    bench.clock.advance(20)
    poll(operator, reader, out, PollResult())
    assert out.watermarks[-1] == START_US + 20_000 - 1
    state = operator.snapshot(Barrier(1), out).operator
    bench.clock._start_ms -= 3_600_000
    again = opened(bench, WatermarkStrategy.ingestion_time(), restored=state)
    again.add_splits((SourceSplit(id="a"),), no_more=False)
    out.elements.clear()
    poll(again, reader, out, PollResult((batch([5]),)))
    assert out.watermarks[0] == START_US + 20_000 - 1
    assert out.rows[0][TS_COLUMN] > out.watermarks[0], "a clock that was set back makes no row late"


def test_a_time_far_ahead_of_the_clock_does_not_move_the_watermark(bench, reader, out):
    operator = running(bench, WatermarkStrategy.monotonic(timestamp="ts"), ids=("a", "b"))
    far = START_US + 366 * DAY_US
    rows = batch([START_US, far, START_US + 364 * DAY_US], ("a", "b"), [0, 0, 1])
    poll(operator, reader, out, PollResult((rows,)))
    assert out.watermarks == [START_US - 1]
    assert [row[TS_COLUMN] for row in out.rows] == [START_US, far, START_US + 364 * DAY_US], "rows keep their times"
    assert operator._context.metrics.extra["futureTimestamps"] == 1


@pytest.mark.parametrize(
    ("limit", "watermark", "counted"),
    [("1h", START_US - 1, 1), (None, START_US + DAY_US - 1, 0), ("1d", START_US + DAY_US - 1, 0)],
)
def test_the_limit_can_be_set_and_lifted(bench, reader, out, limit, watermark, counted):
    operator = running(bench, WatermarkStrategy.monotonic(timestamp="ts").with_future_limit(limit))
    poll(operator, reader, out, PollResult((batch([START_US, START_US + DAY_US]),)))
    assert out.watermarks == [watermark]
    assert operator._context.metrics.extra.get("futureTimestamps", 0) == counted


def test_marks_and_generated_watermarks_have_the_limit_too(bench, reader, out):
    strategy = WatermarkStrategy.punctuated(timestamp="ts", watermark="mark").with_future_limit("1h")
    operator = running(bench, strategy, MARKED)
    poll(operator, reader, out, PollResult((marked([1, 2], [START_US // 1000, (START_US + DAY_US) // 1000]),)))
    assert out.watermarks == [START_US]
    assert operator._context.metrics.extra["futureTimestamps"] == 1
    generated = running(bench, WatermarkStrategy.for_generator(Slow, timestamp="ts").with_future_limit("1h"))
    out.elements.clear()
    poll(generated, reader, out, PollResult((batch([START_US + DAY_US]),)))
    assert out.watermarks == []
    assert generated._context.metrics.extra["futureTimestamps"] == 1


def test_a_mark_outside_the_calendar_is_an_error(bench, reader, out):
    operator = running(bench, WatermarkStrategy.punctuated(timestamp="ts", watermark=pl.col("v") + (1 << 60)))
    with pytest.raises(PenstockError, match="outside the years 1 to 9999"):
        poll(operator, reader, out, PollResult((batch([5]),)))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (WatermarkStrategy.punctuated(timestamp="ts", watermark="when"), "column 'when'"),
        (WatermarkStrategy.punctuated(timestamp="ts", watermark=pl.col("when") + 1), "column 'when'"),
        (WatermarkStrategy.punctuated(timestamp="ts", watermark="last"), "the watermark in the rows is bool"),
        (WatermarkStrategy.punctuated(timestamp="ts", watermark=5), "5 is not a column or an expression"),
        (WatermarkStrategy.punctuated(timestamp="ts", watermark=pl.col("ts").max()), "row"),
        (WatermarkStrategy.for_generator(Slow(), timestamp="ts"), "not a watermark generator's class or factory"),
        (WatermarkStrategy.for_generator(Slow, timestamp="when"), "column 'when'"),
        (WatermarkStrategy.monotonic(timestamp="ts").with_future_limit(-1), "must not be negative"),
    ],
)
def test_a_strategy_that_does_not_fit_is_refused_when_the_job_is_built(strategy, message):
    with pytest.raises(GraphError, match=message):
        check_strategy(strategy, MARKED, "source"), packed(strategy)


def test_ingestion_time_needs_no_column():
    assert check_strategy(WatermarkStrategy.ingestion_time(), pa.schema([("v", pa.int64())]), "source")
    assert pickle.loads(packed(WatermarkStrategy.for_generator(Slow, timestamp="ts"))) is Slow
    assert dt.timedelta(milliseconds=WatermarkStrategy.ingestion_time().future_limit_ms) == dt.timedelta(days=365)


def test_a_source_ahead_of_its_group_waits_and_is_not_idle_meanwhile(bench, reader, out):
    strategy = WatermarkStrategy.monotonic(timestamp="ts").with_watermark_alignment("g", "1s").with_idleness("5s")
    operator = running(bench, strategy)
    metrics = operator._context.metrics.extra
    poll(operator, reader, out, PollResult())
    assert metrics["alignmentWatermark"] < -9e18, "it reads, and has no row yet"
    poll(operator, reader, out, PollResult((batch([START_US]),)))
    assert metrics["alignmentWatermark"] == START_US - 1
    operator.align(START_US - 2)
    reader.script.append(PollResult((batch([START_US + 5]),)))
    for _ in range(3):
        assert not operator.poll(out, backpressured=False)
        bench.clock.advance(6000)
    assert (out.watermarks, out.statuses) == ([START_US - 1], [])
    operator.align(START_US - 1)
    assert operator.poll(out, backpressured=False)
    assert out.watermarks[-1] == START_US + 4
    for _ in range(2):
        bench.clock.advance(6000)
        operator.align(START_US + 10)
        poll(operator, reader, out, PollResult(caught_up=("a",)))
    assert out.statuses == [True]
    assert metrics["alignmentWatermark"] > 9e18, "idle: it holds nobody up"


def test_a_split_ahead_of_its_neighbours_is_paused_and_not_idle_meanwhile(bench, reader, out):
    strategy = WatermarkStrategy.monotonic(timestamp="ts").with_watermark_alignment("g", "1s").with_idleness("5s")
    operator = running(bench, strategy, ids=("a", "b", "c"))
    second = 1_000_000
    poll(operator, reader, out, PollResult((batch([START_US + 9 * second]),)))
    assert reader.paused == {"a"}, "the others have no row yet"
    for _ in range(3):
        found = (batch([START_US], ids=("b",)), batch([START_US + 3 * second], ids=("c",)))
        poll(operator, reader, out, PollResult(found, caught_up=("a",)))
        bench.clock.advance(4000)
    assert reader.paused == {"a", "c"}
    assert out.statuses == []
    assert out.watermarks[-1] == START_US - 1
    poll(operator, reader, out, PollResult((batch([START_US + 2 * second], ids=("b",)),)))
    assert reader.paused == {"a"}
    operator.align(START_US + second)
    assert not operator.poll(out, backpressured=False), "the whole subtask waits for the group"
    operator.align(START_US + 20 * second)
    for _ in range(3):  # b and c fall idle: a is the last one left
        poll(operator, reader, out, PollResult(caught_up=("a", "b", "c")))
        bench.clock.advance(4000)
    assert reader.paused == set()
    assert out.watermarks[-1] == START_US + 9 * second - 1
    assert out.statuses == [], "a is not idle"


@pytest.mark.parametrize(
    "strategy",
    [
        WatermarkStrategy.none().with_watermark_alignment("g", "1s"),
        WatermarkStrategy.monotonic(timestamp="ts").with_watermark_alignment("g", -1),
    ],
)
def test_alignment_needs_event_time_and_a_drift(strategy):
    with pytest.raises(GraphError, match=r"alignment \('g'\) needs event time and a drift"):
        check_strategy(strategy, SCHEMA, "source")


def test_a_split_with_rows_that_carry_no_watermark_is_not_idle(bench, reader, out):
    strategy = WatermarkStrategy.punctuated(timestamp="ts", watermark="mark").with_idleness("30s")
    operator = running(bench, strategy, MARKED, ids=("a", "b"))
    for second in range(60):
        results = (marked([second], [second]), marked([second], [None], ids=("b",)))
        poll(operator, reader, out, PollResult(results, caught_up=("a", "b")))
        bench.clock.advance(1000)
    assert (out.watermarks, out.statuses) == ([], [])


def test_a_reader_that_can_not_pause_its_splits_is_read_as_a_whole(bench, reader, out, monkeypatch):
    methods = ("add_splits", "poll", "snapshot", "notify_complete", "close")
    whole = SimpleNamespace(**{name: getattr(reader, name) for name in methods})
    monkeypatch.setattr("scripted_source.Factory.create_reader", lambda _self, _spec, _context: whole)
    strategy = WatermarkStrategy.monotonic(timestamp="ts").with_watermark_alignment("g", "1s")
    operator = running(bench, strategy, ids=("a", "b"))
    found = (batch([START_US + 9_000_000]), batch([START_US], ids=("b",)))
    poll(operator, reader, out, PollResult(found))
    assert out.watermarks == [START_US - 1]
    operator.align(START_US - 2)
    assert not operator.poll(out, backpressured=False)
