"""Window joins over their state against a plain Python model, inner and outer, tumbling, sliding and with gaps.

Any order of batches, watermarks, freezes, failed uploads, compactions, restores and rescales gives the model's output.
"""

import datetime as dt
import tempfile
import zoneinfo
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.process_job import keys_leave_for_rocksdb
from tests.property.small_pieces import small_pieces
from tests.property.two_inputs import (
    BACKENDS,
    CONFIG,
    KEY_NAMES,
    KEYS,
    LATE_TO,
    OPERATIONS,
    REMOTE,
    REMOTE_OPERATIONS,
    UID,
    Job,
    joined,
    rows_are_remote,
    run,
)
from tests.support import sizes as state_sizes
from tests.support.depth import examples

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN
from penstock.eventtime.windows import cumulative_windows, sliding_windows
from penstock.operators.window_due import due_windows

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
        windows = windows_of(self.window, row[TS_COLUMN])
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


def windows_of(window, time):
    *kind, first, second, offset = window
    return (cumulative_windows if kind else sliding_windows)(time, first, second, offset)


def spec(window, how):
    *kind, first, second, offset = window
    sizes = {"step_us": first, "size_us": second} if kind else {"size_us": first, "slide_us": second}
    config = CONFIG | {"how": how, "window": sizes | {"offset_us": offset}} | (LATE_TO if how == "full" else {})
    return SimpleNamespace(uid=UID, kind="window_join", config=config)


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    """Everything that happens at large sizes happens here too."""
    state_sizes.given(
        monkeypatch,
        spill_part=0,
        spilled_bytes=0,
        cuts=3,
        fan=2,
        added_file_bytes=500,
        join_pairs=3,
        output_rows=5,
        dead_keys=1,
        segments_per_tier=3,
    )


@pytest.fixture
def leaving(monkeypatch):
    """Hardly any key stays in memory."""
    keys_leave_for_rocksdb(monkeypatch, 1)


KINDS = [
    ((60, 60, 0), "inner"),
    ((60, 20, 7), "full"),
    ((50, 35, 0), "left"),
    ((30, 45, 10), "right"),
    (("cumulative", 20, 80, 30), "inner"),
    (("cumulative", 15, 60, 0), "full"),
]
EACH = pytest.mark.parametrize(("window", "how"), KINDS)


@EACH
@examples(20)
@given(operations=OPERATIONS, backend=BACKENDS)
def test_output_is_the_models(window, how, operations, backend):
    compare(window, how, operations, backend)


@pytest.mark.usefixtures("leaving")
@EACH
@examples(20)
@given(operations=OPERATIONS)
def test_output_is_the_models_when_keys_leave_memory(window, how, operations):
    compare(window, how, operations, "rocksdb", most_keys=1)


@pytest.mark.parametrize(("keys", "local_bytes"), REMOTE)
@examples(12)
@given(kind=st.sampled_from(KINDS), operations=REMOTE_OPERATIONS)
def test_output_is_the_models_wherever_rows_lie(monkeypatch, keys, local_bytes, kind, operations):
    rows_are_remote(monkeypatch, keys, local_bytes)
    with small_pieces():
        compare(*kind, operations, "remote")


def test_windows_whose_rows_were_dropped_before_anybody_saw_them_come_out(tmp_path, monkeypatch):
    rows_are_remote(monkeypatch, 100, 1)
    job = Job(tmp_path, spec((60, 60, 0), "inner"), Model((60, 60, 0), "inner"))
    with small_pieces():
        for seed in range(4):
            job.batch(seed % 2, seed, 30, 0)
        job.checkpoint()
        job.backend = "remote"
        job.restart(1)
        for seed in range(3):
            job.batch(seed % 2, seed + 9, 10, 0)
            job.checkpoint()
        assert job.subtasks[0][0]._state.rows.far_rows.dropped_regions > 0, "or this shows nothing"
        job.watermark(0, MAX_TIMESTAMP)
    assert job.emitted > 10
    job.close()


def compare(window, how, operations, backend, most_keys=None):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, spec(window, how), Model(window, how), backend=backend)
        job.most_keys = most_keys
        run(job, operations)
        for subtask in range(len(job.subtasks)):
            job.watermark(subtask, MAX_TIMESTAMP)
        for operator, _ in job.subtasks:
            assert [table.count for table in operator._state.tables] == [0, 0], "a row outlives its windows"
            assert not operator._panes
        job.checkpoint()
        assert job.rows_of("left") == job.rows_of("right") == [], "a checkpoint holds rows that were cleaned"
        job.close()


@given(
    st.sets(st.integers(-30, 30), max_size=5), st.integers(1, 12), st.integers(1, 12), st.integers(-40, 40),
    st.integers(0, 60), st.booleans(),
)  # fmt: skip
def test_windows_that_end_between_two_watermarks_are_found_without_looking_at_all(
    places, first, second, before, further, cumulative
):
    if cumulative:
        second *= first
        window = SimpleNamespace(size=second, slide=second, offset=0, step=first)
        panes = {place * first for place in places}
        over = {w for pane in panes for w in cumulative_windows(pane, first, second)}
    else:
        window = SimpleNamespace(size=first, slide=second, offset=0, step=0)
        panes = {place * second for place in places}
        over = {w for pane in panes for w in sliding_windows(pane, first, second)}
    expected = {w for w in over if before < w.max_timestamp <= before + further}
    found = due_windows(window, panes, before, before + further)
    assert found == sorted(expected, key=lambda w: (w.end, w.start))
