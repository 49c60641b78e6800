"""What outputs hold by spans of event time, and where two outputs differ."""

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
from penstock_airflow.outputs import Held, Spans, differences, held_by, told

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
    assert held_by(str(folder), SPANS, 0).rows == WANTED
    assert held_by(str(folder), SPANS, 5_001_000).rows == {}
    with pytest.raises(UsageError, match="no column 'when'"):
        held_by(str(folder), Spans("when", 1), 0)


def test_other_places_are_refused():
    with pytest.raises(UsageError, match="no output that can be read"):
        held_by("s3://bucket/out", SPANS, 0)


@pytest.mark.parametrize(
    "time", [1_500, "1970-01-01T00:00:01.500", "1970-01-01T00:00:01.500Z", "1970-01-01T01:00:01.5+01:00"]
)
def test_times(time):
    assert SPANS.hold([{"at": time}, {"at": datetime.fromtimestamp(1.5, UTC)}]).rows == {1_000: 2}


@given(st.integers(1, 7), st.lists(st.integers(0, 50), min_size=1), st.integers(0, 60))
def test_compared_are_whole_spans_behind_the_first_one(span, times, until):
    """A naive model: a span counts when its first row is behind the first span seen, and time has passed its end."""
    spans = Spans("at", span)
    of = spans.hold({"at": time} for time in times)
    naive = [
        start
        for start in range(0, 100, span)
        if start > min(of.rows) and all(t <= until for t in range(start, start + span))
    ]
    assert spans.compared(of, until) == naive


def test_nothing_seen_is_nothing_compared():
    assert SPANS.compared(Held(), 10_000) == []


ROWS = st.lists(st.fixed_dictionaries({"at": st.integers(0, 3_999), "n": st.integers(0, 2)}), max_size=8)


@given(ROWS, ROWS, st.randoms(), st.booleans())
def test_what_differs(live, scratch, chance, counts_only):
    """A naive model: spans behind the first are equal as multisets, the first one is part of the live one."""
    if chance.random() < 0.5:
        live = [*live, *scratch]
    if chance.random() < 0.5:
        live = sorted(scratch, key=lambda _: chance.random())
    of = SPANS.hold(scratch)
    found = differences(SPANS.hold(live, of.first), of, SPANS.compared(of, 3_999), counts_only=counts_only)

    def rows(output, start):
        return sorted((row["at"], row["n"]) for row in output if row["at"] // 1_000 * 1_000 == start)

    first = min((row["at"] // 1_000 * 1_000 for row in scratch), default=4_000)
    seen = len if counts_only else list
    behind = range(first + 1_000, 4_000, 1_000)
    different = [start for start in behind if seen(rows(live, start)) != seen(rows(scratch, start))]
    lost = Counter(rows(scratch, first)) - Counter(rows(live, first))
    assert len(found) == len(different) + bool(lost and not counts_only)


def test_differences_are_told_in_one_line():
    def held(*rows, single=None):
        return SPANS.hold(({"at": at, "n": n} for at, n in rows), single)

    scratch = held((0, 1), (0, 2), (1_000, 1), (2_000, 1), (2_000, 2))
    live = held((0, 9), (0, 1), (1_000, 2), (2_000, 2), single=0)
    found = differences(live, scratch, [1_000, 2_000])
    assert found == [
        "1970-01-01T00:00:00+00:00: 1 rows of the scratch are none of the job's",
        "1970-01-01T00:00:01+00:00: 1 rows in both, but not the same ones",
        "1970-01-01T00:00:02+00:00: 1 rows, 2 of the scratch",
    ]
    assert differences(live, scratch, [1_000, 2_000], counts_only=True) == found[2:]
    assert json.dumps(told(["a"] * 5)) == '"a; a; a and 2 more"'
