"""Windows in time zones: wall clocks against `zoneinfo`, and days when the clock is set."""

import datetime as dt
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples
from tests.support.sizes import sizes

from penstock.config.settings import JobSettings
from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN, Batch, Watermark
from penstock.core.errors import GraphError
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.operators.registry import create_operator
from penstock.operators.windows.window_assigners import TimeZone, require_zone
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state

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


@examples(150)
@given(zone=st.sampled_from(ZONES), time=TIMES)
def test_clocks_are_the_standard_librarys(zone, time):
    clock = TimeZone(zone)
    assert clock.local(np.array([time, time + HOUR])).tolist() == [shown(time, zone), shown(time + HOUR, zone)]
    first, last = clock.instant(shown(time, zone), last=False), clock.instant(shown(time, zone), last=True)
    assert first <= time <= last
    assert shown(first, zone) == shown(last, zone) == shown(time, zone)


@examples(80)
@given(zone=st.sampled_from(ZONES), time=TIMES)
def test_a_watermark_is_as_far_as_no_later_instant_shows_an_earlier_time(zone, time):
    later = [shown(time + minutes * 60_000_000, zone) for minutes in range(0, 1500, 5)]
    assert TimeZone(zone).local_watermark(time - 1) == min(later) - 1


#: Around the hours in which these clocks were set back (UTC), by an hour, by half an hour and at midnight.
SET_BACK = {
    "Europe/Berlin": (2025, 10, 26, 1),
    "America/Los_Angeles": (2021, 11, 7, 9),
    "Australia/Lord_Howe": (2021, 4, 3, 15),
    "America/Havana": (2021, 11, 7, 5),
}


def instants_around(zone):
    """Every ten minutes of five hours around, and the microseconds beside them."""
    middle = micros(dt.datetime(*SET_BACK[zone]))
    return [middle + minutes * 60_000_000 + beside for minutes in range(-150, 151, 10) for beside in (-1, 0, 1)]


@pytest.mark.parametrize("zone", SET_BACK)
def test_a_watermark_is_exact_where_the_clock_is_set_back(zone):
    instants = instants_around(zone)
    for place, watermark in enumerate(instants[:-9]):
        later = [watermark + 1, *instants[place + 1 :]]
        assert TimeZone(zone).local_watermark(watermark) == min(shown(time, zone) for time in later) - 1


def test_the_ends_of_time_are_the_same_everywhere():
    for time in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        assert TimeZone("Europe/Berlin").local_watermark(time) == time


def test_a_zone_that_does_not_exist_is_refused():
    with pytest.raises(GraphError, match="'Europe/Bonn': there is no such time zone"):
        require_zone("Europe/Bonn")


SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field(TS_COLUMN, pa.int64(), nullable=False)])


@pytest.fixture
def started(tmp_path, bench, out):
    def started(window):
        """Return what takes rows and a watermark and gives (start, end, rows, event time) of the windows that fire."""
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
            limits=sizes(),
        )
        operator = create_operator("zoned_window")
        operator.open(bench.context(spec, SCHEMA, keyed_state=open_keyed_state(request)))

        def step(times, mark):
            before = len(out.rows)
            data = pa.RecordBatch.from_pydict({"k": [1] * len(times), TS_COLUMN: times}, schema=SCHEMA)
            operator.process_batch(Batch(data), 0, out)
            operator.process_watermark(Watermark(mark), out)
            return [tuple(row.values())[1:] for row in out.rows[before:]]

        return step

    return started


@pytest.fixture
def run(started):
    return lambda window, times, mark: started(window)(times, mark)


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


def test_a_window_that_ends_where_the_clock_is_set_back_fires_when_that_is_reached_first(started):
    step = started({"kind": "tumbling", "size_us": HOUR, "time_zone": "Europe/Berlin"})
    # the clock shows 2 o'clock at 0:00 UTC, and again at 1:00 UTC
    end = micros(dt.datetime(2025, 10, 26))
    assert step([end - 1, end - HOUR], end - 2) == []
    assert step([], end - 1) == [(utc(2025, 10, 25, 23), utc(2025, 10, 26, 0), 2, end - 1)]


@pytest.mark.parametrize("half_hours", [1, 2])
@pytest.mark.parametrize("zone", SET_BACK)
def test_windows_fire_behind_the_last_instant_that_shows_a_time_of_theirs(started, zone, half_hours):
    """A row at every instant: a window fires with the watermark of the last row it may have, which is its time."""
    size, instants = half_hours * HOUR // 2, instants_around(zone)
    step = started({"kind": "tumbling", "size_us": size, "time_zone": zone})
    last, rows = {}, {}
    for time in instants:
        start = shown(time, zone) // size * size
        last[start], rows[start] = time, rows.get(start, 0) + 1
    assert step(instants, instants[0] - 2) == []
    fired = 0
    for mark in instants[:-3]:  # the windows of the last rows may have more
        due = [(rows[start], mark) for start, time in last.items() if time == mark]
        assert [row[2:] for row in step([], mark)] == due
        fired += len(due)
    assert fired >= 3
