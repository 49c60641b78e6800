"""Temporal joins over their state against a plain Python model.

Any order of rows, versions, watermarks, freezes, failed uploads, compactions, restores and rescales gives the model's
output.
"""

from hypothesis import strategies as st
from tests.property.harness.backends import DISK, MEMORY, leaving, on, remote
from tests.property.harness.histories import end, play
from tests.property.harness.job import Job, spec_of
from tests.property.harness.sides import (
    KEYS,
    LATE,
    OPERATIONS,
    PLAIN_RIGHT,
    RESTORED,
    Sides,
    inputs,
    join_config,
    joined,
    key_of,
)

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, TS_COLUMN

LEAVING, REMOTE = leaving(1), remote(1, 1, 40_000, 1 << 50)


class Model:
    """All versions of each key in order of arrival; rows wait for the watermark."""

    def __init__(self, how):
        self.how = how
        self.waiting, self.versions = {key: [] for key in KEYS}, {key: [] for key in KEYS}
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)

    def row(self, side, row):
        key = key_of(side, row)
        if not side and row[TS_COLUMN] <= self.marks[key]:
            return LATE
        (self.versions if side else self.waiting)[key].append(row)
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
        found = joined(row, newest(versions) if versions else None, PLAIN_RIGHT)
        return [found | {TS_COLUMN: row[TS_COLUMN]}]

    def drained(self):
        """The end of time is not carried over, and of the versions of each key one is kept."""
        self.marks = dict.fromkeys(KEYS, MIN_TIMESTAMP)
        self.versions = {key: [newest(found)] if found else [] for key, found in self.versions.items()}


def newest(versions):
    return max(enumerate(versions), key=lambda place: (place[1][TS_COLUMN], place[0]))[1]


def job_on(backend, how, *, late=False):
    config = join_config(how, late=late, right=PLAIN_RIGHT)
    return Job(spec_of("temporal_join", config), inputs(PLAIN_RIGHT), KEYS, Model(how), backend)


@on((MEMORY, 100), (DISK, 40), (LEAVING, 60), (REMOTE, 20))
def test_output_is_the_models(backend):
    backend.check(run, how=st.sampled_from(["inner", "left"]), history=OPERATIONS)


def run(backend, how, history):
    with job_on(backend, how, late=how == "left") as job:
        steps = Sides(job)
        play([*(RESTORED if backend.state == "remote" else []), *history], steps, job)
        end(job, steps)
        counts = {table.counts().total for operator in job.operators for table in operator._state.tables}
        assert counts == {0}, "a row or a version waits that cannot be asked for"
        job.checkpoint()
        assert len(job.rows_of("current")) == sum(map(bool, job.model.versions.values()))


@on(LEAVING, *REMOTE)
def test_versions_outside_memory_are_yet_to_come_behind_a_drain(backend):
    with job_on(backend, "left") as job:
        steps = Sides(job)
        for seed in range(4):
            steps.batch(1, seed, 30, 0)
        steps.mark(0, MAX_TIMESTAMP)
        job.checkpoint()
        job.amend(Model.drained)
        job.start(2)
        steps.batch(0, 9, 40, 100)
        for timestamp in (50, 1000, MAX_TIMESTAMP):
            for subtask in range(2):
                steps.mark(subtask, timestamp)
        assert steps.emitted == 40
