"""Joins by session, and by windows of processing time, over their state against a plain Python model.

Any order of batches, watermarks or ticks, freezes, failed uploads, compactions, restores and rescales gives the
model's output.
"""

import datetime as dt
import tempfile
import zoneinfo
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property import two_inputs
from tests.property.process_job import keys_are_remote, keys_leave
from tests.property.two_inputs import BACKENDS, CONFIG, KEY_NAMES, KEYS, LATE_TO, LEFT, OPERATIONS, RIGHT, UID, run
from tests.support import sizes as state_sizes
from tests.support.depth import examples

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN, Watermark
from penstock.eventtime.windows import TimeWindow, sliding_windows

EPOCH = dt.datetime(1970, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC"))
#: Rows that are kept as objects hold no lists.
SCHEMAS = LEFT, RIGHT.remove(RIGHT.get_field_index("tags"))


class Model:
    """Rows by key and window, sessions grown together, until the window's end."""

    def __init__(self, window, how):
        self.window, self.how, self.late, self.now = window, how, 0, None
        self.kept = {key: {} for key in KEYS}
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def copy(self):
        other = Model(self.window, self.how)
        other.late, other.marks, other.now = self.late, dict(self.marks), self.now
        other.kept = {
            key: {w: tuple(list(rows) for rows in sides) for w, sides in windows.items()}
            for key, windows in self.kept.items()
        }
        return other

    def row(self, side, row):
        key, time = row[KEY_NAMES[side]], row[TS_COLUMN] if self.now is None else self.now
        for window in self.windows_of(self.kept[key], key, time):
            self.kept[key].setdefault(window, ([], []))[side].append(row)
        return []

    def windows_of(self, mine, key, time):
        if len(self.window) == 2:
            found = sliding_windows(time, *self.window, 0)
        else:
            made = TimeWindow(time, time + self.window[0])
            touched = [w for w in mine if w.start <= made.end and w.end >= made.start]
            made = TimeWindow(min(w.start for w in [made, *touched]), max(w.end for w in [made, *touched]))
            found = [made]
            if made.max_timestamp > self.marks[key]:
                parts = [mine.pop(w) for w in touched]
                mine[made] = tuple([row for part in parts for row in part[side]] for side in (0, 1))
        still = [w for w in found if w.max_timestamp > self.marks[key]]
        self.late += not still
        return still

    def advance(self, keys, watermark):
        found = []
        for key in keys:
            if self.now is None:
                self.marks[key] = max(self.marks[key], watermark)
            for window in [w for w in self.kept[key] if w.max_timestamp <= watermark]:
                found += self.result(window, *self.kept[key].pop(window))
        return found

    def result(self, window, left, right):
        pairs = [(a, b) for a in left for b in right]
        if not right and self.how in ("left", "full"):
            pairs += [(a, None) for a in left]
        if not left and self.how in ("right", "full"):
            pairs += [(None, b) for b in right]
        bounds = {
            "window_start": EPOCH + dt.timedelta(microseconds=window.start),
            "window_end": EPOCH + dt.timedelta(microseconds=window.end),
            TS_COLUMN: window.max_timestamp,
        }
        return [joined(a, b) | bounds for a, b in pairs]


def joined(left, right):
    row = two_inputs.joined(left, right and right | {"tags": None})
    del row["tags"]
    return row


class Job(two_inputs.Job):
    """Rows of the right side have no list."""

    def drawn(self, random, side, around):
        row = super().drawn(random, side, around)
        row.pop("tags", None)
        return row

    def batch(self, side, seed, count, around):
        self.tick(0)
        super().batch(side, seed, count, around)

    def tick(self, ms):
        """Time passes, and timers that are due fire."""
        if self.model.now is None:
            return
        self.clock.advance(ms)
        now = self.clock.now_ms()
        self.model.now = now * 1000
        for subtask, (operator, _) in enumerate(self.subtasks):
            out = two_inputs.Out()
            if operator.next_timer_ms is not None and operator.next_timer_ms <= now:
                operator.process_time(now, out)
                two_inputs.go_on(operator, out)
            expected = self.model.advance(self.owned(subtask), now * 1000)
            assert two_inputs.counted(out.rows) == two_inputs.counted(expected)

    def left_over(self):
        self.checkpoint()
        return self.rows_of("rows"), self.rows_of("windows")


def spec(window, how, **more):
    sizes = {"kind": "session", "gap_us": window[0]}
    if len(window) == 2:
        sizes = {"kind": "sliding", "size_us": window[0], "slide_us": window[1], "offset_us": 0}
    late = LATE_TO if how == "full" and not more else {}
    right = {"late_to": {**late["late_to"], "right": {"tag": "r", "columns": SCHEMAS[1].names}}} if late else {}
    config = CONFIG | {"how": how, "window": sizes | more} | right
    return SimpleNamespace(uid=UID, kind="window_rows_join", config=config)


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    """Everything that happens at large sizes happens here too."""
    state_sizes.given(monkeypatch, output_rows=5, window_pairs=3, segments_per_tier=3)


@pytest.mark.parametrize(("gap", "how"), [(25, "inner"), (8, "full"), (60, "left"), (15, "right")])
@examples(12)
@given(operations=OPERATIONS, backend=BACKENDS)
def test_sessions_of_both_sides_are_the_models(gap, how, operations, backend):
    compare(gap, how, operations, backend)


@pytest.fixture(params=["rocksdb", "remote"])
def leaving(request, monkeypatch):
    """No more than two keys come in together, and hardly any stays behind a batch."""
    state_sizes.given(monkeypatch, incoming_keys=2)
    leave = keys_leave(monkeypatch, 1) if request.param == "rocksdb" else keys_are_remote(monkeypatch, 1, 1)
    with leave:
        yield request.param


@examples(6)
@given(operations=OPERATIONS)
def test_sessions_of_both_sides_are_the_models_when_keys_leave_memory(leaving, operations):
    compare(25, "full", operations, leaving)


def compare(gap, how, operations, backend):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, spec((gap,), how), Model((gap,), how), SCHEMAS, backend=backend)
        run(job, operations)
        for subtask in range(len(job.subtasks)):
            job.watermark(subtask, MAX_TIMESTAMP)
        assert job.left_over() == ([], [])
        job.close()


TICKS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 1), st.integers(0, 2**31), st.integers(1, 15), st.just(0)),
        st.tuples(st.just("batch"), st.integers(0, 1), st.integers(0, 2**31), st.integers(1, 15), st.just(0)),
        st.tuples(st.just("tick"), st.integers(0, 40)),
        st.tuples(st.just("tick"), st.integers(0, 40)),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("finish"), st.sampled_from(["done", "failed", "aborted"])),
        st.tuples(st.just("restart"), st.integers(1, 4)),
    ),
    min_size=15,
    max_size=50,
)


@pytest.mark.parametrize(
    ("window", "how"), [((20_000,), "full"), ((50_000, 50_000), "inner"), ((60_000, 20_000), "left")]
)
@examples(12)
@given(operations=TICKS, backend=BACKENDS)
def test_windows_of_processing_time_are_the_models(window, how, operations, backend):
    with tempfile.TemporaryDirectory() as folder:
        model = Model(window, how)
        model.now = 0
        job = Job(folder, spec(window, how, time="processing"), model, SCHEMAS, backend=backend)
        for name, *arguments in operations:
            getattr(job, name)(*arguments)
        job.tick(0)
        for subtask, (operator, _) in enumerate(job.subtasks):
            out = two_inputs.Out()
            operator.process_watermark(Watermark(MAX_TIMESTAMP), out)
            two_inputs.go_on(operator, out)
            expected = job.model.advance(job.owned(subtask), MAX_TIMESTAMP)
            assert two_inputs.counted(out.rows) == two_inputs.counted(expected), "no row is lost at the end of input"
        assert job.left_over() == ([], [])
        job.close()
