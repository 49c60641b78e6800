"""Cold rows in a file: what comes back, growing, stretches and single places, collisions at the end, giving back."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.sizes import given, sizes

from penstock.core.errors import StorageError
from penstock.core.keygroup import ALL_HASHES, HASH_MAX, HASH_MIN, HashRange
from penstock.kernels.aggregates.cold_cells import cold_home
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.state.cells.accumulators import AccumulatorSpec, PaneTableSpec
from penstock.state.cells.pane_memory import PaneCells
from penstock.state.keys.key_index import KeyIndex
from penstock.state.tiers import cold_panes as module
from penstock.state.tiers.cold_panes import ColdFileStore

KEYS = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.int32())])
SPEC = PaneTableSpec(KEYS, (AccumulatorSpec("total", "int64", "sum"),), single_pane=True)


class Table:
    """Keys in memory beside a file of cells."""

    #: Bytes that may stay mapped; records of a larger file are read and written.
    memory = 1 << 20

    def __init__(self, folder, owned=ALL_HASHES):
        self.index = KeyIndex(KEYS)
        self.rows = ColdFileStore(SPEC, owned, folder, self.memory, sizes())

    def slots(self, keys, hashes=None):
        batch = pa.RecordBatch.from_arrays(
            [pa.array([k[i] for k in keys], f.type) for i, f in enumerate(KEYS)], schema=KEYS
        )
        hashes = hash_columns(batch, ("a", "b")) if hashes is None else np.array(hashes, np.int64)
        return self.index.upsert(key_columns(batch, ("a", "b")), hashes).copy()

    def put(self, slots, totals, rows=1):
        cells = np.array([(rows << 1 | 1, total) for total in totals], np.int64)
        self.rows.put(self.index.view(), PaneCells(slots, np.zeros(len(slots), np.int64), cells))

    def get(self, slots):
        """Return the totals, None where there is nothing."""
        cells = np.zeros((len(slots), 2), np.int64)
        asked = (slots, np.zeros(len(slots), np.int64))
        self.rows.fetch(self.index.view(), asked, (cells, np.arange(len(slots))))
        assert not (cells[:, 0] & 1).any(), "what comes back is saved already"
        return [total if used else None for used, total in cells.tolist()]

    def scan(self, part=ALL_HASHES):
        found = {}
        for keys, hashes, panes, cells in self.rows.scan(0, part):
            assert set(panes.tolist()) == {0}
            assert all(h in part for h in hashes.tolist())
            slots = self.index.upsert(keys, hashes)
            for slot, cell in zip(slots.tolist(), cells.tolist(), strict=True):
                assert slot not in found
                found[slot] = cell[1]
        return found


@pytest.fixture(autouse=True, params=[1 << 20, 0], ids=["mapped", "read"])
def _memory(request, monkeypatch):
    monkeypatch.setattr(Table, "memory", request.param)


@pytest.fixture
def table(tmp_path):
    made = Table(tmp_path)
    yield made
    made.rows.close()


@pytest.mark.parametrize("sparse", [1, 160, 1 << 40])
def test_rows_come_back_and_newer_ones_replace_older(tmp_path, monkeypatch, sparse):
    """`sparse` 1: one by one in their places; large: stretch by stretch; else both, as it comes."""
    given(monkeypatch, sparse_bytes=sparse, stretch_bytes=4096)
    table = Table(tmp_path)
    keys = [(a if a % 7 else None, b if b % 3 else None) for a in range(150) for b in range(150)]
    slots = np.unique(table.slots(keys))
    expected = {}
    random = np.random.default_rng(1)
    for step in range(8):
        chosen = random.permutation(slots)[: 1000 * (step + 1)]
        table.put(chosen, chosen * 10 + step)
        expected.update({int(s): int(s) * 10 + step for s in chosen})
    assert table.get(slots) == [expected.get(int(s)) for s in slots]
    assert table.scan() == expected
    assert table.rows.rows_of(0) == len(expected)
    low, high = HashRange(HASH_MIN, -5), HashRange(-4, HASH_MAX)
    assert table.scan(low) | table.scan(high) == expected
    assert table.index.count == slots.max() + 1
    table.rows.close()


def test_patches_that_lie_far_apart_are_written_stretch_by_stretch(tmp_path, monkeypatch):
    given(monkeypatch, sparse_bytes=400, stretch_bytes=4096)
    monkeypatch.setattr(Table, "memory", 0)
    table = Table(tmp_path)
    table.rows.expect(200_000)
    step = (HASH_MAX - HASH_MIN) // 200_000
    patches = [HASH_MIN + step * (start + n) for start in (0, 60_000, 130_000) for n in range(500)]
    alone = [HASH_MIN + step * n for n in (30_000, 90_000, 199_999)]
    hashes = sorted(patches + alone)
    slots = table.slots([(n, 0) for n in range(len(hashes))], hashes)
    singly = []
    cold_write = module.kernels.cold_write

    def noted(file, room, owned, keys, cells, state):
        singly.extend(keys[0][keys[1], module.kernels.HASH].tolist())
        return cold_write(file, room, owned, keys, cells, state)

    monkeypatch.setattr(module.kernels, "cold_write", noted)
    table.put(slots, slots)
    assert set(singly) == set(alone)
    assert table.get(slots) == slots.tolist()
    table.rows.close()


def test_keys_of_one_hash_are_told_apart(table):
    slots = table.slots([(None, 1), (1, None), (1, 1)], [5, 5, 5])
    table.put(slots[:2], [10, 20])
    assert table.get(slots) == [10, 20, None]


@pytest.mark.parametrize("sparse", [1, 1 << 40])
def test_many_keys_at_the_end_of_the_range_make_the_file_grow(tmp_path, monkeypatch, sparse):
    given(monkeypatch, sparse_bytes=sparse)
    owned = HashRange(0, 10_000)
    table = Table(tmp_path, owned)
    slots = table.slots([(n, 0) for n in range(1500)], [10_000 - n // 100 for n in range(1500)])
    table.put(slots, slots)
    assert table.get(slots) == slots.tolist()
    assert table.rows._files[0].capacity > module._FIRST_RECORDS
    table.rows.close()


@pytest.mark.parametrize("sparse", [1, 1 << 40])
def test_keys_that_stand_far_behind_their_home_are_found(tmp_path, monkeypatch, sparse):
    given(monkeypatch, sparse_bytes=sparse)
    table = Table(tmp_path, HashRange(0, 1_000_000))
    slots = table.slots([(n, 0) for n in range(900)], [500_000] * 800 + [500_000 + 100 * n for n in range(100)])
    table.put(slots[::2], slots[::2])
    table.put(slots[1::2], slots[1::2])
    assert table.get(slots) == slots.tolist()
    assert table.rows.rows_of(0) == 900
    table.rows.close()


def test_a_disk_that_refuses_is_an_error_that_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(Table, "memory", 0)
    given(monkeypatch, sparse_bytes=1)
    table = Table(tmp_path)
    slots = table.slots([(n, 0) for n in range(10)])
    table.put(slots, slots)
    with Path(os.devnull).open("wb") as nothing:
        monkeypatch.setattr(table.rows._files[0], "_on_disk", (nothing.fileno(), len(table.rows._files[0].table)))
        with pytest.raises(StorageError, match=str(tmp_path)):
            table.get(slots)
        with pytest.raises(StorageError, match=str(tmp_path)):
            table.put(slots, slots)
    table.rows.close()


def test_removed_rows_are_gone_until_they_are_written_again(table):
    slots = table.slots([(n, 0) for n in range(10)])
    table.put(slots, slots)
    table.rows.forget(table.index.view(), slots[:3], np.zeros(3, np.int64))
    assert table.get(slots)[:4] == [None, None, None, 3]
    assert sorted(table.scan().values()) == list(range(3, 10))
    table.put(slots[:1], [77])
    assert table.get(slots)[:2] == [77, None]


def test_cells_that_are_in_memory_are_left_alone(table):
    slots = table.slots([(1, 1), (1, 1)])
    table.put(slots[:1], [5])
    cells = np.array([[6, 9]], np.int64)
    table.rows.fetch(table.index.view(), (slots, np.zeros(2, np.int64)), (cells, np.zeros(2, np.int64)))
    assert cells.tolist() == [[6, 9]]


@pytest.mark.parametrize("cached", [True, False])
def test_records_that_are_not_in_the_page_cache_are_asked_for_together(tmp_path, monkeypatch, cached):
    """The kernel would read them one by one, and each would wait for the disk."""
    table, asked = Table(tmp_path), []
    slots = table.slots([(n, n) for n in range(3000)])
    table.put(slots, range(3000))

    def read(_fd, _buffers, place, _flags):
        if not cached and place:
            raise BlockingIOError
        return 1

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", read)
        patch.setattr(os, "posix_fadvise", lambda _fd, place, size, advice: asked.append((place, size, advice)))
        assert table.get(slots[:2000]) == list(range(2000))
    words = 2 + len(KEYS) + SPEC.width
    places = sorted(place // (words * 8) for place, _, _ in asked)
    assert len(places) == (0 if cached else 2000)
    assert {(size, advice) for _, size, advice in asked} <= {(8 * words * 8, os.POSIX_FADV_WILLNEED)}
    (file,) = table.rows._files
    homes = [cold_home(h, file.range) for h in sorted(table.index.hashes[slots[:2000]].tolist())]
    assert places in ([], homes)


def test_the_file_has_no_name_and_goes_when_the_pane_does(tmp_path):
    table = Table(tmp_path)
    slots = table.slots([(n, 0) for n in range(10)])
    table.put(slots, slots)
    assert table.get(slots) == slots.tolist()
    assert list(tmp_path.iterdir()) == []
    table.rows.drop_below(0)
    assert table.rows.panes == [0]
    table.rows.drop_below(1)
    assert table.rows.panes == []
    assert table.get(slots) == [None] * 10


def test_a_full_disk_is_an_error_that_names_the_folder(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    table = Table(tmp_path)
    with pytest.raises(StorageError, match=str(tmp_path)):
        table.put(table.slots([(1, 1)]), [1])
