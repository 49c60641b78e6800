"""Windows in time zones: wall clocks against `zoneinfo`, and days when the clock is set."""

import datetime as dt
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.settings import JobSettings
from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN, Batch, Watermark
from penstock.core.errors import GraphError
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.registry import create_operator
from penstock.operators.time_zones import TimeZone, require_zone
from penstock.state.budget import MemoryBudget
from penstock.state.store import KeyedStateRequest, open_keyed_state

EPOCH = dt.datetime(1970, 1, 1)
HOUR = 3_600_000_000
#: Clocks that are set by an hour, by half an hour, at midnight, that skipped a day, and one that is never set.
ZONES = [
    "Europe/Berlin",
    "America/Los_Angeles",
    "Australia/Lord_Howe",
    "America/Havana",
    "Pacific/Apia",
    "Asia/Kolkata",
]
#: Minutes around the days on which some of them were set.
TIMES = st.one_of(
    *[
        st.integers(-3 * 1440, 3 * 1440).map(lambda m, d=d: m * 60_000_000 + micros(dt.datetime(*d)))
        for d in [
            (2021, 3, 14),
            (2021, 3, 28),
            (2021, 4, 4),
            (2021, 10, 3),
            (2021, 10, 31),
            (2021, 11, 7),
            (2011, 12, 30),
        ]
    ]
)


def micros(moment):
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


def shown(time, zone):
    """What the clock shows, by the standard library."""
    moment = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=time)
    return micros(moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None))


@settings(max_examples=150, deadline=None)
@given(zone=st.sampled_from(ZONES), time=TIMES)
def test_clocks_are_the_standard_librarys(zone, time):
    clock = TimeZone(zone)
    assert clock.local(np.array([time, time + HOUR])).tolist() == [shown(time, zone), shown(time + HOUR, zone)]
    first, last = clock.instant(shown(time, zone), last=False), clock.instant(shown(time, zone), last=True)
    assert first <= time <= last
    assert shown(first, zone) == shown(last, zone) == shown(time, zone)


@settings(max_examples=80, deadline=None)
@given(zone=st.sampled_from(ZONES), time=TIMES)
def test_a_watermark_is_as_far_as_no_later_instant_shows_an_earlier_time(zone, time):
    later = [shown(time + minutes * 60_000_000, zone) for minutes in range(0, 1500, 5)]
    assert TimeZone(zone).local_watermark(time - 1) == min(later) - 1


def test_the_ends_of_time_are_the_same_everywhere():
    for time in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        assert TimeZone("Europe/Berlin").local_watermark(time) == time


def test_a_zone_that_does_not_exist_is_refused():
    with pytest.raises(GraphError, match="'Europe/Bonn': there is no such time zone"):
        require_zone("Europe/Bonn")


SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field(TS_COLUMN, pa.int64(), nullable=False)])


@pytest.fixture
def run(tmp_path, bench, out):
    def run(window, times, mark):
        """Return (start, end, rows) of the windows that fire at a watermark, and the event times of the output."""
        config = {"key": ["k"], "window": window, "aggregates": [{"fn": "count", "column": None, "alias": "n"}]}
        spec = OperatorSpec(uid="w", name="w", kind="zoned_window", config=config, output_schema=schema_to_text(SCHEMA))
        request = KeyedStateRequest(
            uid="w",
            snapshots=(),
            hash_range=ALL_HASHES,
            settings=JobSettings(),
            read=lambda file: b"",
            directory=tmp_path,
            writer="w",
            budget=MemoryBudget(1 << 30),
        )
        operator = create_operator("zoned_window")
        operator.open(bench.context(spec, SCHEMA, keyed_state=open_keyed_state(request)))
        data = pa.RecordBatch.from_pydict({"k": [1] * len(times), TS_COLUMN: times}, schema=SCHEMA)
        operator.process_batch(Batch(data), 0, out)
        operator.process_watermark(Watermark(mark), out)
        return [tuple(row.values())[1:] for row in out.rows]

    return run


def utc(*moment):
    return dt.datetime(*moment, tzinfo=dt.UTC)


def test_days_are_as_long_as_the_wall_clock_says(run):
    window = {"kind": "tumbling", "size_us": 24 * HOUR, "time_zone": "Europe/Berlin"}
    # the days of 30 and 31 October (25 hours) and of 1 November begin at 22:00, 22:00 and 23:00 UTC
    bounds = [utc(2021, 10, 29, 22), utc(2021, 10, 30, 22), utc(2021, 10, 31, 23), utc(2021, 11, 1, 23)]
    ends = [micros(bound.replace(tzinfo=None)) for bound in bounds]
    times = [end + shift for end in ends[:-1] for shift in (0, HOUR)] + [ends[2] - 1]
    assert run(window, times, ends[2] - 1) == [(*bounds[0:2], 2, ends[1] - 1), (*bounds[1:3], 3, ends[2] - 1)]


def test_a_day_does_not_fire_before_its_last_hour_is_over_for_the_second_time(run):
    window = {"kind": "cumulative", "size_us": 24 * HOUR, "step_us": HOUR, "time_zone": "Europe/Berlin"}
    # the clock shows 2 to 3 o'clock from 0:00 to 1:00 UTC and again from 1:00 to 2:00 UTC
    first = micros(dt.datetime(2021, 10, 31))
    rows = run(window, [first, first + HOUR], first + HOUR - 1)
    assert rows == []
    rows = run(window, [first, first + HOUR], first + 2 * HOUR - 1)
    assert rows == [(utc(2021, 10, 30, 22), utc(2021, 10, 31, 2), 2, first + 2 * HOUR - 1)]
