"""Interval joins over their state against a plain Python model, and the kernels of joins against their twins.

Any order of batches, watermarks, freezes, failed uploads, compactions, restores and rescales gives the model's output.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.harness.backends import DISK, MEMORY, leaving_for_rocksdb, on
from tests.property.harness.collect import Collector
from tests.property.harness.histories import end, play
from tests.property.harness.job import Job, batch_of, spec_of
from tests.property.harness.sides import (
    KEYS,
    LATE,
    LEFT,
    OPERATIONS,
    REMOTE_ROWS,
    RESTORED,
    RIGHT,
    Sides,
    inputs,
    join_config,
    joined,
    key_of,
)

from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark, WatermarkStatus
from penstock.core.errors import StateMismatchError
from penstock.kernels.rows.join_kernels import find_ranges, find_ranges_plain, write_pairs, write_pairs_plain

KINDS = [
    *((*bounds, "inner") for bounds in [(-30, 20), (0, 0), (5, 60), (-40, -10)]),
    *((*bounds, "full") for bounds in [(-30, 20), (0, 0), (5, 60), (-40, -10)]),
    (-10, 50, "left"),
    (-60, 5, "right"),
]


class Model:
    """Every pair within the bounds that was not late, once the second row comes; rows without one at their end."""

    def __init__(self, lower, upper, how="inner"):
        self.lower, self.upper, self.how = lower, upper, how
        self.kept = ({key: [] for key in KEYS}, {key: [] for key in KEYS})
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def pair(self, side, row, other):
        """Left and right of two rows that meet, else None."""
        left, right = (other, row) if side else (row, other)
        return (left, right) if self.lower <= right[TS_COLUMN] - left[TS_COLUMN] <= self.upper else None

    def row(self, side, row):
        key = key_of(side, row)
        if row[TS_COLUMN] < self.marks[key]:
            return LATE
        self.kept[side][key].append(row)
        pairs = [pair for other in self.kept[1 - side][key] if (pair := self.pair(side, row, other))]
        return [joined(*pair) | {TS_COLUMN: max(row[TS_COLUMN] for row in pair)} for pair in pairs]

    def advance(self, keys, watermark):
        found = []
        for key in keys:
            before, self.marks[key] = self.marks[key], max(self.marks[key], watermark)
            for side in [s for s in (0, 1) if self.how in ("full", ("left", "right")[s])]:
                for row in self.kept[side][key]:
                    last = row[TS_COLUMN] + (-self.lower if side else self.upper)  # of the rows it could meet
                    end = max(row[TS_COLUMN], last) + 1
                    if before < end <= watermark and not any(self.pair(side, row, o) for o in self.kept[1 - side][key]):
                        found.append(joined(*((None, row) if side else (row, None))) | {TS_COLUMN: end})
        return found

    def ends(self, keys):
        """Return when rows end that must have come out alone by then."""
        return [
            max(row[TS_COLUMN], row[TS_COLUMN] + (-self.lower if side else self.upper)) + 1
            for side in (0, 1)
            for key in keys
            for row in self.kept[side][key]
        ]


def spec(lower, upper, how="inner", *, late=False):
    return spec_of("interval_join", join_config(how, late=late) | {"lower_us": lower, "upper_us": upper})


def job_on(backend, *kind, late=False):
    return Job(spec(*kind, late=late), inputs(), KEYS, Model(*kind), backend)


@on((MEMORY, 180), (DISK, 40), (leaving_for_rocksdb(1), 100), (REMOTE_ROWS, 16))
def test_output_is_the_models(backend):
    backend.check(run, kind=st.sampled_from(KINDS), history=OPERATIONS)


def run(backend, kind, history):
    with job_on(backend, *kind, late=kind[2] == "full") as job:
        steps = Sides(job)
        play([*(RESTORED if backend.state == "remote" else []), *history], steps, job)
        end(job, steps)
        counts = {table.counts().total for operator in job.operators for table in operator._state.tables}
        assert counts == {0}, "a row outlives all it could meet"
        job.checkpoint()
        assert job.rows_of("left") == job.rows_of("right") == [], "a checkpoint holds rows that were cleaned"


@on(MEMORY)
def test_what_is_kept_is_what_can_still_be_met_and_nothing_else(backend):
    with job_on(backend, -30, 20) as job:
        steps = Sides(job)
        steps.batch(0, 1, 200, 0)
        steps.batch(1, 2, 200, 0)
        steps.mark(0, 50)
        job.checkpoint()
        for state, reach in (("left", 20), ("right", 30)):
            times = [row["__namespace"] for row in job.rows_of(state)]
            assert times
            assert min(times) >= 50 - reach


@on(MEMORY)
def test_a_watermark_or_a_row_behind_pairs_that_are_still_coming_out_waits_for_them(backend):
    with job_on(backend, -100, 100) as job:
        out, operator = Collector(), job.operators[0]

        def give(side, first):
            rows = [{"id": n, "key" if side else "k": "a", "tags": [], TS_COLUMN: first + n} for n in range(8)]
            operator.process_batch(Batch(batch_of(rows, (LEFT, RIGHT)[side])), side, out)

        give(0, 0)
        give(1, 0)
        assert 0 < len(out.rows) < 16
        operator.process_watermark(Watermark(500), out)
        operator.process_status(WatermarkStatus(idle=True), out)
        give(1, 0)
        assert out.watermarks == []
        assert job.late_of(0) == 0
        job.emit_ready(operator, out)
        assert len(out.rows) == 64, "the second time the rows are late"
        assert out.watermarks == [500, "idle"]
        assert job.late_of(0) == 8
        give(0, 600)
        give(1, 600)
        assert len(out.rows) < 128
        operator.snapshot(Barrier(1), out)
        assert len(out.rows) == 128, "nothing that is under way is left to what comes behind a barrier"


PLACES = st.lists(st.tuples(st.integers(0, 5), st.integers(-20, 20)), max_size=60)


@given(
    run=PLACES, asking=st.lists(st.tuples(st.integers(0, 6), st.integers(-25, 25), st.integers(-3, 40)), max_size=20)
)
def test_the_kernels_find_what_plain_numpy_finds(run, asking):
    run.sort()
    slots = np.array([slot for slot, _ in run], np.int32), np.array([time for _, time in run], np.int64)
    wanted = np.array([slot for slot, _, _ in asking], np.int32)
    lows = np.array([low for _, low, _ in asking], np.int64)
    highs = lows + np.array([span for _, _, span in asking], np.int64)
    found, plain = (tuple(np.zeros((2, len(asking)), np.int64)) for _ in range(2))
    total = find_ranges(slots, wanted, (lows, highs), found)
    assert total == find_ranges_plain(slots, wanted, (lows, highs), plain)
    assert [part.tolist() for part in found] == [part.tolist() for part in plain]
    pairs, state = ([], []), np.zeros(2, np.int64)
    while True:
        room = np.empty(3, np.int32), np.empty(3, np.int32)
        written = write_pairs(found, state, room)
        if not written:
            break
        for made, part in zip(pairs, room, strict=True):
            made.extend(part[:written].tolist())
    assert list(pairs) == [part.tolist() for part in write_pairs_plain(found)]


@on(MEMORY)
@pytest.mark.parametrize(
    ("kind", "reaches"),
    [
        ((-30, 20, "left"), (20, 50)),
        ((-30, 20, "right"), (50, 30)),
        ((5, 60, "left"), (60, 55)),
        ((5, 60, "full"), (60, 55)),
    ],
)
def test_what_a_row_without_a_partner_is_told_by_is_kept_and_nothing_else(backend, kind, reaches):
    with job_on(backend, *kind) as job:
        steps = Sides(job)
        steps.batch(0, 1, 300, 0)
        steps.batch(1, 2, 300, 0)
        steps.mark(0, 80)
        job.checkpoint()
        for state, reach in zip(("left", "right"), reaches, strict=True):
            times = [row["__namespace"] for row in job.rows_of(state)]
            assert 80 - reach <= min(times) < 80 - reach + 8


@on(MEMORY)
def test_without_checkpoints_rows_that_were_cleaned_take_no_room(backend):
    with job_on(backend, -10, 10) as job:
        steps, tables = Sides(job), job.operators[0]._state.tables
        for turn in range(100):
            steps.batch(0, turn, 20, 1000 * turn)
            steps.batch(1, turn, 20, 1000 * turn)
            steps.mark(0, 1000 * turn + 500)
            assert sum(len(run.slots) for table in tables for run in table._runs) <= 40
            assert max(table.hot_bytes for table in tables) < 10_000


@on(MEMORY)
@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ((0, 100, "inner"), (0, 100, "left"), "does not record which rows matched"),
        ((0, 100, "left"), (0, 100, "full"), "does not record which rows matched"),
        ((0, 100, "left"), (-50, 100, "left"), "from 0 s to 0.0001 s, the job has a join by time, from -5e-05 s"),
        ((0, 100, "full"), (0, 100, "inner"), None),
    ],
)
def test_a_join_goes_on_as_another_only_where_that_has_missed_nothing(backend, before, after, reason):
    with job_on(backend, *before) as job:
        job.checkpoint()
        job.spec = spec(*after)
        if reason is None:
            job.start(1)
            return
        with pytest.raises(StateMismatchError, match=reason):
            job.start(1)


@on(DISK)
def test_watermarks_alone_leave_no_file_in_memory(backend):
    with job_on(backend, 0, 100, "left") as job:
        row, (state,) = {"v": 1, "k": "key-1", "s": "x", "id": 1}, [operator._state for operator in job.operators]
        for time in (10, 20, 30):
            job.push(0, [row | {TS_COLUMN: time}])
        assert any(run.keys for run in state.tables[0]._runs), "or this shows nothing"
        assert len(job.watermark(0, 115).rows) == 1
        assert not state.tables[0]._read
