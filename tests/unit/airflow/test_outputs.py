"""Counting rows of outputs by spans of event time, and where two outputs differ."""

import json
import os
from collections import Counter
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import UsageError
from penstock_airflow.outputs import Spans, differences, rows_by_span, told

SPANS = Spans("at", 1_000)
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
    assert rows_by_span(str(folder), SPANS, 0) == WANTED
    assert rows_by_span(str(folder), SPANS, 5_001_000) == {}
    with pytest.raises(UsageError, match="no column 'when'"):
        rows_by_span(str(folder), Spans("when", 1), 0)


def test_other_places_are_refused():
    with pytest.raises(UsageError, match="no output that can be read"):
        rows_by_span("s3://bucket/out", SPANS, 0)


@pytest.mark.parametrize(
    "time", [1_500, "1970-01-01T00:00:01.500", "1970-01-01T00:00:01.500Z", "1970-01-01T01:00:01.5+01:00"]
)
def test_times(time):
    assert SPANS.count([time, datetime.fromtimestamp(1.5, UTC)]) == {1_000: 2}


@given(st.integers(1, 7), st.lists(st.integers(0, 50), min_size=1), st.integers(0, 60))
def test_compared_are_whole_spans_behind_the_first_one(span, times, until):
    """A naive model: a span counts when its first row is behind the first span seen, and time has passed its end."""
    spans = Spans("at", span)
    of = spans.count(times)
    naive = [
        start
        for start in range(0, 100, span)
        if start > min(of) and all(t <= until for t in range(start, start + span))
    ]
    assert spans.compared(of, until) == naive


def test_nothing_seen_is_nothing_compared():
    assert SPANS.compared(Counter(), 10_000) == []


def test_differences_are_told_in_one_line():
    live, scratch = Counter({0: 1, 1_000: 2, 2_000: 3}), Counter({0: 9, 1_000: 2, 2_000: 1})
    found = differences(live, scratch, [1_000, 2_000])
    assert found == ["1970-01-01T00:00:02+00:00: 3 rows, 1 of the scratch"]
    assert json.dumps(told(["a"] * 5)) == '"a; a; a and 2 more"'
