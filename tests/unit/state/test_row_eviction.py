"""Keys that leave memory: their way to bytes and back, which ones leave, and state far larger than its memory."""

import datetime as dt
import mmap
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.harness.files import PlainStore, part

from penstock.config.settings import JobSettings
from penstock.core.errors import UsageError
from penstock.core.keygroup import ALL_HASHES
from penstock.core.snapshot import FileRef
from penstock.graph.restore_plan import clip_keyed
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.process.collection_binding import MapCodec, ObjectCodec
from penstock.state.keys.key_index import KeyIndex
from penstock.state.memory.budget import EvictionPolicy, MemoryBudget
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import open_keyed_state
from penstock.state.tiers.cold_records import KeyRows, RowPacker, SpillStore
from penstock.state.tiers.cold_timers import ColdTimers

KEYS = pa.schema([pa.field("k", pa.int64())])
COLUMNS = {
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.int16(): st.integers(-(1 << 15), (1 << 15) - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=5),
    pa.large_binary(): st.binary(max_size=5),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(dt.datetime(1900, 1, 1), timezones=st.just(dt.UTC)),
    pa.decimal128(12, 2): st.decimals(-(10**9), 10**9, places=2),
    pa.decimal128(30, 2): st.decimals(-(10**20), 10**20, places=2),
}


@st.composite
def packed_rows(draw):
    """Types of columns, rows by record, and an offset into larger arrays."""
    types = draw(st.lists(st.sampled_from(list(COLUMNS)), max_size=4))
    row = st.tuples(*(st.none() | COLUMNS[kind] for kind in types))
    return types, draw(st.lists(st.lists(row, max_size=4), min_size=1, max_size=5)), draw(st.integers(0, 2))


@given(packed_rows())
def test_rows_come_back_as_they_were(case):
    types, records, offset = case
    rows = [row for record in records for row in record]
    rows = rows[:1] * offset + rows
    columns = [pa.array([row[k] for row in rows], kind).slice(offset) for k, kind in enumerate(types)]
    counts = np.array([len(record) for record in records], np.int64)
    packer = RowPacker(types)
    found_rows = packer.unpack(packer.pack(KeyRows(counts, columns)))
    found = found_rows.columns
    assert found_rows.counts.tolist() == counts.tolist()
    assert [array.to_pylist() for array in found] == [array.to_pylist() for array in columns]
    for array in found:
        array.validate(full=True)


def test_more_columns_than_bits_of_a_word_come_back():
    types = [pa.int64(), pa.string()] * 70
    columns = [pa.array([None, k if k % 2 == 0 else str(k), None], kind) for k, kind in enumerate(types)]
    packer = RowPacker(types)
    found = packer.unpack(packer.pack(KeyRows(np.array([1, 2], np.int64), columns)))
    assert found.counts.tolist() == [1, 2]
    assert found.columns == columns


def test_records_of_narrow_and_wide_values_are_read_together():
    packer = RowPacker([pa.int64(), pa.string()])
    batches = [[1, -128], [127, 1 << 40], [None, -(1 << 63)], [5, 6]]
    columns = [[pa.array(numbers), pa.array([None, "x"] if None in numbers else ["", "ab"])] for numbers in batches]
    packed = [packer.pack(KeyRows(np.array([2, 0], np.int64), both)) for both in columns]
    assert len(packed[0][0]) < len(packed[1][0])
    found = packer.unpack([record for records in packed[::-1] for record in records])
    assert found.counts.tolist() == [2, 0] * 4
    for name, array in zip(range(2), found.columns, strict=True):
        assert array.to_pylist() == [value for both in columns[::-1] for value in both[name].to_pylist()]


def test_zeros_keep_their_sign_and_dictionaries_come_back_plain():
    packer = RowPacker([pa.float32(), pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int8(), pa.int64())])
    words = [pa.array(column).dictionary_encode() for column in (["a", None, "a"], [7, 8, None])]
    columns = [pa.array([-0.0, 0.0, 1.5], pa.float32()), *words]
    found = packer.unpack(packer.pack(KeyRows(np.array([1, 2], np.int64), columns))).columns
    assert np.signbit(found[0].to_numpy()).tolist() == [True, False, False]
    assert [array.to_pylist() for array in found[1:]] == [["a", None, "a"], [7, 8, None]]


def numbered(keys):
    index = KeyIndex(KEYS)
    batch = pa.record_batch({"k": pa.array(keys, pa.int64())})
    slots = index.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy()
    return index.view(), slots


def stored(*states):
    """A store of keys with these states, over a dict."""
    held = PlainStore()
    store = SpillStore(lambda: held)
    for types in states:
        store.add(types)
    return store, held


def rows_of(counts, *columns):
    return KeyRows(np.array(counts, np.int64), [pa.array(column) for column in columns])


def put(store, view, slots, rows):
    store.put(view, slots, [packer.pack(some) for packer, some in zip(store.packers, rows, strict=True)])


def loaded(store, view, slots):
    """Slots of the keys that have a record, and the rows of each state."""
    ((keys, parts),) = store.load(view, slots)
    rows = [packer.unpack(own) for packer, own in zip(store.packers, parts, strict=True)]
    return keys.tolist(), [listed(some) for some in rows]


def none(hashes):
    """No key is in memory."""
    return np.zeros(len(hashes), np.bool_)


def listed(rows):
    return rows.counts.tolist(), [column.to_pylist() for column in rows.columns]


def test_rows_of_a_key_keep_their_order_in_its_record():
    keys = np.random.default_rng(1).integers(0, 5, 1000)
    found = KeyRows.of([pa.array(range(1000))], keys, 6, by_first=False)
    assert found.counts.tolist() == [*np.bincount(keys).tolist(), 0]
    assert found.columns[0].to_pylist() == [row for key in range(5) for row in np.flatnonzero(keys == key).tolist()]


@pytest.mark.parametrize("states", [1, 2])
def test_rows_of_keys_are_loaded_from_their_records(states):
    store, held = stored([pa.int64()], *[[pa.string(), pa.int64()]] * (states - 1))
    view, slots = numbered([5, 7, 9, 11])
    order = slots[np.argsort(view.hashes[slots])]
    rows = [rows_of([1, 2, 0, 0], [1, 2, 3]), rows_of([0, 1, 1, 0], ["a", None], [5, 6])][:states]
    put(store, view, order, rows)
    assert len(held.held) == 1 + states, "a key without rows has no record"
    found = [store.look_up(view, order[1:2], packer) for packer in store.packers]
    assert listed(found[0]) == ([2], [[2, 3]])
    assert states == 1 or listed(found[1]) == ([1], [["a"], [5]])
    assert store.look_up(view, order[3:], store.packers[0]) is None
    keys, (first, *others) = loaded(store, view, slots)
    assert keys == order[: 1 + states].tolist()
    assert first == ([1, 2, 0][: 1 + states], [[1, 2, 3]])
    assert others == [([0, 1, 1], [["a", None], [5, 6]])][: states - 1]
    store.delete(view, slots)
    assert list(store.load(view, slots)) == []
    assert held.held == {}


def test_a_state_that_no_key_has_is_empty_and_unknown_to_a_query():
    store, _ = stored([pa.int64()], [pa.int64()])
    view, slots = numbered([5])
    put(store, view, slots, [rows_of([0]), rows_of([1], [8])])
    assert store.look_up(view, slots, store.packers[0]) is None
    assert listed(store.look_up(view, slots, store.packers[1])) == ([1], [[8]])
    assert loaded(store, view, slots)[1] == [([0], [[]]), ([1], [[8]])]


def test_a_state_that_is_added_later_is_empty_in_records_written_before():
    store, _ = stored([pa.int64()])
    view, slots = numbered([5, 7])
    order = slots[np.argsort(view.hashes[slots])]
    put(store, view, order[:1], [rows_of([1], [8])])
    store.add([pa.string()])
    put(store, view, order[1:], [rows_of([1], [9]), rows_of([1], ["a"])])
    assert loaded(store, view, slots)[1] == [([1, 1], [[8, 9]]), ([0, 1], [["a"]])]


def test_a_sweep_removes_rows_of_a_key_that_have_all_expired():
    store, held = stored([pa.int64(), pa.int64()])
    view, slots = numbered(range(5))
    times = [10, 20, 30, 40, 50, 5, 60]
    put(store, view, slots, [rows_of([1, 1, 1, 2, 2], range(7), times)])
    for _ in range(3):
        store.sweep(2, [20], none)
    assert len(held.held) == 3
    store.sweep(1, [20], none)  # after the last one
    for _ in range(3):
        store.sweep(2, [1000], none)
    assert held.held == {}


def test_a_sweep_leaves_records_of_keys_in_memory():
    store, _ = stored([pa.int64()])
    view, slots = numbered(range(3))
    put(store, view, slots, [rows_of([1, 1, 1], [10, 10, 10])])
    assert [len(names) for names in store.sweep(10, [20], lambda hashes: hashes == view.hashes[1])] == [2]
    assert loaded(store, view, slots)[0] == [1]


def test_a_sweep_leaves_the_rows_of_other_states_in_the_record():
    store, held = stored([pa.int64()], [pa.int64()], [pa.string()])
    view, slots = numbered(range(4))
    order = slots[np.argsort(view.hashes[slots])]
    rows = [rows_of([1, 1, 1, 0], [10, 20, 30]), rows_of([1, 0, 2, 1], [15, 5, 8, 9]), rows_of([0, 0, 1, 0], ["x"])]
    put(store, view, order, rows)
    gone = store.sweep(10, [20, 9, None], none)
    assert [len(names) for names in gone] == [2, 2, 0]
    assert len(held.held) == 2, "of two keys nothing is left"
    expected = [([0, 1], [[30]]), ([1, 0], [[15]]), ([0, 1], [["x"]])]
    assert loaded(store, view, slots) == (order[[0, 2]].tolist(), expected)


def test_an_index_knows_the_hashes_of_its_keys():
    index = KeyIndex(KEYS)
    batch = pa.record_batch({"k": pa.array(range(1_000), pa.int64())})
    hashes, known = hash_columns(batch, ("k",)), batch.slice(0, 500)
    assert not index.has_hashes(hashes).any()
    index.upsert(key_columns(known, ("k",)), hashes[:500])
    assert index.has_hashes(hashes).tolist() == [True] * 500 + [False] * 500


def test_due_timers_are_taken_in_order_and_a_time_is_not_taken_apart():
    timers = ColdTimers(stored()[0], KEYS)
    view, slots = numbered(range(6))
    times = np.array([30, -10, 30, 20, 1 << 40, 30], np.int64)
    timers.put(view, slots, times)
    timers.put(view, slots[:1], times[:1])
    assert timers.least == -10
    assert timers.take(-11, 2) is None
    due = timers.take(100, 3)
    assert (due.times.tolist(), due.reached, due.more) == ([-10, 20], 29, False)
    due = timers.take(100, 2)
    assert (due.times.tolist(), due.reached, due.more) == ([30, 30], 30, True)
    assert [time for k in (0, 2, 5) for time in timers.look_up(view, slots[k : k + 1], 2)] == [30]
    timers.forget(view, slots[4:5], times[4:5] + 1)
    due = timers.take(100, 2)
    assert (due.times.tolist(), due.reached, due.more) == ([30], 100, False)
    assert timers.least == 1 << 40
    timers.forget(view, slots[4:5], times[4:5])
    assert timers.take((1 << 63) - 1, 2) is None
    assert (timers.least, timers.count) == (None, 0)


def test_those_touched_last_stay():
    policy = EvictionPolicy(MemoryBudget(1000), "me")
    policy.lru.touch(np.arange(10, dtype=np.int32), 10)
    policy.lru.touch(np.array([3, 4], np.int32), 10)
    policy.lru.touch(np.array([4, 11], np.int32), 12)
    assert np.flatnonzero(policy.kept_mask(12)).tolist() == [3, 4, 11]
    assert policy.lru.oldest_half(np.array([4, 3, 0], np.int32)).tolist() == [0, 3]
    assert policy.lru.oldest_half(np.array([11], np.int32)).tolist() == [11]
    assert policy.lru.oldest_half(np.zeros(0, np.int32)).tolist() == []
    policy.lru.moved(np.array([3, 4, 11], np.int32))
    assert np.flatnonzero(policy.kept_mask(3)).tolist() == []
    assert policy.full(501, 3)
    assert not policy.full(500, 3)


def test_keys_may_be_too_many_whatever_they_take():
    policy = EvictionPolicy(MemoryBudget(1 << 30), "me", StateLimits(hot_keys=3, incoming_keys=2))
    assert policy.full(0, 4)
    assert not policy.full(0, 3)
    assert policy.most_incoming(100) == 2


class World:
    """Values by key over RocksDB or the object store, in a memory that holds a part of them."""

    def __init__(self, folder, limit):
        self.folder, self.limit, self.files, self.opened = folder, limit, {}, 0

    def open(self, snapshots=(), owned=ALL_HASHES, limits=PRODUCTION, **settings):
        self.opened += 1
        self.budget = MemoryBudget(self.limit)
        store = open_keyed_state(
            KeyedStateRequest(
                uid="op",
                snapshots=tuple(c for s in snapshots if (c := clip_keyed(s, owned)) is not None),
                hash_range=owned,
                settings=JobSettings(**{"state_backend": "rocksdb", "managed_memory_bytes": 32 << 20, **settings}),
                read=lambda file: part(self.files[file.path], file),
                directory=self.folder / str(self.opened),
                writer=f"run/v/0/{self.opened}",
                budget=self.budget,
                limits=limits,
            )
        )
        rows = store.row_state(KEYS, evictable=True)
        return store, rows, rows.value("total", (pa.field("n", pa.int64()), pa.field("text", pa.string())))

    def save(self, store):
        snapshots = []
        for frozen in store.freeze(1):
            named = {}
            for encoded in frozen.encode():
                name = str(len(self.files))
                self.files[name] = encoded.data
                named[encoded.position] = FileRef(path=name, length=len(encoded.data))
            frozen.durable(named)
            snapshots.append(frozen.snapshot())
        return snapshots


def add(rows, table, keys, number):
    """Add a number to the values of keys."""
    batch = pa.record_batch({"k": keys})
    slots = rows.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy()
    old = [0 if n is None else n for n in values(table, slots)]
    sums = np.array(old, np.int64) + number
    table.write(slots, [pa.array(sums), pa.array([f"text {n}" for n in sums.tolist()])])
    rows.settle()


def values(table, slots):
    found = table.rows_of(slots)
    given = table.values(np.maximum(found, 0))[0] if (found >= 0).any() else [None] * len(found)
    return [n if row >= 0 else None for n, row in zip(given, found.tolist(), strict=True)]


def test_what_comes_back_is_not_saved_again(tmp_path):
    world = World(tmp_path, 100_000)
    store, rows, table = world.open()
    keys = pa.array(range(3000), pa.int64())
    add(rows, table, keys, 5)
    assert rows.index.count == 0  # none of them stays
    world.save(store)
    batch = pa.record_batch({"k": keys})
    slots = rows.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy()
    assert values(table, slots) == [5] * 3000
    saved = len(world.files)
    world.save(store)
    assert len(world.files) == saved
    add(rows, table, keys[:1], 2)
    (snapshot,) = world.save(store)
    assert [segment.rows for segment in snapshot.segments] == [3000, 1]
    store.close()


def test_decimals_of_any_width_are_columns_of_a_record():
    packer = RowPacker([pa.decimal128(38, 0)])
    wide = pa.array([Decimal(10**37), None, Decimal(-1)], pa.decimal128(38, 0))
    assert packer.unpack(packer.pack(KeyRows(np.array([3], np.int64), [wide]))).columns == [wide]


def test_keys_whose_rows_of_a_join_wait_leave_and_come_back_with_them(tmp_path):
    store, rows, table = World(tmp_path, 100_000).open()
    waiting = rows.join_buffer("left", (pa.field("n", pa.int64()),))
    few = pa.record_batch({"k": pa.array(range(0, 100, 10), pa.int64())})
    slots = rows.upsert(key_columns(few, ("k",)), hash_columns(few, ("k",))).copy()
    waiting.add(slots, np.arange(10, dtype=np.int64), [pa.array(range(10))])
    add(rows, table, pa.array(range(3000), pa.int64()), 5)
    assert rows.index.count == 0
    (frozen, *_) = (state for state in store.freeze() if state.snapshot is not None and state._source.state == "left")
    assert frozen.encode()[0].entry.rows == 10, "what was added is saved with its keys"
    run = waiting.within(0, 9)
    assert rows.index.count == 10
    assert dict(zip(run.times.tolist(), rows.keys(run.slots)[0].to_pylist(), strict=True)) == {
        i: 10 * i for i in range(10)
    }
    assert values(table, run.slots) == [5] * 10
    waiting.clean(4)
    assert sorted(rows.keys(waiting.within(0, 9).slots)[0].to_pylist()) == [50, 60, 70, 80, 90]
    store.close()


def asked(key):
    batch = pa.record_batch({"k": pa.array([key], pa.int64())})
    return key_columns(batch, ("k",)), hash_columns(batch, ("k",))


#: Each fetch drops the region that was fetched before.
DROPPING = {"state_backend": "remote", "remote_local_bytes": 1, "limits": StateLimits(dead_keys=1)}


def remote_world(tmp_path):
    """Return a world, and its store, rows and table of keys 0 to 99 with value 5."""
    world = World(tmp_path, 1 << 30)
    store, rows, table = world.open(**DROPPING)
    add(rows, table, pa.array(range(100), pa.int64()), 5)
    return world, store, rows, table


def regions_of(rows, count):
    """Return the region of each of the first keys."""
    return rows.fetcher.fetch_ranges.regions_of(np.concatenate([asked(key)[1] for key in range(count)])).tolist()


def test_what_was_removed_in_memory_does_not_come_back_with_a_piece_fetched_before(tmp_path):
    world, store, rows, table = remote_world(tmp_path)
    regions = regions_of(rows, 100)
    one = next(key for key in range(100) if regions[key] in regions[key + 1 :])
    beside = regions.index(regions[one], one + 1)
    far = next(key for key in range(100) if regions[key] != regions[one])
    saved = world.save(store)
    store.close()
    store, rows, table = world.open(saved, **DROPPING)
    fetcher, slots = rows.fetcher, {}
    for key in (one, far, beside):
        slots[key] = rows.upsert(*asked(key)).copy()
        assert values(table, slots[key]) == [5]
    assert (fetcher.fetched_ranges, fetcher.dropped_regions) == (3, 2), "that of two was fetched twice"
    table.clear(np.concatenate([slots[one], slots[far]]))
    world.save(store)
    rows.settle()
    assert rows.index.count == 1, "keys without anything are forgotten"
    assert values(table, rows.upsert(*asked(one)).copy()) == [None]
    store.close()


def test_remote_keys_that_were_only_read_count_as_local_again_when_they_leave(tmp_path):
    world = World(tmp_path, 1 << 30)
    store, rows, table = world.open(state_backend="remote")
    keys = pa.array(range(3000), pa.int64())
    add(rows, table, keys, 5)
    saved = world.save(store)
    store.close()
    world.limit = 100_000
    store, rows, table = world.open(saved, state_backend="remote")
    fetched = []
    for _ in range(3):
        assert values(table, slots_of(rows, keys)) == [5] * 3000
        rows.settle()
        assert rows.index.count == 0
        fetched.append(int(rows.cold.local_bytes.sum()))
    assert fetched[0] > 3000 * 8
    assert fetched == [fetched[0]] * 3, "the space of their records is bounded"
    store.close()


def test_a_new_key_that_was_saved_fetched_and_removed_does_not_come_back(tmp_path):
    world, store, rows, table = remote_world(tmp_path)
    regions = regions_of(rows, 200)
    new = next(key for key in range(100, 200) if regions[key] in regions[:100])
    beside = regions.index(regions[new])
    far = next(key for key in range(100) if regions[key] != regions[new])
    saved = world.save(store)
    store.close()
    store, rows, table = world.open(saved, **DROPPING)
    add(rows, table, pa.array([new]), 7)
    world.save(store)
    for key in (far, beside):  # the region of the new key is dropped, then fetched with its saved row
        assert values(table, rows.upsert(*asked(key)).copy()) == [5]
    assert rows.fetcher.dropped_regions == 2
    table.clear(slots_of(rows, pa.array([new, far])))
    world.save(store)
    rows.settle()
    assert rows.index.count == 1, "the removed keys are forgotten"
    assert values(table, rows.upsert(*asked(new)).copy()) == [None]
    store.close()


def test_questions_bring_nothing_back_and_make_nothing(tmp_path):
    store, rows, table = World(tmp_path, 100_000).open()
    add(rows, table, pa.array(range(3000), pa.int64()), 5)
    assert rows.index.count == 0  # none of them stays
    before = store.memory_bytes
    for _ in range(2):
        assert table.look_up(*asked(7), 10).select(["k", "n"]).to_pylist() == [{"k": 7, "n": 5}]
        assert table.look_up(*asked(4000), 10).num_rows == 0
    assert (rows.index.count, store.memory_bytes) == (0, before)
    store.close()


def test_timers_of_keys_that_left_are_found_in_order_among_those_in_memory(tmp_path, monkeypatch):
    store, rows, table = World(tmp_path, 100_000).open()
    timers = rows.timers("event")

    def register(keys, time):
        batch = pa.record_batch({"k": keys})
        slots = rows.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy()
        timers.change(slots, np.full(len(slots), time), np.zeros(len(slots), np.bool_))

    def times(key, most=10):
        found = timers.look_up(*asked(key), most)
        assert found.column("k").to_pylist() == [key] * found.num_rows
        return found.column("__namespace").to_pylist()

    everyone = pa.array(range(3000), pa.int64())
    register(everyone, 20_000_000)
    register(everyone, 60_000_000)
    add(rows, table, everyone, 1)
    assert rows.index.count == 0
    assert times(7) == [20_000_000, 60_000_000]
    register(everyone[7:8], 40_000_000)
    register(everyone[7:8], 20_000_000)
    assert rows.index.count == 1
    assert times(7) == [20_000_000, 40_000_000, 60_000_000]
    assert [times(7, most) for most in (1, 2)] == [[20_000_000], [20_000_000, 40_000_000]]
    assert times(5000) == []
    rows.cold.limits = StateLimits(searched_timers=3000)
    assert times(9, 1) == [20_000_000]
    with pytest.raises(UsageError, match=r"do not include enough of this key.*savepoint"):
        times(9)
    store.close()


def slots_of(rows, keys):
    batch = pa.record_batch({"k": keys})
    return rows.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",))).copy()


def test_a_query_finds_remote_state_without_what_was_removed_in_memory(tmp_path):
    world = World(tmp_path, 1 << 30)
    store, rows, table = world.open(state_backend="remote")
    timers, keys = rows.timers("event"), pa.array(range(100), pa.int64())
    add(rows, table, keys, 5)
    slots = slots_of(rows, keys)
    for time in (20, 40):
        timers.change(slots, np.full(len(slots), time), np.zeros(len(slots), np.bool_))
    saved = world.save(store)
    store.close()
    store, rows, table = world.open(saved, state_backend="remote")
    timers = rows.timers("event")
    assert table.look_up(*asked(7), 10).column("n").to_pylist() == [5]
    assert timers.look_up(*asked(7), 10).column("__namespace").to_pylist() == [20, 40]
    assert rows.index.count == 0, "a query loads no key"
    timers.change(rows.upsert(*asked(7)).copy(), np.array([20]), np.ones(1, np.bool_))
    assert timers.look_up(*asked(7), 10).column("__namespace").to_pylist() == [40]
    store.close()


def test_keys_that_were_only_read_are_not_stored_again(tmp_path, monkeypatch):
    store, rows, table = World(tmp_path, 100_000).open()
    keys, written = pa.array(range(3000), pa.int64()), []
    add(rows, table, keys, 5)
    disk = rows.cold.store
    put, delete = disk.put, disk.delete
    monkeypatch.setattr(disk, "put", lambda names, values: written.extend(names) or put(names, values))
    monkeypatch.setattr(disk, "delete", lambda names: written.extend(names) or delete(names))
    assert values(table, slots_of(rows, keys)) == [5] * 3000
    rows.settle()
    assert rows.index.count == 0
    assert written == []
    slots = slots_of(rows, keys)
    table.write(slots[:10], [pa.array([6] * 10), pa.array(["x"] * 10)])
    table.clear(slots[10:15])
    rows.settle()
    assert rows.index.count == 0
    assert len(set(written)) == 15
    assert values(table, slots_of(rows, keys)) == [*[6] * 10, *[None] * 5, *[5] * 2985]
    store.close()


def test_changes_of_keys_that_leave_are_one_segment(tmp_path):
    world = World(tmp_path, 100_000)
    store, rows, table = world.open()
    for number in range(10):
        add(rows, table, pa.array(range(number, 500 + number), pa.int64()), 1)
        assert rows.index.count == 0  # none of them stays
    saved = world.save(store)
    assert [segment.rows for segment in saved[0].segments] == [509], "one for all"
    store.close()
    store, rows, table = world.open(saved, state_backend="hashmap")
    assert values(table, slots_of(rows, pa.array([0, 20, 508]))) == [1, 10, 1]
    store.close()


def test_what_waits_on_disk_is_handed_on_from_there(tmp_path):
    store, rows, table = World(tmp_path, 100_000).open()
    for low in range(0, 60_000, 3000):
        add(rows, table, pa.array(range(low, low + 3000), pa.int64()), 5)
    assert table.source.gathered_bytes < 100_000
    assert [path for path in (tmp_path / "1").iterdir() if path.is_file()] == [], "mapped, and removed"
    (frozen,) = store.freeze(1)
    (encoded,) = frozen.encode()
    assert isinstance(encoded.data, mmap.mmap), "not read into memory"
    frozen.durable({encoded.position: FileRef(path="x", length=len(encoded.data))})
    found = pq.read_table(pa.BufferReader(bytes(encoded.data)))
    assert found.num_rows == 60_000
    assert found.column("__key_hash").to_pylist() == sorted(found.column("__key_hash").to_pylist())
    store.close()


def counting_map(rows):
    """A map of integers to integers."""
    codec = ObjectCodec(pa.schema([pa.field("n", pa.int64(), nullable=False)]), None, "a map")
    fields = (pa.field("__entry", pa.int64()),), (pa.field("n", pa.int64()),)
    return rows.entries("counts", fields, MapCodec(codec, codec, 1), lists=False)


def put_entries(rows, table, keys, entries):
    slots = slots_of(rows, pa.array(keys))
    maps = [dict(held or {}) | entries for held in table.containers(slots)]
    owners, names = np.repeat(slots, len(entries)), list(entries) * len(slots)
    table.put(owners, [pa.array(names)], [pa.array([entries[name] for name in names])])
    table.changed(slots, maps)
    rows.settle()


def test_maps_become_bytes_before_their_keys_leave(tmp_path):
    world = World(tmp_path, 4 << 20)
    store, rows, _ = world.open()
    table = counting_map(rows)
    for low in range(0, 4000, 500):
        put_entries(rows, table, range(low, low + 500), {1: low, 2: -low, 300: 1 << 40})
    assert rows.index.count == 4000
    assert rows.key_bytes <= world.limit // 2
    assert table.objects.sum() < 2000
    assert table.objects[3500:4000].all(), "those used last stay as they are"
    assert set(table.counts().rows.tolist()) == {3}, "of bytes too"
    before = table.hot_bytes
    found = table.look_up(*asked(7), 2).to_pylist()
    assert [(row["__entry"], row["n"]) for row in found] == [(1, 0), (2, 0)]
    assert table.hot_bytes == before, "a query decodes nothing that stays"
    put_entries(rows, table, [7, 3999], {2: 5})
    found = table.containers(slots_of(rows, pa.array([7, 600, 3999])))
    assert found == [{1: 0, 2: 5, 300: 1 << 40}, {1: 500, 2: -500, 300: 1 << 40}, {1: 3500, 2: 5, 300: 1 << 40}]
    saved = world.save(store)
    store.close()
    store, rows, _ = world.open(saved, state_backend="hashmap")
    table = counting_map(rows)
    assert not table.objects.any(), "a restore makes no objects"
    assert table.containers(slots_of(rows, pa.array([7, 600, 3999]))) == found
    store.close()
