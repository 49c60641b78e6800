"""Running aggregates and deduplication over their state against a plain Python model.

Any order of batches, freezes, failed uploads, compactions, crashes and rescales, wherever the state is, gives the
model's output, row by row.
"""

import io
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from tests.property.harness.backends import (
    FILES,
    MEMORY,
    REMOTE,
    REMOTE_FILES,
    leaving,
    leaving_for_rocksdb,
    on,
)
from tests.property.harness.histories import operations, play, step
from tests.property.running_models import KEYS, OPERATIONS, STEPS, VALUES, Kept, Running, Steps, job_of

from penstock.core.elements import TS_COLUMN

MODELS = {
    "running": Running,
    "running over values of any length": lambda key: Running(key, VALUES),
    "running, for a time": lambda key: Running(key).expires(10_000),
    "running over values of any length, for a time": lambda key: Running(key, VALUES).expires(10_000),
    "last, for a time": lambda key: Kept(key, "last", None).expires(10_000),
    "first, for a time": lambda key: Kept(key, "first", None).expires(10_000),
    "last": lambda key: Kept(key, "last", None),
    "first": lambda key: Kept(key, "first", None),
    "last by a nullable column": lambda key: Kept(key, "last", "v"),
    "first by a nullable column": lambda key: Kept(key, "first", "v"),
}
NUMBERS = [name for name in sorted(MODELS) if "any length" not in name]
EXPIRING = [name for name in NUMBERS if "time" in name]


def job_on(backend, name, kind="one"):
    key, keys = KEYS[kind]
    return job_of(MODELS[name](key), keys, backend)


def run(backend, name, kind, history):
    with job_on(backend, name, kind) as job:
        steps = Steps(job)
        play(history, steps, job)
        steps.question()
        for ms in (100_000, 5_000):  # hardly a key has a row now
            steps.tick(ms)
            steps.batch(ms, 3)
            steps.question()


@on((MEMORY, 80), (FILES, 100), (REMOTE_FILES, 25))
def test_any_history_gives_the_rows_of_the_model(backend):
    backend.check(run, name=st.sampled_from(NUMBERS), kind=st.sampled_from(sorted(KEYS)), history=OPERATIONS)


@on((MEMORY, 30), (leaving(3), 50), (leaving_for_rocksdb(3), 4), (REMOTE, 15))
def test_any_history_over_values_of_any_length_gives_the_rows_of_the_model(backend):
    names = sorted(set(MODELS) - set(NUMBERS))
    backend.check(run, name=st.sampled_from(names), kind=st.sampled_from(sorted(KEYS)), history=OPERATIONS)


@on(leaving(3))
def test_a_row_that_expired_before_a_restore_starts_again(backend):
    history = [*[("batch", 0, 1)] * 7, ("tick", 1), ("batch", 5, 2), ("tick", 10_000), ("checkpoint",), ("start", 1)]
    run(backend, "running over values of any length, for a time", "one", history)


#: From here on there is something to be fetched, of which a part has expired.
BEGIN = [("batch", 1, 20), ("tick", 11_000), ("batch", 2, 10), ("checkpoint",), ("tick", -2_500), ("start", 2)]
MOVES = step("move", st.sampled_from([MEMORY, FILES, *REMOTE_FILES[:2]]), times=2)


def run_elsewhere(backend, name, kind, history):
    with job_on(backend, name, kind) as job:
        steps = Steps(job)
        play([*BEGIN, *history], steps, job)
        steps.question()
        job.checkpoint()
        steps.start(3)
        steps.question()
        steps.tick(1_000_000)
        steps.batch(3, 30)
        steps.question()


@on((REMOTE_FILES, 35))
def test_what_has_expired_stays_so_while_it_is_fetched_dropped_and_elsewhere(backend):
    history = operations(*STEPS, MOVES, most=40)
    kinds = st.sampled_from(sorted(KEYS))
    backend.check(run_elsewhere, name=st.sampled_from(EXPIRING), kind=kinds, history=history)


DAY_MS = 86_400_000
DROPPED, KEPT = REMOTE_FILES[0], REMOTE_FILES[-1]


def rows(*keys):
    return [{"a": key, "v": 1, "x": 1.0, **dict.fromkeys("stdb"), TS_COLUMN: 0} for key in keys]


@on(DROPPED)
@pytest.mark.parametrize("name", EXPIRING)
def test_a_clock_that_is_put_right_ends_nothing_that_is_fetched_anew(backend, name):
    with job_on(backend, name) as job:
        steps = Steps(job)
        steps.tick(3 * DAY_MS)
        steps.rows(rows(*range(15)))
        job.checkpoint()
        steps.start(1)
        steps.rows(rows(*range(15)))
        job.checkpoint()
        steps.tick(-3 * DAY_MS)
        for place, key in enumerate([*range(15), *range(15)]):
            steps.rows(rows(key))
            if place % 6 == 0:
                steps.question()
        assert job.stores[0]._cold.remote[0].dropped_regions > 0


@on(MEMORY, FILES, DROPPED)
def test_time_goes_on_from_the_newest_row_when_the_clock_is_behind_at_a_restart(backend):
    with job_on(backend, "running, for a time") as job:
        steps = Steps(job)
        steps.rows(rows(*range(15)))
        job.checkpoint()
        steps.tick(-30_000)
        steps.start(2)
        steps.tick(30_000 + 9_999)
        steps.rows(rows(*range(15)))
        steps.tick(10_000)
        steps.rows(rows(1))
        steps.question()


@on(KEPT)
def test_what_has_expired_takes_no_place_on_the_local_disk_when_it_is_fetched(backend):
    with job_on(backend, "running, for a time") as job:
        steps = Steps(job)
        steps.rows(rows(*range(5)))
        steps.tick(5_000)
        steps.rows(rows(*range(5, 15)))
        job.checkpoint()
        steps.start(1)
        steps.tick(5_000)
        steps.rows(rows(5))
        steps.question()
        assert job.stores[0]._cold.remote[0]._table._local.rows_of(0) == 10


@on(FILES)
@pytest.mark.parametrize("kind", ["one", "two"])
def test_a_restart_leaves_out_what_has_expired(backend, kind):
    with job_on(backend, "running, for a time", kind) as job:
        steps = Steps(job)
        steps.batch(1, 200)
        job.checkpoint()
        steps.tick(10_000)
        steps.start(1)
        table = job.operators[0]._table
        assert len(table._hot.memory.present().slots) == 0
        assert table.cold.rows_of(0) == 0
        steps.batch(2, 200)
        steps.question()


@on(replace(KEPT, keys=1))
def test_merging_takes_what_has_expired_out_of_the_object_store(backend):
    with job_on(backend, "last, for a time") as job:
        steps = Steps(job)
        for key in range(3):
            steps.rows(rows(key))
            job.checkpoint()
            steps.tick(4_000)
        steps.rows(rows(9))
        encoded = job.stores[0].compaction().run(job.files.read)
        assert sorted(pq.read_table(io.BytesIO(encoded.data)).column("a").to_pylist()) == [1, 2]
