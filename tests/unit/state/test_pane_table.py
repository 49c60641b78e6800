"""The pane table by example: adding, firing, freezing, dropping, leaving memory."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.sizes import given, sizes

from penstock.core.errors import PenstockError
from penstock.kernels.aggregates.pages import PAGE_ROWS
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import FixedColumn, key_columns
from penstock.state.cells.accumulators import PaneTableSpec
from penstock.state.keys.key_index import KeyIndex


def test_rows_add_up_by_key_and_pane(state):
    table = state.open().pane_table("panes", state.spec)
    state.update(table, [1, 2, 1, None], [0, 0, 10, 0], [5, 6, 7, 8])
    state.update(table, [1], [0], [None])
    assert table.panes() == [0, 10]
    assert state.rows(table, [0]) == {1: (2, 5), 2: (1, 6), None: (1, 8)}
    assert state.rows(table) == {1: (3, 12), 2: (1, 6), None: (1, 8)}
    assert state.rows(table, [20]) == {}


def test_many_keys_fire_in_bounded_pieces(state):
    table = state.open().pane_table("panes", state.spec)
    keys = np.arange(150_000)
    state.update(table, keys, np.zeros(len(keys)))
    pieces = list(table.fire([0]))
    assert max(len(p.hashes) for p in pieces) <= 65_536
    assert sorted(k for p in pieces for k in p.keys[0].to_pylist()) == keys.tolist()


def test_dropped_panes_give_their_pages_back(state):
    table = state.open().pane_table("panes", state.spec)
    for pane in range(100):
        state.update(table, range(10), [pane] * 10)
        table.drop_below(pane - 1)
    assert table.panes() == [98, 99]
    assert len(table._hot.memory._free) <= 8
    assert state.rows(table) == dict.fromkeys(range(10), (2, 2))
    assert [(t.namespace_high, len(table.source.log.entries)) for t in table.source.log.tombstones] == []


def test_an_integer_sum_that_leaves_64_bits_is_an_error(state):
    table = state.open().pane_table("panes", state.spec)
    with pytest.raises(PenstockError, match=r"total.*64 bits"):
        state.update(table, [1, 1], [0, 0], [1 << 62, 1 << 62])


def test_a_window_whose_panes_sum_beyond_64_bits_is_an_error(state):
    table = state.open().pane_table("panes", state.spec)
    state.update(table, [1, 1], [0, 10], [1 << 62, 1 << 62])
    with pytest.raises(PenstockError, match="64 bits"):
        list(table.fire([0, 10]))


def test_memory_over_the_budget_names_the_settings(state):
    table = state.open(memory=1 << 20).pane_table("panes", state.spec)
    state.update(table, range(1000), [0] * 1000)
    with pytest.raises(PenstockError, match=r"managed_memory.*state_backend=rocksdb"):
        state.update(table, range(100_000), [0] * 100_000)


@pytest.fixture
def grown(monkeypatch):
    """The numbers of keys for which an index got larger."""
    sizes, grow = [], KeyIndex._grow
    monkeypatch.setattr(KeyIndex, "_grow", lambda index, size: sizes.append(size) or grow(index, size))
    return sizes


def saved(state, *panes, keys=20_000):
    """Return a snapshot of keys with a row in each pane."""
    store = state.open()
    table = store.pane_table("panes", state.spec)
    for pane in panes:
        state.update(table, range(keys), [pane] * keys)
    return state.upload(store.freeze()[0])


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_restored_table_gets_its_size_at_once(state, grown, backend):
    snapshot = saved(state, 10)
    grown.clear()
    table = state.open([snapshot], backend=backend).pane_table("panes", state.spec)
    assert grown == [1 << 15]
    assert state.rows(table) == dict.fromkeys(range(20_000), (1, 1))


def test_the_size_of_a_restored_table_stays_within_the_memory(state, grown):
    """Its rows do not fit either: the error comes once memory is full, not before."""
    snapshot = saved(state, 10)
    grown.clear()
    with pytest.raises(PenstockError, match="managed_memory"):
        state.open([snapshot], memory=1 << 20).pane_table("panes", state.spec)
    assert grown[0] < 1 << 15


def test_rows_of_several_windows_say_nothing_of_the_number_of_keys(state, grown):
    snapshot = saved(state, 10, 20, keys=3_000)
    grown.clear()
    table = state.open([snapshot]).pane_table("panes", state.spec)
    assert grown == [2048, 4096]
    assert state.rows(table) == dict.fromkeys(range(3_000), (2, 2))


def test_a_frozen_table_shows_the_barrier_whatever_comes_later(state):
    store = state.open()
    table = store.pane_table("panes", state.spec)
    keys = list(range(3 * PAGE_ROWS))
    state.update(table, keys, [0] * len(keys))
    state.update(table, keys[:5], [10] * 5)
    (frozen,) = store.freeze()
    assert frozen.memory_bytes == 0, "nothing is copied at the barrier"
    state.update(table, [0, PAGE_ROWS], [0, 0], [100, 100])  # copies two of three pages
    copied = frozen.memory_bytes
    assert copied > 0
    table.drop_below(10)  # the third is an orphan now
    state.update(table, keys, [10] * len(keys))
    assert frozen.copy_pages(100)
    assert frozen.memory_bytes > copied
    again = state.open([state.upload(frozen)]).pane_table("panes", state.spec)
    assert state.rows(again, [0]) == dict.fromkeys(keys, (1, 1))
    assert state.rows(again, [10]) == dict.fromkeys(keys[:5], (1, 1))


def test_the_file_is_the_same_in_however_many_pieces_it_is_made(state, monkeypatch):
    """Rows of several copies, which are put in order together."""
    encoded = []
    for rows in (100, 1 << 20):
        given(monkeypatch, encoded_rows=rows)
        store = state.open()
        table = store.pane_table("panes", state.spec)
        keys = list(range(3 * PAGE_ROWS))
        state.update(table, keys, [0] * len(keys))
        state.update(table, keys[::7], [10] * len(keys[::7]))
        (frozen,) = store.freeze()
        while not frozen.copy_pages(1):
            pass
        encoded.append(frozen.encode()[0])
    cut, whole = (pq.read_table(pa.BufferReader(segment.data)) for segment in encoded)
    assert cut.equals(whole)
    assert cut.num_rows == encoded[0].entry.rows == encoded[1].entry.rows


@pytest.mark.usefixtures("deltas")
def test_only_changed_rows_are_written(state):
    store = state.open()
    table = store.pane_table("panes", state.spec)
    state.update(table, range(1000), [0] * 1000)
    state.upload(store.freeze()[0])
    state.update(table, [3, 4], [0, 0])
    (frozen,) = store.freeze()
    frozen.copy_pages(10)
    assert [e.entry.rows for e in frozen.encode()] == [2]
    assert len(store.freeze()[0].encode()) == 1, "not durable yet: offered again"
    snapshot = state.upload(frozen)
    assert [s.rows for s in snapshot.segments] == [1000, 2]
    (empty,) = store.freeze()
    assert empty.copy_pages(1)
    assert empty.encode() == ()
    assert empty.snapshot().segments == snapshot.segments


def test_a_table_of_few_rows_is_saved_whole(state):
    store = state.open()
    table = store.pane_table("panes", state.spec)
    most = sizes().whole_rows
    state.update(table, range(most // 2), [0] * (most // 2))
    state.upload(store.freeze()[0])
    state.update(table, [3], [10])
    state.update(table, [most], [0])
    late = state.upload(store.freeze()[0])
    assert [s.rows for s in late.segments] == [most // 2, 2], "all keys in both panes may be too many rows"
    table.drop_below(10)
    state.update(table, [4], [10])
    snapshot = state.upload(store.freeze()[0])
    assert ([s.rows for s in snapshot.segments], snapshot.tombstones) == ([2], ())
    assert state.rows(state.open([snapshot]).pane_table("panes", state.spec)) == {3: (1, 1), 4: (1, 1)}
    (unchanged,) = store.freeze()
    assert (unchanged.encode(), unchanged.snapshot().segments) == ((), snapshot.segments)


def test_rows_of_a_failed_upload_are_in_the_next_ack(state):
    store = state.open()
    table = store.pane_table("panes", state.spec)
    state.update(table, [1], [0])
    (lost,) = store.freeze()
    lost.copy_pages(10)
    lost.encode()
    state.update(table, [2], [0])
    snapshot = state.upload(store.freeze()[0])
    assert state.rows(state.open([snapshot]).pane_table("panes", state.spec)) == {1: (1, 1), 2: (1, 1)}


def test_rows_of_an_aborted_checkpoint_whose_pages_were_never_asked_for(state):
    store = state.open()
    table = store.pane_table("panes", state.spec)
    state.update(table, [1], [0])
    store.freeze()  # aborted: nobody calls it again
    (second,) = store.freeze()
    with pytest.raises(RuntimeError, match="copy_pages"):
        second.encode()
    with pytest.raises(RuntimeError, match="not durable"):
        second.snapshot()
    assert state.rows(state.open([state.upload(second)]).pane_table("panes", state.spec)) == {1: (1, 1)}


def test_dead_keys_are_forgotten_and_frozen_ones_are_not(state, monkeypatch):
    given(monkeypatch, dead_keys=100)
    store = state.open()
    table = store.pane_table("panes", state.spec)
    state.update(table, range(500), [0] * 500)
    (frozen,) = store.freeze()
    state.update(table, [7, 1000], [10, 10], [3, 4])
    table.drop_below(10)
    assert table._hot.index.count == 2
    assert state.rows(table) == {7: (1, 3), 1000: (1, 4)}
    again = state.open([state.upload(frozen)]).pane_table("panes", state.spec)
    assert len(state.rows(again, [0])) == 500
    after = state.open([state.upload(store.freeze()[0])]).pane_table("panes", state.spec)
    assert state.rows(after) == {7: (1, 3), 1000: (1, 4)}


@pytest.mark.parametrize("memory", [100_000, 100_000_000])
def test_rocksdb_holds_what_memory_does_not(state, memory):
    store = state.open(backend="rocksdb", memory=memory)
    table = store.pane_table("panes", state.spec)
    expected = {}
    random = np.random.default_rng(3)
    for step in range(12):
        keys = random.integers(0, 4000, 2500).tolist()
        state.update(table, keys, [0 if k % 2 else 10 for k in keys], keys)
        for key in keys:
            rows, total = expected.get(key, (0, 0))
            expected[key] = (rows + 1, total + key)
        if step == 6:
            (frozen,) = store.freeze()
            then = dict(expected)
    assert bool(table.cold.panes) == (memory == 100_000)
    assert state.rows(table) == expected
    snapshot = state.upload(frozen)
    again = state.open([snapshot], backend="rocksdb", memory=memory).pane_table("panes", state.spec)
    assert state.rows(again) == then
    table.drop_below(10)
    assert state.rows(table) == {k: v for k, v in expected.items() if k % 2 == 0}
    assert store.memory_bytes > 0


def test_evicted_changes_are_spilled_to_disk(state):
    store = state.open(backend="rocksdb", memory=100_000)
    table = store.pane_table("panes", state.spec)
    state.update(table, range(3000), [0] * 3000)
    files = list(state.directory.rglob("*.parquet"))
    assert len(files) == 1
    snapshot = state.upload(store.freeze()[0])
    assert sum(s.rows for s in snapshot.segments) == 3000
    assert not list(state.directory.rglob("*.parquet")), "durable: no longer needed here"


def test_a_loaded_deletion_removes_a_row_that_is_cold(state):
    table = state.open(backend="rocksdb", memory=100_000).pane_table("panes", state.spec)
    state.update(table, range(3000), [0] * 3000)
    assert len(table._hot.index.hashes) < 3000
    batch = pa.record_batch({"k": pa.array([17, 4000], pa.int64())})
    empty = {"__namespace": [0, 0], "__rows": [0, 0], "total": [0, 0], "__deleted": [True, True], "__seq": [0, 1]}
    deletions = {"__key_hash": hash_columns(batch, ("k",)), "k": [17, 4000]} | empty
    table.load(pa.table(deletions).cast(state.spec.segment_schema))
    assert state.rows(table) == {key: (1, 1) for key in range(3000) if key != 17}


def test_late_firing_is_for_the_given_keys(state):
    table = state.open().pane_table("panes", state.spec)
    state.update(table, [1, 2, 3], [0, 0, 0])
    batch = pa.record_batch({"k": pa.array([3, 1, 3])})
    pieces = list(table.fire_keys(key_columns(batch, ("k",)), hash_columns(batch, ("k",)), [0]))
    assert sorted(k for p in pieces for k in p.keys[0].to_pylist()) == [1, 3]


def test_late_firing_finds_keys_that_are_cold(state):
    table = state.open(backend="rocksdb", memory=100_000).pane_table("panes", state.spec)
    state.update(table, range(3000), [0] * 3000)
    state.update(table, [5000, 17], [0, 0])
    assert table.cold.panes == [0]
    batch = pa.record_batch({"k": pa.array([2999, 17, 5000, 1])})
    pieces = list(table.fire_keys(key_columns(batch, ("k",)), hash_columns(batch, ("k",)), [0]))
    found = {k: c[0] for p in pieces for k, c in zip(p.keys[0].to_pylist(), p.cells.tolist(), strict=True)}
    assert found == {1: 1, 17: 2, 2999: 1, 5000: 1}


def test_a_table_of_near_keys_goes_before_a_job_fails(state):
    """131,072 keys four apart: with the table 11.7 MB, without it 7.5."""
    key_schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    spec = PaneTableSpec(key_schema, ())
    keys = 4 * np.arange(131_072, dtype=np.int64)
    used = {}
    for memory in (64 << 20, 9 << 20):
        table = state.open(memory=memory).pane_table("panes", spec)
        for _ in range(2):
            window = np.array([10, 0, 0, 1 << 60], np.int64)
            assert table.add((FixedColumn(keys),), np.zeros(len(keys), np.int64), window, []) == (0, 0)
        used[memory] = table.hot_bytes
        assert sum(len(piece.hashes) for piece in table.fire([0])) == len(keys)
    assert used[9 << 20] < 9 << 20 < used[64 << 20]
