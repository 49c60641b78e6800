"""Joins by session, and by windows of processing time, over their state against a plain Python model.

Any order of batches, watermarks or ticks, freezes, failed uploads, compactions, crashes, restores and rescales gives
the model's output.
"""

from hypothesis import strategies as st
from tests.property.harness.backends import DISK, MEMORY, leaving, on, remote
from tests.property.harness.histories import SEEDS, end, operations, play, step
from tests.property.harness.job import Job, spec_of
from tests.property.harness.sides import (
    KEYS,
    LATE,
    PLAIN_RIGHT,
    Sides,
    inputs,
    join_config,
    joined_in,
    key_of,
)

from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN
from penstock.eventtime.windows import TimeWindow, sliding_windows

LEAVING, REMOTE = leaving(1), remote(1, 1, 40_000, 1 << 50)
#: The gap of sessions, or the size and slide of windows.
SESSIONS = [((25,), "inner"), ((8,), "full"), ((60,), "left"), ((15,), "right"), ((25,), "full")]
OF_PROCESSING_TIME = [((20_000,), "full"), ((50_000, 50_000), "inner"), ((60_000, 20_000), "left")]
#: Batches are small: each row is kept on its own, and fetched often.
EVENTS = operations(
    step("batch", st.integers(0, 1), SEEDS, st.integers(1, 15), times=3),
    step("watermark", st.integers(0, 3), st.integers(0, 200), times=3),
    step("checkpoint"),
    step("rescale", st.integers(1, 4)),
    least=15,
    most=40,
)
#: Some state is restored before anything else.
RESTORED = [("batch", 0, 1, 12), ("batch", 1, 2, 12), ("checkpoint",), ("batch", 1, 3, 8), ("rescale", 2)]
TICKS = operations(
    step("batch", st.integers(0, 1), SEEDS, st.integers(1, 15), st.just(0), times=3),
    step("tick", st.integers(0, 40), times=3),
    step("checkpoint"),
    step("rescale", st.integers(1, 4)),
    least=15,
    most=50,
)


class Model:
    """Rows by key and window, sessions grown together, until the window's end."""

    def __init__(self, window, how, *, now=None):
        """`now`: the time of the clock; None: rows have their own."""
        self.window, self.how, self.now = window, how, now
        self.kept = {key: {} for key in KEYS}
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def row(self, side, row):
        key, time = key_of(side, row), row[TS_COLUMN] if self.now is None else self.now
        still = [w for w in self.windows_of(key, time) if w.max_timestamp > self.marks[key]]
        for window in still:
            self.kept[key].setdefault(window, ([], []))[side].append(row)
        return [] if still else LATE

    def windows_of(self, key, time):
        if len(self.window) == 2:
            return sliding_windows(time, *self.window, 0)
        mine, made = self.kept[key], TimeWindow(time, time + self.window[0])
        touched = [w for w in mine if w.start <= made.end and w.end >= made.start]
        made = TimeWindow(min(w.start for w in [made, *touched]), max(w.end for w in [made, *touched]))
        parts = [mine.pop(w) for w in touched]
        if parts:
            mine[made] = tuple([row for part in parts for row in part[side]] for side in (0, 1))
        return [made]

    def advance(self, keys, watermark):
        found = []
        for key in keys:
            if self.now is None:
                self.marks[key] = max(self.marks[key], watermark)
            for window in [w for w in self.kept[key] if w.max_timestamp <= watermark]:
                found += joined_in(window, self.how, self.kept[key].pop(window), PLAIN_RIGHT)
        return found

    def ends(self, keys):
        """Return when windows end."""
        return [window.max_timestamp for key in keys for window in self.kept[key]]


class Steps(Sides):
    """Rows of the right side hold no lists; time passes where the clock says when windows end."""

    def draw(self, *drawn):
        row = super().draw(*drawn)
        row.pop("tags", None)
        return row

    def rows(self, side, rows):
        self.tick(0)
        super().rows(side, rows)

    def tick(self, ms):
        """Time passes, and timers that are due fire."""
        if self.job.model.now is None:
            return
        self.job.clock.advance(ms)
        now = self.job.clock.now_ms()
        self.job.model.now = now * 1000
        for subtask, operator in enumerate(self.job.operators):
            due = operator.next_timer_ms
            outs = [self.job.time(subtask)] if due is not None and due <= now else []
            self.compare(outs, self.job.model.advance(self.job.owned(subtask), now * 1000))


def job_on(backend, window, how, *, processing=False):
    sizes = {"kind": "session", "gap_us": window[0]}
    if len(window) == 2:
        sizes = {"kind": "sliding", "size_us": window[0], "slide_us": window[1], "offset_us": 0}
    late = how == "full" and not processing
    config = join_config(how, late=late, right=PLAIN_RIGHT)
    config["window"] = sizes | ({"time": "processing"} if processing else {})
    model = Model(window, how, now=0 if processing else None)
    return Job(spec_of("window_rows_join", config), inputs(PLAIN_RIGHT), KEYS, model, backend)


@on((MEMORY, 60), (DISK, 20), (LEAVING, 20), (REMOTE, 10))
def test_sessions_of_both_sides_are_the_models(backend):
    backend.check(run, kind=st.sampled_from(SESSIONS), history=EVENTS)


@on((MEMORY, 40), (DISK, 16), (LEAVING, 16), (REMOTE[0], 8))
def test_windows_of_processing_time_are_the_models(backend):
    backend.check(run_of_processing_time, kind=st.sampled_from(OF_PROCESSING_TIME), history=TICKS)


def run(backend, kind, history):
    with job_on(backend, *kind) as job:
        play_all(job, [*(RESTORED if backend.state == "remote" else []), *history])


def run_of_processing_time(backend, kind, history):
    with job_on(backend, *kind, processing=True) as job:
        play_all(job, history)


def play_all(job, history):
    steps = Steps(job)
    play(history, steps, job)
    steps.tick(0)
    end(job, steps)
    job.checkpoint()
    assert job.rows_of("rows") == job.rows_of("windows") == [], "a checkpoint holds what is over"
