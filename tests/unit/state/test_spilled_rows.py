"""Rows of joins beyond memory: in files, within the managed memory, and as they were after a restore."""

import errno
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.config.settings import JobSettings
from penstock.core.errors import PenstockError, StorageError
from penstock.core.keygroup import ALL_HASHES
from penstock.core.snapshot import FileRef
from penstock.kernels.columns import key_columns
from penstock.kernels.hashing import hash_key_columns
from penstock.state.budget import MemoryBudget
from penstock.state.spilled_rows import SpillArea
from penstock.state.store import KeyedStateRequest, open_keyed_state
from penstock.state.timed_rows import TimedRows

LIMIT = 8 << 20
KEY, VALUES = pa.schema([pa.field("k", pa.int64())]), (pa.field("s", pa.string()), pa.field("n", pa.list_(pa.int64())))
BATCHES, ROWS = 60, 4000


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
        )
    )
    rows = store.row_state(KEY)
    return store, rows, rows.timed_rows("left", VALUES), budget


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


def asked(rows, table, low, high):
    run = table.within(low, high)
    keys = rows.keys(run.slots)[0].to_pylist()
    return sorted(zip(keys, run.times.tolist(), run.values[0].to_pylist(), run.values[1].to_pylist(), strict=True))


def test_ten_times_what_fits_is_found_and_restored_within_the_managed_memory(tmp_path):
    store, rows, table, budget = opened(tmp_path / "a")
    before = pa.total_allocated_bytes()
    fill(rows, table, budget)
    assert pa.total_allocated_bytes() - before < LIMIT
    assert table.count == BATCHES * ROWS
    assert list((tmp_path / "a").iterdir()) == [], "a file has no name"
    found = asked(rows, table, 100_000, 130_059)
    assert len(found) == 31 * BATCHES
    assert found[5][2].startswith(f"{found[5][1] % 1000}-{found[5][1] // 1000}-")
    (frozen,) = store.freeze(1)
    files = {}

    def kept(encoded):
        files[str(encoded.position)] = encoded.data
        return FileRef(path=str(encoded.position), length=len(encoded.data))

    frozen.durable({encoded.position: kept(encoded) for encoded in frozen.encode()})
    table.clean(2_000_000)
    assert table.count < BATCHES * ROWS * 0.75, "files the watermark has passed are gone"
    other, rows, restored, budget = opened(tmp_path / "b", snapshots=(frozen.snapshot(),), files=files)
    assert budget.used_bytes <= LIMIT
    assert restored.count == BATCHES * ROWS
    assert asked(rows, restored, 100_000, 130_059) == found
    store.close()
    other.close()


def test_without_files_the_limit_is_an_error_that_says_so(tmp_path):
    store, rows, table, budget = opened(tmp_path, "hashmap")
    with pytest.raises(PenstockError, match="managed_memory_bytes allows") as caught:
        fill(rows, table, budget)
    assert "the rows of a join, need not all be in memory" in caught.value.hint
    store.close()


def test_a_folder_that_takes_no_file_is_an_error_that_names_it(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match="taken"):
        SpillArea(tmp_path / "taken").write(np.zeros(1, np.int32), np.zeros(1, np.int64), [])


def test_what_is_written_is_what_is_read(tmp_path):
    values = [pa.array(["a", None, "c"]).slice(1), pa.array([True, None, False]).slice(1)]
    file = SpillArea(tmp_path).write(np.array([3, 4], np.int32), np.array([5, 6]), values)
    file.slots[1] = 9
    file.release()
    assert (file.slots.tolist(), file.times.tolist()) == ([3, 9], [5, 6])
    assert [value.to_pylist() for value in file.values] == [[None, "c"], [None, False]]
    bare = SpillArea(tmp_path).write(np.array([1], np.int32), np.array([2]), [])
    assert (bare.slots.tolist(), bare.times.tolist(), bare.values) == ([1], [2], [])


def descriptors():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_runs_share_files_each_of_which_takes_a_descriptor(tmp_path):
    area, before = SpillArea(tmp_path), descriptors()
    kept = [area.write(np.array([i], np.int32), np.array([i + 1]), [pa.array([str(i)])]) for i in range(500)]
    assert descriptors() <= before + 2
    kept[7].release()
    assert [(f.slots[0], f.times[0], f.values[0][0].as_py()) for f in kept] == [(i, i + 1, str(i)) for i in range(500)]
    large = np.arange(20 << 20)
    file = area.write(np.zeros(len(large), np.int32), large, [])
    assert (len(file.slots), file.times[-1]) == (len(large), large[-1])
    area.close()
    assert descriptors() <= before + 2
    del kept, file
    assert descriptors() == before


def test_a_host_without_descriptors_left_is_an_error_that_says_so(tmp_path, monkeypatch):
    def none_left(**_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("tempfile.mkstemp", none_left)
    with pytest.raises(StorageError) as caught:
        SpillArea(tmp_path).write(np.zeros(1, np.int32), np.zeros(1, np.int64), [])
    assert "ulimit -n" in caught.value.hint


def test_rows_wait_for_a_file_of_some_size_where_keys_fill_memory(tmp_path, monkeypatch):
    store, rows, table, budget = opened(tmp_path)
    spills, spill = [], TimedRows.spill
    monkeypatch.setattr(TimedRows, "spill", lambda table: spills.append(1) or spill(table))
    for number in range(100):
        keys = np.arange(1000) + number * 1000
        batch = pa.record_batch({"k": pa.array(keys)})
        columns = key_columns(batch, ("k",))
        slots = rows.upsert(columns, hash_key_columns(columns, 1000)).copy()
        table.add(slots, keys, [pa.array(["x" * 90] * 1000), pa.array([[1]] * 1000)])
        rows.settle()
    assert rows.index.memory_bytes > 0.6 * LIMIT, "or this shows nothing"
    assert table.count == 100_000
    assert 0 < len(spills) < 20
    assert budget.used_bytes <= LIMIT
    store.close()
