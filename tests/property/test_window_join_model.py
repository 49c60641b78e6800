"""Window joins over their state against a plain Python model, inner and outer, tumbling, sliding and with gaps.

Any order of batches, watermarks, freezes, failed uploads, compactions, restores and rescales gives the model's output.
"""

import datetime as dt
import tempfile
import zoneinfo
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.two_inputs import CONFIG, KEY_NAMES, KEYS, OPERATIONS, UID, Job, joined, run

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN
from penstock.eventtime.windows import sliding_windows
from penstock.operators.window_join import WindowJoinOperator

EPOCH = dt.datetime(1970, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC"))


class Model:
    """Rows by key and window, until the window's end."""

    def __init__(self, window, how):
        self.window, self.how, self.late = window, how, 0
        self.kept = {key: {} for key in KEYS}
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def copy(self):
        other = Model(self.window, self.how)
        other.late, other.marks = self.late, dict(self.marks)
        other.kept = {
            key: {w: tuple(list(rows) for rows in sides) for w, sides in windows.items()}
            for key, windows in self.kept.items()
        }
        return other

    def row(self, side, row):
        key = row[KEY_NAMES[side]]
        windows = sliding_windows(row[TS_COLUMN], *self.window)
        still = [w for w in windows if w.max_timestamp > self.marks[key]]
        self.late += bool(windows) and not still
        for window in still:
            self.kept[key].setdefault(window, ([], []))[side].append(row)
        return []

    def advance(self, keys, watermark):
        found = []
        for key in keys:
            self.marks[key] = max(self.marks[key], watermark)
            for window in [w for w in self.kept[key] if w.max_timestamp <= watermark]:
                found += self.result(window, *self.kept[key].pop(window))
        return found

    def result(self, window, left, right):
        pairs = [(a, b) for a in left for b in right]
        if not pairs and self.how in ("left", "full"):
            pairs += [(a, None) for a in left]
        if not (left and right) and self.how in ("right", "full"):
            pairs += [(None, b) for b in right]
        bounds = {
            "window_start": EPOCH + dt.timedelta(microseconds=window.start),
            "window_end": EPOCH + dt.timedelta(microseconds=window.end),
            TS_COLUMN: window.max_timestamp,
        }
        return [joined(a, b) | bounds for a, b in pairs]


def spec(window, how):
    size, slide, offset = window
    config = CONFIG | {"how": how, "window": {"size_us": size, "slide_us": slide, "offset_us": offset}}
    return SimpleNamespace(uid=UID, kind="window_join", config=config)


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    """Everything that happens at large sizes happens here too."""
    monkeypatch.setattr("penstock.state.timed_rows.CHUNK", 7)
    monkeypatch.setattr("penstock.operators.join_side.CHUNK", 5)
    monkeypatch.setattr("penstock.operators.window_join.CHUNK", 3)
    monkeypatch.setattr("penstock.state.row_state._DEAD_KEYS", 1)
    monkeypatch.setattr("penstock.state.segment_log.SEGMENTS_PER_TIER", 3)


@pytest.mark.parametrize(
    ("window", "how"),
    [((60, 60, 0), "inner"), ((60, 20, 7), "full"), ((50, 35, 0), "left"), ((30, 45, 10), "right")],
)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(operations=OPERATIONS)
def test_output_is_the_models(window, how, operations):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, spec(window, how), Model(window, how))
        run(job, operations)
        for subtask in range(len(job.subtasks)):
            job.watermark(subtask, MAX_TIMESTAMP)
        for operator, _ in job.subtasks:
            assert [table.count for table in operator._state.tables] == [0, 0], "a row outlives its windows"
            assert not operator._lasts
        job.checkpoint()
        assert job.rows_of("left") == job.rows_of("right") == [], "a checkpoint holds rows that were cleaned"
        job.close()


@given(
    st.sets(st.integers(-30, 30), max_size=5), st.integers(1, 12), st.integers(1, 12), st.integers(-40, 40),
    st.integers(0, 60),
)  # fmt: skip
def test_windows_that_end_between_two_watermarks_are_found_without_looking_at_all(places, size, slide, before, further):
    window = SimpleNamespace(size=size, slide=slide)
    lasts = {place * slide for place in places}
    watermark = before + further
    over = {last - back for last in lasts for back in range(0, size, slide)}
    expected = sorted(start for start in over if before < start + size - 1 <= watermark)
    found = WindowJoinOperator._starts(SimpleNamespace(_window=window, _lasts=lasts), before, watermark)
    assert found == expected
