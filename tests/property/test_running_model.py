"""Running aggregates and deduplication over their state against a plain Python model.

Any order of batches, freezes, failed uploads, compactions, restores and rescales, wherever the state is, gives the
model's output, row by row.
"""

import io
import tempfile
from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.running_job import KEYS, OPERATIONS, Job
from tests.property.running_models import VALUES, Kept, Running
from tests.property.small_pieces import LOCAL_BYTES, small_pieces
from tests.support import sizes as state_sizes
from tests.support.depth import examples

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


CASES = [(name, backend) for backend in ("hashmap", "rocksdb", "remote") for name in sorted(MODELS)]


@contextmanager
def job_of(name, kind, backend, local_bytes):
    key, keys = KEYS[kind]
    with tempfile.TemporaryDirectory() as folder, small_pieces():
        job = Job(folder, MODELS[name](key), keys, backend, local_bytes)
        try:
            yield job
        finally:
            job.close()


def run(job, operations):
    for operation, *arguments in operations:
        getattr(job, {"restart": "start"}.get(operation, operation))(*arguments)


@pytest.mark.parametrize(("name", "backend"), CASES)
@examples(15)
@given(st.sampled_from(sorted(KEYS)), OPERATIONS, st.sampled_from(LOCAL_BYTES))
def test_any_history_gives_the_rows_of_the_model(name, backend, kind, operations, local_bytes):
    with job_of(name, kind, backend, local_bytes) as job:
        run(job, operations)
        job.question()


EXPIRING = [name for name in sorted(MODELS) if "any length" not in name and "time" in name]
#: From here on there is something to be fetched, of which a part has expired.
BEGIN = [("batch", 1, 20), ("tick", 11_000), ("batch", 2, 10), ("save",), ("tick", -2_500), ("restart", 2)]
MOVES = st.tuples(st.just("move"), st.sampled_from(["hashmap", "rocksdb", "remote", "remote"]))


@pytest.mark.parametrize("name", EXPIRING)
@examples(25)
@given(st.sampled_from(sorted(KEYS)), st.data(), st.sampled_from(LOCAL_BYTES))
def test_what_has_expired_stays_so_while_it_is_fetched_dropped_and_elsewhere(name, kind, data, local_bytes):
    steps = st.one_of(OPERATIONS.flatmap(st.sampled_from), MOVES)
    with job_of(name, kind, "remote", local_bytes) as job:
        run(job, [*BEGIN, *data.draw(st.lists(steps, max_size=40))])
        job.question()
        job.save()
        job.start(3)
        job.question()
        job.tick(1_000_000)
        job.batch(3, 30)
        job.question()


DAY_MS = 86_400_000


def rows(*keys):
    return [{"a": key, "v": 1, "x": 1.0, **dict.fromkeys("stdb"), TS_COLUMN: 0} for key in keys]


@pytest.mark.parametrize("name", EXPIRING)
def test_a_clock_that_is_put_right_ends_nothing_that_is_fetched_anew(name):
    with job_of(name, "one", "remote", 1) as job:
        job.tick(3 * DAY_MS)
        job.give(rows(*range(15)))
        job.save()
        job.start(1)
        job.give(rows(*range(15)))
        job.save()
        job.tick(-3 * DAY_MS)
        for key in [*range(15), *range(15)]:
            job.give(rows(key))
            job.question()
        assert job.subtasks[0][1]._cold.remote[0].dropped_regions > 0


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "remote"])
def test_time_goes_on_from_the_newest_row_when_the_clock_is_behind_at_a_restart(backend):
    with job_of("running, for a time", "one", backend, 1) as job:
        job.give(rows(*range(15)))
        job.save()
        job.tick(-30_000)
        job.start(2)
        job.tick(30_000 + 9_999)
        job.give(rows(*range(15)))
        job.tick(10_000)
        job.give(rows(1))
        job.question()


def test_what_has_expired_takes_no_place_on_the_local_disk_when_it_is_fetched():
    with job_of("running, for a time", "one", "remote", 1 << 50) as job:
        job.give(rows(*range(5)))
        job.tick(5_000)
        job.give(rows(*range(5, 15)))
        job.save()
        job.start(1)
        job.tick(5_000)
        job.give(rows(5))
        job.question()
        remote = job.subtasks[0][1]._cold.remote[0]
        assert remote._local.rows_of(0) == 10


@pytest.mark.parametrize("kind", ["one", "two"])
def test_a_restart_leaves_out_what_has_expired(kind):
    with job_of("running, for a time", kind, "rocksdb", 1) as job:
        job.batch(1, 200)
        job.save()
        job.tick(10_000)
        job.start(1)
        table = job.subtasks[0][0]._table
        assert len(table._hot.memory.present().slots) == 0
        assert table._cold._rows.rows_of(0) == 0
        job.batch(2, 200)
        job.question()


def test_merging_takes_what_has_expired_out_of_the_object_store(monkeypatch):
    state_sizes.given(monkeypatch, segments_per_tier=3)
    with job_of("last, for a time", "one", "remote", 1 << 50) as job:
        for key in range(3):
            job.give(rows(key))
            job.save()
            job.tick(4_000)
        job.give(rows(9))
        encoded = job.subtasks[0][1].compaction().run(job.read)
        assert sorted(pq.read_table(io.BytesIO(encoded.data)).column("a").to_pylist()) == [1, 2]
