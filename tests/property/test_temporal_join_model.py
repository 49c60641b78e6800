"""Temporal joins over their state against a plain Python model.

Any order of rows, versions, watermarks, freezes, failed uploads, compactions, restores and rescales gives the model's
output.
"""

import tempfile
from types import SimpleNamespace

import pytest
from hypothesis import given
from tests.property.process_job import keys_leave
from tests.property.small_pieces import small_pieces
from tests.property.two_inputs import (
    BACKENDS,
    CONFIG,
    KEY_NAMES,
    KEYS,
    LATE_TO,
    LEFT,
    OPERATIONS,
    REMOTE,
    REMOTE_OPERATIONS,
    RIGHT,
    UID,
    Job,
    joined,
    rows_are_remote,
    run,
)
from tests.support import sizes as state_sizes
from tests.support.depth import examples

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN

VERSIONS = RIGHT.remove(RIGHT.get_field_index("tags"))


class Model:
    """All versions of each key in order of arrival; rows wait for the watermark."""

    def __init__(self, how):
        self.how, self.late = how, 0
        self.waiting, self.versions = {key: [] for key in KEYS}, {key: [] for key in KEYS}
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def copy(self):
        other = Model(self.how)
        other.late, other.marks = self.late, dict(self.marks)
        other.waiting = {key: list(rows) for key, rows in self.waiting.items()}
        other.versions = {key: list(rows) for key, rows in self.versions.items()}
        return other

    def row(self, side, row):
        key = row[KEY_NAMES[side]]
        if side:
            self.versions[key].append(row)
        elif row[TS_COLUMN] <= self.marks[key]:
            self.late += 1
        else:
            self.waiting[key].append(row)
        return []

    def advance(self, keys, watermark):
        found = []
        for key in keys:
            self.marks[key] = max(self.marks[key], watermark)
            for row in [r for r in self.waiting[key] if r[TS_COLUMN] <= watermark]:
                self.waiting[key].remove(row)
                found += self.result(row, [v for v in self.versions[key] if v[TS_COLUMN] <= row[TS_COLUMN]])
        return found

    def result(self, row, versions):
        if not versions and self.how == "inner":
            return []
        newest = max(enumerate(versions), key=lambda v: (v[1][TS_COLUMN], v[0]))[1] if versions else None
        found = joined(row, newest) | {TS_COLUMN: row[TS_COLUMN]}
        del found["tags"]
        return [found]


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
        first_rows=8,
        dead_keys=1,
        segments_per_tier=3,
    )


@pytest.fixture
def leaving(monkeypatch):
    """Hardly any key without rows stays in memory."""
    with keys_leave(monkeypatch, 1):
        yield


@pytest.mark.parametrize("how", ["inner", "left"])
@examples(25)
@given(operations=OPERATIONS, backend=BACKENDS)
def test_output_is_the_models(how, operations, backend):
    compare(how, operations, backend)


@pytest.mark.usefixtures("leaving")
@pytest.mark.parametrize("how", ["inner", "left"])
@examples(25)
@given(operations=OPERATIONS)
def test_output_is_the_models_when_versions_leave_memory(how, operations):
    compare(how, operations, "rocksdb", most_keys=1)


@pytest.mark.parametrize(("keys", "local_bytes"), REMOTE)
@pytest.mark.parametrize("how", ["inner", "left"])
@examples(12)
@given(operations=REMOTE_OPERATIONS)
def test_output_is_the_models_wherever_rows_and_versions_lie(monkeypatch, keys, local_bytes, how, operations):
    rows_are_remote(monkeypatch, keys, local_bytes)
    with small_pieces():
        compare(how, operations, "remote")


def compare(how, operations, backend, most_keys=None):
    spec = SimpleNamespace(
        uid=UID, kind="temporal_join", config=CONFIG | {"how": how} | (LATE_TO if how == "left" else {})
    )
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder, spec, Model(how), (LEFT, VERSIONS), backend=backend)
        job.most_keys = most_keys
        run(job, operations)
        for subtask in range(len(job.subtasks)):
            job.watermark(subtask, MAX_TIMESTAMP)
        assert [table.count for operator, _ in job.subtasks for table in operator._state.tables] == [0] * 2 * len(
            job.subtasks
        ), "a row or a version waits that cannot be asked for"
        job.checkpoint()
        assert len(job.rows_of("current")) == sum(map(bool, job.model.versions.values()))
        job.close()


@pytest.mark.usefixtures("leaving")
def test_versions_that_left_memory_behind_a_drain_are_yet_to_come(tmp_path):
    versions_of_a_drain_are_yet_to_come(tmp_path, "rocksdb")


@pytest.mark.parametrize(("keys", "local_bytes"), REMOTE)
def test_versions_in_the_object_store_are_yet_to_come_behind_a_drain(monkeypatch, tmp_path, keys, local_bytes):
    rows_are_remote(monkeypatch, keys, local_bytes)
    with small_pieces():
        versions_of_a_drain_are_yet_to_come(tmp_path, "remote")


def versions_of_a_drain_are_yet_to_come(tmp_path, backend):
    spec = SimpleNamespace(uid=UID, kind="temporal_join", config=CONFIG | {"how": "left"})
    job = Job(tmp_path, spec, Model("left"), (LEFT, VERSIONS), backend=backend)
    for seed in range(4):
        job.batch(1, seed, 30, 0)
    job.watermark(0, MAX_TIMESTAMP)
    job.checkpoint()
    _, model = job.complete
    model.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)
    for key, found in model.versions.items():  # one of them is kept
        model.versions[key] = [max(enumerate(found), key=lambda v: (v[1][TS_COLUMN], v[0]))[1]] if found else []
    job.restart(2)
    job.batch(0, 9, 40, 100)
    for timestamp in (50, 1000, MAX_TIMESTAMP):
        for subtask in range(2):
            job.watermark(subtask, timestamp)
    assert job.emitted == 40
    job.close()
