"""Interval joins over their state against a plain Python model, and the kernels of joins against their twins.

Any order of batches, watermarks, freezes, failed uploads, compactions, restores and rescales gives the model's output.
"""

import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.two_inputs import CONFIG, KEY_NAMES, KEYS, OPERATIONS, UID, Job, joined, run

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN
from penstock.kernels.joins import find_ranges, find_ranges_plain, write_pairs, write_pairs_plain


class Model:
    """Every pair of rows within the bounds that were not late, once the second of them comes."""

    def __init__(self, lower, upper):
        self.lower, self.upper, self.late = lower, upper, 0
        self.kept = ({key: [] for key in KEYS}, {key: [] for key in KEYS})
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def copy(self):
        other = Model(self.lower, self.upper)
        other.late, other.marks = self.late, dict(self.marks)
        other.kept = tuple({k: list(rows) for k, rows in side.items()} for side in self.kept)
        return other

    def row(self, side, row):
        key, time = row[KEY_NAMES[side]], row[TS_COLUMN]
        if time < self.marks[key]:
            self.late += 1
            return []
        self.kept[side][key].append(row)
        found = []
        for other in self.kept[1 - side][key]:
            left, right = (other, row) if side else (row, other)
            if self.lower <= right[TS_COLUMN] - left[TS_COLUMN] <= self.upper:
                found.append(joined(left, right) | {TS_COLUMN: max(left[TS_COLUMN], right[TS_COLUMN])})
        return found

    def advance(self, keys, watermark):
        for key in keys:
            self.marks[key] = max(self.marks[key], watermark)
        return []


def spec(lower, upper):
    return SimpleNamespace(uid=UID, kind="interval_join", config=CONFIG | {"lower_us": lower, "upper_us": upper})


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    """Everything that happens at large sizes happens here too."""
    monkeypatch.setattr("penstock.state.timed_rows.CHUNK", 7)
    monkeypatch.setattr("penstock.operators.join_side.CHUNK", 5)
    monkeypatch.setattr("penstock.state.row_state._DEAD_KEYS", 1)
    monkeypatch.setattr("penstock.state.segment_log.SEGMENTS_PER_TIER", 3)


@pytest.mark.parametrize(("lower", "upper"), [(-30, 20), (0, 0), (5, 60), (-40, -10)])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(operations=OPERATIONS)
def test_output_is_the_models(lower, upper, operations):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, spec(lower, upper), Model(lower, upper))
        run(job, operations)
        for subtask in range(len(job.subtasks)):
            job.watermark(subtask, MAX_TIMESTAMP)
        assert [table.count for operator, _ in job.subtasks for table in operator._state.tables] == [0] * 2 * len(
            job.subtasks
        ), "a row outlives all it could meet"
        job.checkpoint()
        assert job.rows_of("left") == job.rows_of("right") == [], "a checkpoint holds rows that were cleaned"
        job.close()


def test_what_is_kept_is_what_can_still_be_met_and_nothing_else():
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, spec(-30, 20), Model(-30, 20))
        job.batch(0, 1, 200, 0)
        job.batch(1, 2, 200, 0)
        job.watermark(0, 50)
        job.freeze()
        job.finish("done")
        for state, reach in (("left", 20), ("right", 30)):
            times = [row["__namespace"] for row in job.rows_of(state)]
            assert times
            assert min(times) >= 50 - reach
        job.close()


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


def test_without_checkpoints_rows_that_were_cleaned_take_no_room():
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, spec(-10, 10), Model(-10, 10))
        tables = job.subtasks[0][0]._state.tables
        for turn in range(100):
            job.batch(0, turn, 20, 1000 * turn)
            job.batch(1, turn, 20, 1000 * turn)
            job.watermark(0, 1000 * turn + 500)
            assert sum(len(piece.slots) for table in tables for piece in table._added) <= 40
            assert max(table.hot_bytes for table in tables) < 10_000
