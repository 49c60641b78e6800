"""Interval joins over their state against a plain Python model, and the kernels of joins against their twins.

Any order of batches, watermarks, freezes, failed uploads, compactions, restores and rescales gives the model's output.
"""

import tempfile
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
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
    SCHEMAS,
    UID,
    Job,
    Out,
    go_on,
    joined,
    rows_are_remote,
    run,
)
from tests.support import sizes as state_sizes
from tests.support.depth import examples

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN, Barrier, Batch, Watermark, WatermarkStatus
from penstock.core.errors import StateMismatchError
from penstock.kernels.joins import find_ranges, find_ranges_plain, write_pairs, write_pairs_plain


class Model:
    """Every pair within the bounds that was not late, once the second row comes; rows without one at their end."""

    def __init__(self, lower, upper, how="inner"):
        self.lower, self.upper, self.how, self.late = lower, upper, how, 0
        self.kept = ({key: [] for key in KEYS}, {key: [] for key in KEYS})
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def copy(self):
        other = Model(self.lower, self.upper, self.how)
        other.late, other.marks = self.late, dict(self.marks)
        other.kept = tuple({k: list(rows) for k, rows in side.items()} for side in self.kept)
        return other

    def pair(self, side, row, other):
        """Left and right of two rows that meet, else None."""
        left, right = (other, row) if side else (row, other)
        return (left, right) if self.lower <= right[TS_COLUMN] - left[TS_COLUMN] <= self.upper else None

    def row(self, side, row):
        key, time = row[KEY_NAMES[side]], row[TS_COLUMN]
        if time < self.marks[key]:
            self.late += 1
            return []
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


def spec(lower, upper, how="inner", late=None):
    config = CONFIG | {"lower_us": lower, "upper_us": upper, "how": how} | (late or {})
    return SimpleNamespace(uid=UID, kind="interval_join", config=config)


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
        join_pairs=7,
        output_rows=5,
        dead_keys=1,
        segments_per_tier=3,
    )


@pytest.fixture
def leaving(monkeypatch):
    """Hardly any key stays in memory."""
    keys_leave_for_rocksdb(monkeypatch, 1)


KINDS = [
    *((*bounds, "inner") for bounds in [(-30, 20), (0, 0), (5, 60), (-40, -10)]),
    *((*bounds, "full") for bounds in [(-30, 20), (0, 0), (5, 60), (-40, -10)]),
    (-10, 50, "left"),
    (-60, 5, "right"),
]
EACH = pytest.mark.parametrize(("lower", "upper", "how"), KINDS)


@EACH
@examples(20)
@given(operations=OPERATIONS, backend=BACKENDS)
def test_output_is_the_models(lower, upper, how, operations, backend):
    compare((lower, upper, how), operations, backend)


@pytest.mark.usefixtures("leaving")
@EACH
@examples(20)
@given(operations=OPERATIONS)
def test_output_is_the_models_when_keys_leave_memory(lower, upper, how, operations):
    compare((lower, upper, how), operations, "rocksdb", most_keys=1)


@pytest.mark.parametrize(("keys", "local_bytes"), REMOTE)
@examples(12)
@given(kind=st.sampled_from(KINDS), operations=REMOTE_OPERATIONS)
def test_output_is_the_models_wherever_rows_lie(monkeypatch, keys, local_bytes, kind, operations):
    rows_are_remote(monkeypatch, keys, local_bytes)
    with small_pieces():
        compare(kind, operations, "remote")


def compare(kind, operations, backend, most_keys=None):
    lower, upper, how = kind
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            folder,
            spec(lower, upper, how, LATE_TO if how == "full" else None),
            Model(lower, upper, how),
            backend=backend,
        )
        job.most_keys = most_keys
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


def test_a_watermark_or_a_row_behind_pairs_that_are_still_coming_out_waits_for_them():
    with tempfile.TemporaryDirectory() as folder:
        job, out = Job(folder, spec(-100, 100), Model(-100, 100)), Out()
        operator = job.subtasks[0][0]
        rows = [[{"id": n, KEY_NAMES[side]: "a", "tags": [], TS_COLUMN: n} for n in range(8)] for side in (0, 1)]
        batches = [pa.RecordBatch.from_pylist(mine, schema=s) for mine, s in zip(rows, SCHEMAS, strict=True)]

        def later(batch):
            place = batch.schema.get_field_index(TS_COLUMN)
            return batch.set_column(place, batch.schema.field(place), pa.array(np.arange(600, 608)))

        operator.process_batch(Batch(batches[0]), 0, out)
        operator.process_batch(Batch(batches[1]), 1, out)
        assert 0 < len(out.rows) < 16
        operator.process_watermark(Watermark(500), out)
        operator.process_status(WatermarkStatus(idle=True), out)
        operator.process_batch(Batch(batches[1]), 1, out)
        assert out.watermarks == []
        assert job.dropped(0) == 0
        go_on(operator, out)
        assert len(out.rows) == 64, "the second time the rows are late"
        assert out.watermarks == [500, "idle"]
        assert job.dropped(0) == 8
        operator.process_batch(Batch(later(batches[0])), 0, out)
        operator.process_batch(Batch(later(batches[1])), 1, out)
        assert len(out.rows) < 128
        operator.snapshot(Barrier(1), out)
        assert len(out.rows) == 128, "nothing that is under way is left to what comes behind a barrier"
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


@pytest.mark.parametrize(
    ("bounds", "how", "reaches"),
    [
        ((-30, 20), "left", (20, 50)),
        ((-30, 20), "right", (50, 30)),
        ((5, 60), "left", (60, 55)),
        ((5, 60), "full", (60, 55)),
    ],
)
def test_what_a_row_without_a_partner_is_told_by_is_kept_and_nothing_else(bounds, how, reaches):
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, spec(*bounds, how), Model(*bounds, how))
        job.batch(0, 1, 300, 0)
        job.batch(1, 2, 300, 0)
        job.watermark(0, 80)
        job.checkpoint()
        for state, reach in zip(("left", "right"), reaches, strict=True):
            times = [row["__namespace"] for row in job.rows_of(state)]
            assert 80 - reach <= min(times) < 80 - reach + 8
        job.close()


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


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ((0, 100, "inner"), (0, 100, "left"), "rows without a partner"),
        ((0, 100, "left"), (0, 100, "full"), "rows without a partner"),
        ((0, 100, "left"), (-50, 100, "left"), "from 0 s to 0.0001 s, the job has one by time, from -5e-05 s"),
        ((0, 100, "full"), (0, 100, "inner"), None),
    ],
)
def test_a_join_goes_on_as_another_only_where_that_has_missed_nothing(tmp_path, before, after, reason):
    job = Job(tmp_path, spec(*before), Model(*before[:2], how=before[2]))
    job.checkpoint()
    job.spec = spec(*after)
    if reason is None:
        job.restart(1)
        job.close()
        return
    with pytest.raises(StateMismatchError, match=reason):
        job.restart(1)


def test_watermarks_alone_leave_no_file_in_memory(tmp_path):
    job = Job(tmp_path, spec(0, 100, "left"), Model(0, 100, "left"), backend="rocksdb")
    (operator,) = job.subtasks[0][:1]
    row = {"v": 1, "k": "key-1", "s": "x", "id": 1}
    for time in (10, 20, 30):
        data = pa.RecordBatch.from_pylist([row | {TS_COLUMN: time}], schema=SCHEMAS[0])
        operator.process_batch(Batch(data), 0, Out())
    assert any(run.spilled for run in operator._state.tables[0]._runs), "or this shows nothing"
    out = Out()
    operator.process_watermark(Watermark(115), out)
    assert len(out.rows) == 1
    assert not operator._state.tables[0]._looked_at
    job.close()
