"""The cold store: what is written, read in order, and gone."""

import pyarrow as pa
import pytest

from penstock.core.keygroup import ALL_HASHES
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.state.cells.accumulators import AccumulatorSpec, PaneTableSpec
from penstock.state.cells.pane_memory import PaneCells
from penstock.state.keys.key_index import KeyIndex
from penstock.state.keys.sorted_keys import bound, decode_keys, encode_keys
from penstock.state.tiers import rocksdb
from penstock.state.tiers.cold_panes import SortedColdStore
from penstock.state.tiers.rocksdb import RocksStore


@pytest.fixture
def store(tmp_path):
    opened = RocksStore(tmp_path / "cold", 16 << 20)
    yield opened
    opened.close()
    assert not (tmp_path / "cold").exists()


def everything(store):
    return [pair for keys, values in store.scan(b"", b"\xff" * 20) for pair in zip(keys, values, strict=True)]


def test_keys_come_back_in_order(store):
    store.put([b"b", b"a", b"c"], [b"2", b"1", b"3"])
    assert store.get([b"c", b"x", b"a"]) == [b"3", None, b"1"]
    assert everything(store) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    assert [k for keys, _ in store.scan(b"b", b"c") for k in keys] == [b"b"]
    store.delete([b"b"])
    store.delete_range(b"c", b"d")
    assert everything(store) == [(b"a", b"1")]


def test_a_folder_left_behind_is_emptied(tmp_path):
    """Nothing is recovered from a cold store: the checkpoint is the truth."""
    for _ in range(2):
        opened = RocksStore(tmp_path / "cold", 16 << 20)
        assert everything(opened) == []
        opened.put([b"a"], [b"1"])
        opened._db.flush()
        opened._db.close()
    assert any((tmp_path / "cold").iterdir())


def test_few_records_stay_in_a_small_write_buffer(tmp_path, monkeypatch):
    monkeypatch.setattr(rocksdb, "_shared", None)
    store = RocksStore(tmp_path / "cold", 2 << 20)
    for number in range(20):
        store.put([bound(100 * number + k) for k in range(100)], [b"x" * 50] * 100)
    assert store._db.property_int_value("rocksdb.num-entries-active-mem-table") == 2000
    store.close()


def test_bounds_sort_as_panes_and_hashes_do():
    pairs = [(-5, -(1 << 63)), (-5, -1), (-5, 0), (-5, (1 << 63) - 1), (0, -9), (7, -(1 << 63)), (1 << 62, 3)]
    assert sorted(bound(*p) for p in pairs) == [bound(*p) for p in pairs]


def test_keys_of_every_kind_are_encoded_and_decoded():
    batch = pa.record_batch(
        {
            "s": pa.array([None, "", "abc", "é"]),
            "i": pa.array([1, None, -3, 4]),
            "b": pa.array([b"\xff" * 5, None, b"1", b""], pa.large_binary()),
            "f": pa.array([0.5, float("nan"), None, -0.0]),
        }
    )
    names = tuple(batch.schema.names)
    index = KeyIndex(batch.schema)
    hashes = hash_columns(batch, names)
    slots = index.upsert(key_columns(batch, names), hashes).copy()
    panes = pa.array([10, -10, 0, 5]).to_numpy()
    encoded = encode_keys(index.view(), slots, panes)
    columns, found_hashes, found_panes = decode_keys(index.schema, encoded)
    assert (found_hashes.tolist(), found_panes.tolist()) == (hashes.tolist(), panes.tolist())
    assert index.upsert(columns, found_hashes).tolist() == slots.tolist()
    assert index.count == 4


def test_closed_panes_are_removed(store):
    spec = PaneTableSpec(pa.schema([pa.field("k", pa.int64())]), (AccumulatorSpec("total", "int64", "sum"),))
    cold = SortedColdStore(spec, store, ALL_HASHES)
    batch = pa.record_batch({"k": pa.array([1, 2, 3])})
    index = KeyIndex(batch.schema)
    slots = index.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy()
    cells = pa.array([3, 5, 7]).to_numpy().repeat(2).reshape(3, 2)
    cold.put(index.view(), PaneCells(slots, pa.array([0, 10, 20]).to_numpy(), cells))
    assert len(everything(store)) == 3
    cold.drop_below(20)
    assert len(everything(store)) == 1
    assert cold.panes == [20]
