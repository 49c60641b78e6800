"""The source operator over a scripted reader."""

import dataclasses
import datetime as dt
import json
from unittest.mock import Mock

import msgspec
import pyarrow as pa
import pytest
from tests.property.pools import pooled
from tests.unit.operators.scripted_source import MONOTONIC, SCHEMA, batch, opened, poll, scripted_reader, splits

from penstock.connector.source import BadRecord, PollResult, SourceBatch, SourceSplit
from penstock.connector.staging import DEAD_LETTER_SCHEMA, dead_letters
from penstock.core.elements import MAX_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark
from penstock.core.errors import BadRecordError, GraphError
from penstock.core.permits import CommitPermit
from penstock.eventtime.strategy import WatermarkStrategy
from penstock.operators.sources.source_operator import SourceOperator


@pytest.fixture
def reader(monkeypatch):
    return scripted_reader(monkeypatch)


def test_rows_get_their_event_time_and_the_watermark_follows_them(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    assert poll(operator, reader, out, PollResult((batch([5, 9, 7]),)))
    assert [row[TS_COLUMN] for row in out.rows] == [5, 9, 7]
    assert out.elements[-1] == Watermark(8)
    assert not poll(operator, reader, out, PollResult())


def test_a_mixed_batch_is_followed_by_the_minimum_over_its_splits(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a", "b"), no_more=False)
    poll(operator, reader, out, PollResult((batch([50, 10, 60, 20], ("a", "b"), [0, 1, 0, 1]),)))
    assert out.watermarks == [19]
    poll(operator, reader, out, PollResult((batch([100]),)))
    assert out.watermarks == [19], "b holds it back"


@pytest.mark.parametrize(
    ("column", "raw", "unit"),
    [
        (pa.int64(), 1_700_000_000, "s"),
        (pa.int64(), 1_700_000_000_000, "ms"),
        (pa.int64(), 1_700_000_000_000_000, "us"),
        (pa.int64(), 1_700_000_000_000_000_999, "ns"),
        (pa.timestamp("s"), 1_700_000_000, "ms"),
        (pa.timestamp("ms", tz="UTC"), 1_700_000_000_000, "ms"),
        (pa.timestamp("ns", tz="UTC"), 1_700_000_000_000_000_999, "ms"),
    ],
)
def test_every_kind_of_time_becomes_microseconds(bench, reader, out, column, raw, unit):
    schema = pa.schema([SCHEMA.field(0), pa.field("ts", column)])
    operator = opened(bench, WatermarkStrategy.monotonic(timestamp="ts", unit=unit), schema)
    operator.add_splits(splits("a"), no_more=False)
    poll(operator, reader, out, PollResult((batch([raw], schema=schema),)))
    assert out.elements[0].data.column(TS_COLUMN).to_pylist() == [1_700_000_000_000_000]


def test_seconds_that_were_taken_for_milliseconds_are_counted_and_logged_once(bench, reader, out, caplog):
    schema = pa.schema([SCHEMA.field(0), pa.field("ts", pa.int64())])
    operator = opened(bench, WatermarkStrategy.monotonic(timestamp="ts", unit="ms"), schema)
    operator.add_splits(splits("a"), no_more=False)
    for _ in range(2):
        poll(operator, reader, out, PollResult((batch([1_700_000_000, 1_700_000_001], schema=schema),)))
    poll(operator, reader, out, PollResult((batch([1_700_000_000_000], schema=schema),)))
    extra = operator._context.metrics.extra
    assert (extra["oldTimestamps"], extra["oldTimestampMs"]) == (4.0, 1_700_000_001.0)
    (line,) = caplog.messages
    assert "source 'in': event time 'ts' of rows is as early as 1700000001 ms after 1970" in line


def test_times_after_2100_are_counted_and_logged_once(bench, reader, out, caplog):
    schema = pa.schema([SCHEMA.field(0), pa.field("ts", pa.int64())])
    operator = opened(bench, WatermarkStrategy.monotonic(timestamp="ts", unit="ms"), schema)
    operator.add_splits(splits("a"), no_more=False)
    for _ in range(2):
        poll(operator, reader, out, PollResult((batch([4_133_980_800_000, 1_700_000_000_000], schema=schema),)))
    poll(operator, reader, out, PollResult((batch([4_133_980_799_999], schema=schema),)))
    extra = operator._context.metrics.extra
    assert (extra["distantTimestamps"], extra["distantTimestampMs"]) == (2.0, 4_133_980_800_000.0)
    assert "oldTimestamps" not in extra
    (line,) = caplog.messages
    assert "source 'in': event time 'ts' of rows is as late as 4133980800000 ms after 1970" in line


def test_a_text_column_is_no_event_time(bench, reader):
    schema = pa.schema([SCHEMA.field(0), pa.field("ts", pa.string())])
    with pytest.raises(GraphError, match="'ts' is string, which is no event time"):
        opened(bench, schema=schema)


def test_bad_times_fail_by_default(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    with pytest.raises(BadRecordError, match=r"source 'in': event time 'ts' is null .*\(in a\)"):
        poll(operator, reader, out, PollResult((batch([5, None]),)))
    assert out.elements == []
    metrics = operator._context.metrics
    assert metrics.extra["badTimestamps"] == 1
    assert metrics.texts["badRecord"].startswith("event time 'ts' is null")


def test_records_that_fail_the_job_are_counted_and_shown_like_those_that_are_left_out(bench, reader, out, monkeypatch):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    error = BadRecordError("line 4: no JSON (1 more in the same read)", values="line: b'['", where="line 4", records=2)
    monkeypatch.setattr(reader, "poll", Mock(side_effect=error))
    with pytest.raises(BadRecordError):
        operator.poll(out, backpressured=False)
    metrics = operator._context.metrics
    assert (metrics.extra["badRecords"], metrics.texts["badRecord"]) == (2, "line 4; line: b'['")


@pytest.mark.parametrize(
    ("value", "unit", "way"),
    [
        (1_700_000_000_000_000, "ms", "its numbers count us: set unit='us' on the watermark strategy"),
        (1_700_000_000_000_000_000, "ms", "its numbers count ns: set unit='ns' on the watermark strategy"),
        (1_700_000_000_000, "s", "its numbers count ms: set unit='ms' on the watermark strategy"),
        (1 << 62, "s", "check the strategy's unit"),
    ],
)
def test_a_time_beyond_the_years_is_told_with_the_unit_that_fits(bench, reader, out, value, unit, way):
    schema = pa.schema([SCHEMA.field(0), pa.field("ts", pa.int64())])
    operator = opened(bench, WatermarkStrategy.monotonic(timestamp="ts", unit=unit), schema)
    operator.add_splits(splits("a"), no_more=False)
    with pytest.raises(BadRecordError) as caught:
        poll(operator, reader, out, PollResult((batch([value], schema=schema),)))
    assert str(value) not in caught.value.message, "a setting may hide values"
    assert caught.value.values == f"value: {value}"
    assert caught.value.hint == f"{way}, or set on_bad_record='skip' or 'dead-letter'"


def test_a_time_in_the_wrong_unit_is_a_bad_record_not_the_end_of_time(bench, reader, out):
    schema = pa.schema([SCHEMA.field(0), pa.field("ts", pa.int64())])
    operator = opened(bench, WatermarkStrategy.monotonic(timestamp="ts", unit="s"), schema, policy="skip")
    operator.add_splits(splits("a"), no_more=False)
    poll(operator, reader, out, PollResult((batch([1_700_000_000_000, 10], schema=schema),)))
    assert [row["v"] for row in out.rows] == [1]
    assert out.watermarks == [9_999_999]
    assert operator._context.metrics.extra["badTimestamps"] == 1


@pytest.mark.parametrize("shown", [True, False])
def test_the_first_bad_record_is_published_with_its_value_if_the_job_shows_values(bench, reader, out, shown):
    schema = pa.schema([SCHEMA.field(0), pa.field("ts", pa.int64())])
    strategy = WatermarkStrategy.monotonic(timestamp="ts", unit="s")
    operator = opened(bench, strategy, schema, policy="skip")
    settings = msgspec.structs.replace(operator._context.settings, show_values_in_errors=shown)
    operator._context = dataclasses.replace(operator._context, settings=settings)
    operator.add_splits(splits("a"), no_more=False)
    poll(operator, reader, out, PollResult((batch([1_700_000_000_000], schema=schema),)))
    text = operator._context.metrics.texts["badRecord"]
    assert text.startswith("event time 'ts' is null or outside the years 1 to 9999 (in a)")
    assert ("1700000000000" in text) is shown


def test_a_bad_record_of_the_reader_is_published_without_secrets(bench, reader, out):
    operator = opened(bench, policy="skip")
    operator.add_splits(splits("a"), no_more=False)
    record = BadRecord("line 1: login=db://me:hidden1@host", 'value: b\'{"password": "hidden2')
    poll(operator, reader, out, PollResult(bad_record=record))
    text = operator._context.metrics.texts["badRecord"]
    assert text.startswith("line 1: login=db://me:******@host; value: ")
    assert "hidden" not in text


def test_bad_times_become_dead_letters_with_their_split(bench, reader, out):
    operator = opened(bench, policy="dead-letter")
    operator.add_splits(splits("a", "b"), no_more=False)
    poll(operator, reader, out, PollResult((batch([5, None, 7], ("a", "b"), [0, 1, 1]),)))
    (letters,) = out.sides["dead-letter"]
    (letter,) = letters.to_pylist()
    assert letter["topic"] == "b"
    assert json.loads(letter["value"]) == {"v": 1, "ts": None}
    assert [row["v"] for row in out.rows] == [0, 2]
    assert out.watermarks == [4]


def test_rows_with_bad_times_are_left_out_of_columns_of_views_too(bench, reader, out):
    schema = pa.schema([("s", pa.string_view()), SCHEMA.field("ts")])
    data = pa.record_batch(
        [
            pooled(["short", "long " * 9, None, "longer " * 9], pa.string_view()),
            pa.array([5, None, 6, 7], schema[1].type),
        ],
        schema=schema,
    )
    operator = opened(bench, policy="dead-letter", schema=schema)
    operator.add_splits(splits("a"), no_more=False)
    poll(operator, reader, out, PollResult((SourceBatch(data, ("a",)),)))
    ((letter,),) = [letters.to_pylist() for letters in out.sides["dead-letter"]]
    assert json.loads(letter["value"]) == {"s": "long " * 9, "ts": None}
    assert [row["s"] for row in out.rows] == ["short", None, "longer " * 9]
    assert out.elements[0].data.schema.field("s").type == pa.string_view()


def test_dead_letters_of_the_connector_are_passed_on(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    letters = pa.record_batch(
        {
            "error": ["why"],
            "value": pa.array([b"?"], pa.large_binary()),
            "topic": ["t"],
            "partition": [1],
            "offset": [2],
        }
    )
    poll(operator, reader, out, PollResult((batch([], dead_letters=letters),)))
    (passed,) = out.sides["dead-letter"]
    assert passed.schema == DEAD_LETTER_SCHEMA
    known = {"value": b"?", "topic": "t", "partition": 1, "offset": 2, "error": "why"}
    assert passed.to_pylist() == [{**known, "key": None, "timestamp": None, "headers": None}]
    assert out.elements == []


def test_back_pressure_stops_reading_and_holds_idleness_off(bench, reader, out):
    operator = opened(bench, MONOTONIC.with_idleness("1s"))
    operator.add_splits(splits("a", "b"), no_more=False)
    poll(operator, reader, out, PollResult((batch([10]),), caught_up=("b",)))
    bench.clock.advance(999)
    assert not poll(operator, reader, out, backpressured=True)
    bench.clock.advance(500)
    poll(operator, reader, out)
    assert out.watermarks == []
    bench.clock.advance(1000)
    poll(operator, reader, out)
    assert out.watermarks == [9]
    assert out.statuses == [True], "a is idle by now too"
    poll(operator, reader, out, PollResult((batch([20]),), caught_up=("b",)))
    assert out.statuses == [True, False]
    assert out.elements[-3].idle is False, "active again before its rows"


def test_a_partition_whose_system_does_not_answer_is_not_idle(bench, reader, out):
    operator = opened(bench, MONOTONIC.with_idleness("1s"))
    operator.add_splits(splits("a", "b"), no_more=False)
    poll(operator, reader, out, PollResult((batch([10]), batch([10], ids=("b",)))))
    for _ in range(43):
        bench.clock.advance(1000)
        poll(operator, reader, out, PollResult())
    poll(operator, reader, out, PollResult((batch([43_000_000]),)))
    bench.clock.advance(999)
    poll(operator, reader, out, PollResult((batch([44_000_000]),), caught_up=("b",)))
    bench.clock.advance(999)
    poll(operator, reader, out, PollResult((batch([43_000_000], ids=("b",)),), caught_up=("a",)))
    assert out.watermarks == [9, 42_999_999], "the rows of b are not late"
    assert out.statuses == []


def test_a_subtask_without_splits_is_idle_once_it_knows(bench, reader, out):
    operator = opened(bench)
    operator.poll(out, backpressured=False)
    assert out.statuses == [], "nothing was assigned yet: splits may come"
    operator.add_splits((), no_more=False)
    operator.poll(out, backpressured=False)
    operator.poll(out, backpressured=False)
    assert out.statuses == [True]
    assert not operator.finished


def test_a_bounded_end_lets_time_end_once(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=True)
    poll(operator, reader, out, PollResult((batch([10]),), finished=("a",)))
    assert out.watermarks[-1] == MAX_TIMESTAMP
    assert out.statuses == []
    assert operator.finished
    assert not operator.poll(out, backpressured=False)


def test_more_splits_may_come_until_the_job_says_no_more(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    poll(operator, reader, out, PollResult(finished=("a",)))
    assert not operator.finished
    operator.add_splits((), no_more=True)
    operator.poll(out, backpressured=False)
    assert operator.finished
    assert out.watermarks == [MAX_TIMESTAMP]


def test_without_event_time_rows_pass_as_they_are(bench, reader, out):
    operator = opened(bench, None)
    operator.add_splits(splits("a"), no_more=True)
    poll(operator, reader, out, PollResult((batch([None]),), finished=("a",)))
    assert out.rows == [{"v": 0, "ts": None}]
    assert out.watermarks == [MAX_TIMESTAMP]


def test_exact_cuts_behind_every_row_that_advances(bench, reader, out):
    operator = opened(bench, WatermarkStrategy.monotonic(timestamp="ts", exact=True))
    operator.add_splits(splits("a"), no_more=False)
    poll(operator, reader, out, PollResult((batch([5, 3, 9, 1]),)))
    shape = [e.timestamp if isinstance(e, Watermark) else e.num_rows for e in out.elements]
    assert shape == [1, 4, 2, 8, 1]


def test_a_suspended_source_is_silent(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    operator.suspend()
    assert not poll(operator, reader, out, PollResult((batch([5]),)))
    assert out.elements == []


def test_a_restore_continues_with_positions_and_lateness(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a", "b"), no_more=False)
    poll(operator, reader, out, PollResult((batch([50, 10], ("a", "b"), [0, 1]),), finished=("b",)))
    assert out.watermarks == [49]
    snapshot = operator.snapshot(Barrier(3), out)
    states = msgspec.json.decode(msgspec.json.encode(snapshot.operator), type=tuple[msgspec.Raw, ...])
    assert len(states) == 2

    reader.added, reader.splits = [], {}
    again = opened(bench, restored=snapshot.operator)
    assert reader.added == ["a", "b"]
    assert reader.splits["a"].watermark == 49
    assert reader.splits["b"].finished
    again.add_splits(splits("a"), no_more=True)
    assert reader.added == ["a", "b"], "known splits are not added twice"
    again.poll(out, backpressured=False)
    assert out.watermarks == [49, 49], "what was late stays late"


def test_the_floor_after_a_restore_is_the_lowest_of_all_active_subtasks(bench, reader, out):
    """Its own floor would make rows of a split that moved here late."""
    states = []
    for time in (100, 50):
        operator = opened(bench)
        operator.add_splits(splits("a"), no_more=False)
        poll(operator, reader, out, PollResult((batch([time]),)))
        states += [s for s in operator.snapshot(Barrier(1), out).operator if s.mode == "union"]
    out.elements.clear()
    together = msgspec.structs.replace(states[0], items=tuple(i for s in states for i in s.items))
    again = opened(bench, restored=(together,))
    again.add_splits((SourceSplit(id="a", watermark=99),), no_more=False)
    again.poll(out, backpressured=False)
    assert out.watermarks == [49, 99]


def test_a_subtask_without_a_watermark_yet_holds_the_floor_down(bench, reader, out):
    """Nothing had passed downstream: with the others' floor its rows would be late after a restore."""
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    (floor,) = [s for s in operator.snapshot(Barrier(1), out).operator if s.mode == "union"]
    again = opened(bench, restored=(msgspec.structs.replace(floor, items=(*floor.items, 100)),))
    again.add_splits(splits("a"), no_more=False)
    again.poll(out, backpressured=False)
    assert out.watermarks == []


def test_positions_are_published_for_the_completed_checkpoint_only(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    for checkpoint in (1, 2, 3):
        poll(operator, reader, out, PollResult((batch([checkpoint]),)))
        operator.snapshot(Barrier(checkpoint), out)
    operator.notify_aborted(1)
    operator.notify_complete(CommitPermit("job", "another run", 1, 3, 9))
    operator.notify_complete(CommitPermit("job", "run1", 1, 2, 9))
    operator.notify_complete(CommitPermit("job", "run1", 1, 2, 9))
    assert [[s.state["position"] for s in c] for c in reader.completed] == [[2]]
    assert set(operator._positions) == {3}


def test_close_is_idempotent_and_works_before_open(bench, reader):
    SourceOperator().close()
    operator = opened(bench)
    operator.close()
    operator.close()
    assert reader.closed == 1


def test_timestamps_with_dates_of_year_10000_are_refused(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    last = (dt.datetime(9999, 12, 31, 23, 59, 59, 999_999) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    poll(operator, reader, out, PollResult((batch([last]),)))
    with pytest.raises(BadRecordError):
        poll(operator, reader, out, PollResult((batch([last + 1]),)))


def sizes(out):
    return [element.num_rows for element in out.elements if isinstance(element, Batch)]


def test_small_batches_of_one_poll_go_on_as_one(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a", "b"), no_more=False)
    parts = (batch([50, 10], ("a", "b"), [0, 1]), batch([20]), batch([40, 30], ("b", "a"), [0, 1]))
    assert poll(operator, reader, out, PollResult(parts))
    assert sizes(out) == [5]
    assert [row[TS_COLUMN] for row in out.rows] == [50, 10, 20, 40, 30]
    assert out.watermarks == [39], "b is at 40, a at 50"


def test_a_reader_with_more_is_asked_until_a_batch_is_worth_it(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    assert poll(
        operator, reader, out, *(PollResult((batch(range(at, at + 10_000)),)) for at in range(0, 90_000, 10_000))
    )
    assert sizes(out) == [60_000], "as many as fit into what was asked for"
    assert [row[TS_COLUMN] for row in out.rows] == list(range(60_000))
    assert out.watermarks == [59_998]
    assert poll(operator, reader, out)
    assert sizes(out) == [60_000, 30_000]


def test_a_reader_that_gave_all_or_little_is_not_asked_again(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    more = PollResult((batch([90_000]),))
    poll(operator, reader, out, PollResult((batch(range(10_000)),), drained=True), more)
    assert (sizes(out), len(reader.script), operator.drained) == ([10_000], 1, True)
    poll(operator, reader, out, PollResult((batch(range(5)),)))
    assert sizes(out) == [10_000, 1], "the one that was left over"
    operator.poll_rows = 10_000
    poll(operator, reader, out, PollResult((batch(range(10_000)),)))
    assert sizes(out) == [10_000, 1, 5]


def test_large_batches_stay_what_they_are(bench, reader, out):
    operator = opened(bench)
    operator.add_splits(splits("a"), no_more=False)
    rows = 40_000  # of 16 bytes: two of them are too much for one copy
    poll(operator, reader, out, PollResult((batch(range(rows)), batch(range(rows)), batch([7]))))
    assert sizes(out) == [rows, rows + 1]
    assert out.watermarks == [rows - 2]


def test_batches_with_dead_letters_or_without_a_time_are_judged_one_by_one(bench, reader, out):
    letters = dead_letters(value=[b"x"], topic=["t"], partition=[0], offset=[1], error=["why"])
    operator = opened(bench, policy="dead-letter")
    operator.add_splits(splits("a", "b"), no_more=False)
    parts = (batch([5]), batch([6], dead_letters=letters), batch([None, 9], ("b",)), batch([8]))
    poll(operator, reader, out, PollResult(parts))
    assert [row[TS_COLUMN] for row in out.rows] == [5, 6, 9, 8]
    assert out.watermarks == [7], "a is at 8, b at 9"
