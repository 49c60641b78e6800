"""What outputs hold by spans of event time, and where two outputs differ."""

import json
import os
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock_airflow.outputs import Spans, differences, first_differences, read_output, spans_after

SPANS = Spans("at", 1_000, 0)
TIMES = [0, 999, 1_000, 2_500]
WANTED = {0: 2, 1_000: 1, 2_000: 1}


@pytest.fixture(params=["jsonl", "arrow", "parquet"])
def folder(request, tmp_path):
    table = pa.table({"at": pa.array([t * 1_000 for t in TIMES], pa.timestamp("us", tz="UTC"))})
    path = tmp_path / f"part-out-run-0-1-0.{request.param}"
    if request.param == "jsonl":
        path.write_text("".join(f'{{"at":{t}}}\n' for t in TIMES))
    elif request.param == "parquet":
        pa.parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    (tmp_path / ".part-unfinished.jsonl").write_text('{"at":0}\n')
    os.utime(path, (5_000, 5_000))
    return tmp_path


def test_a_folder_of_each_format(folder):
    assert read_output(str(folder), SPANS, 0).rows == WANTED
    assert read_output(str(folder), SPANS, 5_001_000).rows == {}
    with pytest.raises(UsageError, match="no column 'when'"):
        read_output(str(folder), Spans("when", 1, 0), 0)


def test_other_places_are_refused():
    with pytest.raises(UsageError, match="not an output that can be read"):
        read_output("s3://bucket/out", SPANS, 0)


@pytest.mark.parametrize(
    "time", [1_500, "1970-01-01T00:00:01.500", "1970-01-01T00:00:01.500Z", "1970-01-01T01:00:01.5+01:00"]
)
def test_times(time):
    assert SPANS.content_of([{"at": time}, {"at": datetime.fromtimestamp(1.5, UTC)}]).rows == {1_000: 2}


@given(st.integers(1, 7), st.integers(0, 50), st.integers(0, 60))
def test_compared_are_spans_that_are_over(span, begin, until):
    """A naive model: a span counts from that of the first time on, when time has passed its end."""
    naive = [
        start
        for start in range(0, 100, span)
        if start + span > begin and all(t <= until for t in range(start, start + span))
    ]
    assert Spans("at", span, begin).compared(until) == naive


@given(st.integers(0, 20_000), st.integers(1, 5), st.integers(1, 3))
def test_spans_behind_a_savepoint_have_windows_that_had_not_fired(watermark_us, window_ms, windows):
    """A naive model: a window had fired when the last of its microseconds was passed."""
    span_ms = window_ms * windows
    reached = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=watermark_us)
    starts = range(0, 100, window_ms)
    fired = [start for start in starts if (start + window_ms) * 1_000 - 1 <= watermark_us]
    exact = spans_after("window_start", reached, span_ms, window_ms)
    assert [start for start in starts if start < exact.begin_ms] == fired
    whole = spans_after("window_start", reached, span_ms)
    assert whole.begin_ms % span_ms == 0
    assert exact.begin_ms <= whole.begin_ms < exact.begin_ms + window_ms + span_ms
    ends = spans_after("window_end", reached, span_ms)
    assert all(start + window_ms < ends.begin_ms for start in fired)


ROWS = st.lists(st.fixed_dictionaries({"at": st.integers(0, 3_999), "n": st.integers(0, 2)}), max_size=8)


@given(ROWS, ROWS, st.randoms(), st.booleans(), st.integers(0, 3_999))
def test_what_differs(live, scratch, chance, counts_only, begin):
    """A naive model: rows of a span are equal as multisets, those of before are part of the live ones."""
    if chance.random() < 0.5:
        live = [*live, *scratch]
    if chance.random() < 0.5:
        live = sorted(scratch, key=lambda _: chance.random())
    spans = Spans("at", 1_000, begin)
    of = spans.content_of(scratch)
    found = differences(spans.content_of(live, of.before), of, spans.compared(3_999), counts_only=counts_only)

    def rows(output, start, end):
        return sorted((row["at"], row["n"]) for row in output if start <= row["at"] < end)

    seen = len if counts_only else list
    bounds = [(max(begin, start), start + 1_000) for start in range(begin // 1_000 * 1_000, 4_000, 1_000)]
    different = [bound for bound in bounds if seen(rows(live, *bound)) != seen(rows(scratch, *bound))]
    lost = Counter(rows(scratch, 0, begin)) - Counter(rows(live, 0, begin))
    assert len(found) == len(different) + bool(lost and not counts_only)


@pytest.mark.parametrize(
    ("lost", "window_seconds", "told_of"),
    [
        (lambda minute, user: False, 0, []),
        (lambda minute, user: False, 60, []),
        (lambda minute, user: minute < 5, 0, [3, 4]),
        (lambda minute, user: minute < 5, 60, [2, 3, 4]),
        (lambda minute, user: minute == 2 and user == 0, 60, [2]),
    ],
)
def test_windows_that_were_open_at_a_savepoint_are_missed(lost, window_seconds, told_of):
    """The savepoint lies in the minute 2."""
    live = [{"at": minute * 60_000, "user": user, "n": 5} for minute in range(10) for user in range(3)]
    scratch = [row for row in live if row["at"] >= 120_000 and not lost(row["at"] // 60_000, row["user"])]
    spans = spans_after("at", datetime(1970, 1, 1, 0, 2, 20, tzinfo=UTC), 60_000, window_seconds * 1_000)
    of = spans.content_of(scratch)
    found = differences(spans.content_of(live, of.before), of, spans.compared(540_000))
    assert [text[:19] for text in found] == [f"1970-01-01T00:{minute:02d}:00" for minute in told_of]


def test_differences_are_told_in_one_line():
    def held(*rows):
        return Spans("at", 1_000, 1_000).content_of({"at": at, "n": n} for at, n in rows)

    scratch = held((0, 1), (0, 2), (1_000, 1), (2_000, 1), (2_000, 2))
    live = held((0, 9), (0, 1), (1_000, 2), (2_000, 2))
    found = differences(live, scratch, [1_000, 2_000])
    assert found == [
        "before all spans: 1 rows of the scratch job are not among the job's",
        "1970-01-01T00:00:01+00:00: 1 rows in both, but with different content",
        "1970-01-01T00:00:02+00:00: 1 rows, 2 of the scratch",
    ]
    assert differences(live, scratch, [1_000, 2_000], counts_only=True) == found[2:]
    assert json.dumps(first_differences(["a"] * 5)) == '"a; a; a and 2 more"'
