"""Rows of joins beyond memory: in files, within the managed memory, and as they were after a restore."""

import contextlib
import errno
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.support.sizes import given, sizes

from penstock.config.settings import JobSettings
from penstock.core.errors import PenstockError, StorageError
from penstock.core.keygroup import ALL_HASHES
from penstock.core.snapshot import FileRef
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.state.keys.key_index import KeyIndex
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state
from penstock.state.tiers import join_runs
from penstock.state.tiers.join_runs import Merge, Run, RunFiles, RunKeys

LIMIT = 8 << 20
ONE = RunKeys(pa.schema([pa.field("k", pa.int64())]), np.array([7]), [pa.array([1])])
KEY, VALUES = pa.schema([pa.field("k", pa.int64())]), (pa.field("s", pa.string()), pa.field("n", pa.list_(pa.int64())))
BATCHES, ROWS = 60, 4000


def run_of(slots, times, values=()):
    return Run.ordered(np.array(slots, np.int32), np.array(times, np.int64), list(values))


def opened(folder, backend="rocksdb", snapshots=(), files=None):
    budget = MemoryBudget(LIMIT)
    store = open_keyed_state(
        KeyedStateRequest(
            uid="j",
            snapshots=snapshots,
            hash_range=ALL_HASHES,
            settings=JobSettings(state_backend=backend),
            read=lambda file: bytes(files[file.path])[file.offset : file.offset + file.length],
            directory=folder,
            writer="w",
            budget=budget,
            limits=sizes(),
        )
    )
    rows = store.row_state(KEY, evictable=True)
    return store, rows, rows.join_buffer("left", VALUES), budget


def fill(rows, table, budget):
    for number in range(BATCHES):
        keys = (np.arange(ROWS) * 7 + number) % 500
        batch = pa.record_batch({"k": pa.array(keys)})
        columns = key_columns(batch, ("k",))
        slots = rows.upsert(columns, hash_key_columns(columns, ROWS)).copy()
        texts = pa.array([f"{number}-{row}-{'x' * (row % 90)}" for row in range(ROWS)])
        lists = pa.array([[number, row] for row in range(ROWS)])
        table.add(slots, np.arange(ROWS) * 1000 + number, [texts, lists])
        rows.settle()
        assert budget.used_bytes <= LIMIT


def matching_runs(rows, table, low, high):
    run = table.within(low, high)
    keys = rows.keys(run.slots)[0].to_pylist()
    return sorted(zip(keys, run.times.tolist(), run.values[0].to_pylist(), run.values[1].to_pylist(), strict=True))


def test_ten_times_what_fits_is_found_and_restored_within_the_managed_memory(tmp_path):
    store, rows, table, budget = opened(tmp_path / "a")
    before = pa.total_allocated_bytes()
    fill(rows, table, budget)
    assert pa.total_allocated_bytes() - before < LIMIT
    assert table.counts().total == BATCHES * ROWS
    assert list((tmp_path / "a").iterdir()) == [], "a file has no name"
    found = matching_runs(rows, table, 100_000, 130_059)
    assert len(found) == 31 * BATCHES
    assert found[5][2].startswith(f"{found[5][1] % 1000}-{found[5][1] // 1000}-")
    (frozen,) = store.freeze(1)
    files = {}

    def kept(encoded):
        files[str(encoded.position)] = encoded.data
        return FileRef(path=str(encoded.position), length=len(encoded.data))

    frozen.durable({encoded.position: kept(encoded) for encoded in frozen.encode()})
    table.clean(2_000_000)
    assert table.counts().total < BATCHES * ROWS * 0.75, "files the watermark has passed are gone"
    other, rows, restored, budget = opened(tmp_path / "b", snapshots=(frozen.snapshot(),), files=files)
    assert budget.used_bytes <= LIMIT
    assert restored.counts().total == BATCHES * ROWS
    assert matching_runs(rows, restored, 100_000, 130_059) == found
    store.close()
    other.close()


def test_without_files_the_limit_is_an_error_that_says_so(tmp_path):
    store, rows, table, budget = opened(tmp_path, "hashmap")
    with pytest.raises(PenstockError, match="managed_memory allows") as caught:
        fill(rows, table, budget)
    assert "the rows of a join, can exceed memory" in caught.value.hint
    store.close()


def test_a_folder_that_takes_no_file_is_an_error_that_names_it(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match="taken"):
        RunFiles(tmp_path / "taken").write(run_of([0], [0]), ONE)


def test_what_is_written_is_what_is_read(tmp_path):
    values = [pa.array(["a", None, "c"]).slice(1), pa.array([True, None, False]).slice(1)]
    keys = RunKeys(pa.schema([pa.field("k", pa.string())]), np.array([-5, 9]), [pa.array(["x", "y", None]).slice(1)])
    run = RunFiles(tmp_path).write(run_of([1, 0], [5, 6], values), keys)
    run.release()
    assert (run.slots.tolist(), run.times.tolist()) == ([1, 0], [5, 6])
    assert (run.keys.hashes.tolist(), run.keys.gather(run.slots)[0].to_pylist()) == ([-5, 9], [None, "y"])
    assert [value.to_pylist() for value in run.values] == [[None, "c"], [None, False]]
    bare = RunFiles(tmp_path).write(run_of([0], [2]), ONE)
    assert (bare.slots.tolist(), bare.times.tolist(), bare.values) == ([0], [2], [])


def test_keys_of_the_same_hash_are_told_apart():
    schema = pa.schema([pa.field("k", pa.string())])
    own = RunKeys(schema, np.array([1, 4, 4, 4, 8]), [pa.array(["a", "b", None, "", "c"])])
    asking = RunKeys(schema, np.array([1, 3, 4, 4, 4, 8, 9]), [pa.array(["z", "a", "", "b", "q", "c", "d"])])
    assert own.numbers_of(asking, np.arange(7, dtype=np.int32)).tolist() == [-1, -1, 3, 1, -1, 4, -1]
    assert own.numbers_of(asking, np.array([3], np.int32)).tolist() == [1]
    assert own.numbers_of(asking, np.array([], np.int32)).tolist() == []


def descriptors(folder):
    """The number of open files below a folder: other tests' files may be closed meanwhile."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found += str(descriptor.readlink()).startswith(f"{folder}/")
    return found


def test_runs_share_files_each_of_which_takes_a_descriptor(tmp_path):
    run_files, before = RunFiles(tmp_path), descriptors(tmp_path)
    kept = [run_files.write(run_of([0], [i + 1], [pa.array([str(i)])]), ONE) for i in range(500)]
    assert descriptors(tmp_path) <= before + 2
    kept[7].release()
    assert [(run.times[0], run.values[0][0].as_py()) for run in kept] == [(i + 1, str(i)) for i in range(500)]
    large = np.arange(20 << 20)
    whole = run_files.write(Run.ordered(np.zeros(len(large), np.int32), large, []), ONE)
    assert (len(whole.slots), whole.times[-1]) == (len(large), large[-1])
    run_files.close()
    assert descriptors(tmp_path) <= before + 2
    del kept, whole
    assert descriptors(tmp_path) == before


def test_a_host_without_descriptors_left_is_an_error_that_says_so(tmp_path, monkeypatch):
    def none_left(**_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("tempfile.mkstemp", none_left)
    with pytest.raises(StorageError) as caught:
        RunFiles(tmp_path).write(run_of([0], [0]), ONE)
    assert "ulimit -n" in caught.value.hint


def added(rows, table, keys, times, text="x" * 90):
    columns = key_columns(pa.record_batch({"k": pa.array(keys)}), ("k",))
    slots = rows.upsert(columns, hash_key_columns(columns, len(keys))).copy()
    table.add(slots, times, [pa.array([text] * len(keys)), pa.array([[1]] * len(keys))])
    rows.settle()


def test_keys_that_do_not_fit_in_memory_wait_in_files_with_their_rows(tmp_path):
    store, rows, table, budget = opened(tmp_path)
    groups, kept = [], KeyIndex(KEY)
    for number in range(100):
        keys = np.arange(2000) + number * 2000
        added(rows, table, keys, keys)
        assert budget.used_bytes <= LIMIT
        groups.append(len({run.group for run in table._runs}))
        columns = key_columns(pa.record_batch({"k": pa.array(keys)}), ("k",))
        kept.upsert(columns, hash_key_columns(columns, len(keys)))
    assert kept.memory_bytes > LIMIT, "or this shows nothing"
    assert rows.index.memory_bytes < LIMIT / 2
    assert table.counts().total == 200_000
    assert max(groups) < 20
    columns = key_columns(pa.record_batch({"k": pa.array([5, 199_999, 200_000])}), ("k",))
    slots = rows.upsert(columns, hash_key_columns(columns, 3)).copy()
    lows, highs = np.zeros(3, np.int64), np.full(3, 1 << 40)
    met = []
    for run, places, own in table.matching_runs(slots, lows, highs):
        for asking, found in run.pairs(own, lows[places], highs[places]):
            met += zip(places[asking].tolist(), run.times[found].tolist(), strict=True)
    assert sorted(met) == [(0, 5), (1, 199_999)]
    assert len(rows.parts(0, 1 << 40)) > 4
    store.close()


def test_files_become_fewer_without_what_was_cleaned_and_with_few_descriptors(tmp_path):
    store, rows, table, _ = opened(tmp_path)
    keys, before = np.arange(3000), descriptors(tmp_path)
    for number in range(120):
        added(rows, table, keys, np.full(3000, number * 10) + keys % 400)  # most wait for 40 batches
        table.clean(number * 10 - 10)
    alive = sorted(time for number in range(120) for time in (number * 10 + keys % 400).tolist() if time > 1180)
    for _ in range(200):
        rows.settle()
    files = [run for run in table._runs if run.keys]
    assert 0 < len({run.group for run in files}) <= 8
    assert table.counts().total < 3 * len(alive)
    assert sorted(table.within(0, 1 << 40).times.tolist()) == alive
    assert descriptors(tmp_path) - before <= 6
    store.close()


def test_of_rows_of_one_key_and_time_the_last_stays_the_last_when_files_become_one(tmp_path, monkeypatch):
    given(monkeypatch, spilled_bytes=0)
    store, rows, table, _ = opened(tmp_path)
    for number in range(12):
        added(rows, table, np.array([1, 2, 3]), np.array([7, number % 3, 9]), str(number))
        table.spill()
        rows.settle()
        assert table.within(7, 7).values[0].to_pylist() == [str(n) for n in range(number + 1)]
    for _ in range(20):
        rows.settle()
    assert len({run.group for run in table._runs}) < 5
    assert table.within(7, 7).values[0].to_pylist() == [str(n) for n in range(12)]
    store.close()


def test_a_barrier_saves_each_row_once_while_files_become_one(tmp_path, monkeypatch):
    given(monkeypatch, spilled_bytes=0)
    store, rows, table, _ = opened(tmp_path)
    batches = 0
    while table._merging is None:
        added(rows, table, np.array([1, 2, 3]), np.array([7, batches, 9]), str(batches))
        table.spill()
        batches += 1
        rows.settle()
    store.freeze(1)
    for _ in range(20):
        rows.settle()
    assert table._merging is None
    added(rows, table, np.array([1]), np.array([7]), "last")
    (frozen,) = store.freeze(2)
    saved = [pq.read_table(io.BytesIO(encoded.data)) for encoded in frozen.encode()]
    assert [part.num_rows for part in saved] == [3 * batches, 1]
    assert sorted(pa.concat_tables(saved).column("__row").to_pylist()) == list(range(3 * batches + 1))
    first = saved[0].filter(pc.field("k") == 1).sort_by("__row")
    assert first.column("s").to_pylist() == [str(number) for number in range(batches)], "in order of arrival"
    store.close()


def test_when_the_operator_is_closed_its_files_are_gone_whoever_knows_the_table(tmp_path):
    before = descriptors(tmp_path)
    store, rows, table, budget = opened(tmp_path)
    fill(rows, table, budget)
    store.freeze(1)
    assert descriptors(tmp_path) > before
    assert table._frozen == [], "nothing is the object store's"
    store.close()
    assert descriptors(tmp_path) == before
    assert table.counts().total == 0


def test_fetched_files_that_are_large_together_stay_apart(tmp_path):
    run_files, runs = RunFiles(tmp_path, limits=sizes()), []
    for number in range(100):
        run = Run.of(np.zeros(100, np.int32), np.arange(100) + number * 100, [pa.array(["x" * 50] * 100)])
        runs.append(join_runs.written(run, ONE, run_files, run_files.new_group()))
        if inputs := join_runs.to_merge(runs, 2, 64 << 10):
            merge = Merge(inputs, run_files, lambda: -1, 1)
            while merge.write_next():
                pass
            runs = merge.replace_inputs(runs, -1)
        assert max(run.length for run in runs) <= 64 << 10
    assert len(runs) < 30
    assert sorted(time for run in runs for time in run.times.tolist()) == list(range(10_000))
    run_files.close()
