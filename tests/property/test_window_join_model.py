"""Window joins over their state against a plain Python model, inner and outer, tumbling, sliding and with gaps.

Any order of batches, watermarks, freezes, failed uploads, compactions, restores and rescales gives the model's output.
"""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.harness.backends import DISK, MEMORY, Backend, leaving_for_rocksdb, on
from tests.property.harness.histories import end, play
from tests.property.harness.job import Job, spec_of
from tests.property.harness.sides import (
    KEYS,
    LATE,
    OPERATIONS,
    REMOTE_ROWS,
    RESTORED,
    Sides,
    inputs,
    join_config,
    joined_in,
    key_of,
)

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN
from penstock.eventtime.windows import cumulative_windows, sliding_windows
from penstock.operators.windows.window_aggregate import due_windows

KINDS = [
    ((60, 60, 0), "inner"),
    ((60, 20, 7), "full"),
    ((50, 35, 0), "left"),
    ((30, 45, 10), "right"),
    (("cumulative", 20, 80, 30), "inner"),
    (("cumulative", 15, 60, 0), "full"),
]


class Model:
    """Rows by key and window, until the window's end."""

    def __init__(self, window, how):
        self.window, self.how = window, how
        self.kept = {key: {} for key in KEYS}
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def row(self, side, row):
        key = key_of(side, row)
        windows = windows_of(self.window, row[TS_COLUMN])
        still = [w for w in windows if w.max_timestamp > self.marks[key]]
        for window in still:
            self.kept[key].setdefault(window, ([], []))[side].append(row)
        return LATE if windows and not still else []

    def advance(self, keys, watermark):
        found = []
        for key in keys:
            self.marks[key] = max(self.marks[key], watermark)
            for window in [w for w in self.kept[key] if w.max_timestamp <= watermark]:
                found += joined_in(window, self.how, self.kept[key].pop(window))
        return found

    def ends(self, keys):
        """Return when windows end."""
        return [window.max_timestamp for key in keys for window in self.kept[key]]


def windows_of(window, time):
    *kind, first, second, offset = window
    return (cumulative_windows if kind else sliding_windows)(time, first, second, offset)


def job_on(backend, window, how):
    *kind, first, second, offset = window
    sizes = {"step_us": first, "size_us": second} if kind else {"size_us": first, "slide_us": second}
    config = join_config(how, late=how == "full") | {"window": sizes | {"offset_us": offset}}
    return Job(spec_of("window_join", config), inputs(), KEYS, Model(window, how), backend)


@on((MEMORY, 120), (DISK, 30), (leaving_for_rocksdb(1), 60), (REMOTE_ROWS, 16))
def test_output_is_the_models(backend):
    backend.check(run, kind=st.sampled_from(KINDS), history=OPERATIONS)


def run(backend, kind, history):
    with job_on(backend, *kind) as job:
        steps = Sides(job)
        play([*(RESTORED if backend.state == "remote" else []), *history], steps, job)
        end(job, steps)
        for operator in job.operators:
            assert [table.counts().total for table in operator._state.tables] == [0, 0], "a row outlives its windows"
            assert not operator._panes
        job.checkpoint()
        assert job.rows_of("left") == job.rows_of("right") == [], "a checkpoint holds rows that were cleaned"


@on(MEMORY, DISK)
@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
def test_a_window_that_one_subtask_has_closed_does_not_come_again(backend, kind):
    with job_on(backend, *kind) as job:
        steps = Sides(job)
        for turn in range(4):
            job.rescale(2)
            for side in (0, 1):
                steps.batch(side, turn, 40, 150 * turn)
            ends = sorted(set(job.model.ends(job.owned(0))))
            end = ends[len(ends) // 2]
            steps.mark(0, end)
            job.rescale(1)
            steps.mark(0, end)


@on(Backend("remote-all-1", "remote", 100, 1))
def test_windows_whose_rows_were_dropped_before_anybody_saw_them_come_out(backend):
    with job_on(backend, *KINDS[0]) as job:
        steps = Sides(job)
        for seed in range(4):
            steps.batch(seed % 2, seed, 30, 0)
        job.rescale(1)
        for seed in range(3):
            steps.batch(seed % 2, seed + 9, 10, 0)
            job.checkpoint()
        assert job.operators[0]._state.rows.remote_runs.fetcher.dropped_regions > 0, "or this shows nothing"
        steps.mark(0, MAX_TIMESTAMP)
        assert steps.emitted > 10


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
