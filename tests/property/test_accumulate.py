"""The one pass over windowed rows against a dictionary, and the passes over integer keys against the long way."""

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.core.errors import PenstockError
from penstock.kernels.aggregates.pane_assignment import TIME_LIMIT
from penstock.kernels.keys.hashing import hash_columns, split_integers
from penstock.kernels.keys.key_columns import FixedColumn, key_columns
from penstock.kernels.rows.key_group_split import owners_of, split_by_key_group, take_rows
from penstock.state.cells.accumulators import AccumulatorInput, AccumulatorSpec, PaneTableSpec
from penstock.state.cells.pane_memory import PaneMemory
from penstock.state.keys.key_index import KeyIndex

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NONE = np.zeros(0, np.uint8)
KINDS = [
    ("sum", "int64"),
    ("min", "int64"),
    ("max", "int64"),
    ("sum", "float64"),
    ("min", "float64"),
    ("max", "float64"),
]
# small and odd, a real window, and lengths whose division needs a shift
LENGTHS = st.integers(1, 50) | st.sampled_from([10_000_000, (1 << 26) - 1, 1 << 26, 3_600_000_001, (1 << 40) + 12345])


def folded(combine, old, value):
    """SQL's idea of the aggregate, NaN the greatest of all."""
    if old is None:
        return value
    if combine == "sum":
        return old + value
    order = [(math.isnan(v) if isinstance(v, float) else False, v) for v in (old, value)]
    if order[0][0] == order[1][0] and order[0][0]:
        return value
    first_smaller = order[0][0] < order[1][0] or (order[0][0] == order[1][0] and old <= value)
    return (old if first_smaller else value) if combine == "min" else (value if first_smaller else old)


@st.composite
def batches(draw):
    length = draw(LENGTHS)
    offset = draw(st.integers(0, length - 1))
    far = st.integers(-TIME_LIMIT - 5, -TIME_LIMIT + 5) | st.integers(TIME_LIMIT - 5, TIME_LIMIT + 5) | INT64
    near = st.integers(-80 * length, 80 * length)
    rows = draw(st.lists(st.tuples(st.integers(0, 9000), near | near | near | far), min_size=1, max_size=400))
    close_before = draw(st.just(-(1 << 63) + 1) | st.integers(-80, 80).map(lambda n: n * length + offset))
    return length, offset, close_before, rows


@examples(150)
@given(batches(), st.lists(st.sampled_from(KINDS), max_size=3), st.booleans(), st.integers(0, 5), st.randoms())
def test_one_pass_adds_what_row_by_row_gives(batch, kinds, nullable, skipped, chance):
    length, offset, close_before, rows = batch
    specs = tuple(AccumulatorSpec(f"a{k}", dtype, combine) for k, (combine, dtype) in enumerate(kinds))
    counts = (AccumulatorSpec("n", "int64", "sum"),) if nullable else ()
    memory = PaneMemory(PaneTableSpec(pa.schema([("k", pa.int64())]), specs + counts))
    expected, late, out_of_range = {}, 0, 0
    for first in range(0, len(rows), 150):
        piece = rows[first : first + 150]
        valid = [not nullable or chance.random() < 0.7 for _ in piece]
        bitmap = np.packbits([False] * skipped + valid, bitorder="little") if nullable else NONE
        columns = [
            np.array([chance.randrange(-1000, 1000) for _ in piece], np.int64)
            if dtype == "int64"
            else np.array([chance.choice([float("nan"), 0.5, -2.0, 3.25]) for _ in piece])
            for _, dtype in kinds
        ]
        inputs = [AccumulatorInput(values, bitmap, skipped) for values in columns]
        inputs += [AccumulatorInput(None, bitmap, skipped)] * len(counts)
        given_rows = (np.array([s for s, _ in piece], np.int32), np.array([t for _, t in piece], np.int64))
        window = np.array([length, offset, close_before, TIME_LIMIT - 1], np.int64)
        more_late, more_out_of_range = memory.accumulate(given_rows, window, inputs, 9001)
        late, out_of_range = late + more_late, out_of_range + more_out_of_range
        for i, (slot, t) in enumerate(piece):
            if abs(t) >= TIME_LIMIT or t < close_before:
                continue
            cell = expected.setdefault((slot, t - (t - offset) % length), [0, *[None] * len(kinds), 0])
            cell[0] += 1
            if valid[i]:
                cell[-1] += 1
                for k, (combine, _) in enumerate(kinds):
                    cell[1 + k] = folded(combine, cell[1 + k], columns[k][i].item())
    assert out_of_range == sum(abs(t) >= TIME_LIMIT for _, t in rows)
    assert late == sum(abs(t) < TIME_LIMIT and t < close_before for _, t in rows)
    found = memory.present()
    keys = list(zip(found.slots.tolist(), found.panes.tolist(), strict=True))
    assert sorted(keys) == sorted(expected)
    for key, cell in zip(keys, found.cells, strict=True):
        want = expected[key]
        assert cell[0] == 2 * want[0] + 1
        for k, (_, dtype) in enumerate(kinds):
            if want[1 + k] is not None:
                np.testing.assert_equal(cell[1 + k : 2 + k].view(dtype)[0].item(), want[1 + k])
        if nullable:
            assert cell[-1] == want[-1]


def test_one_pass_sees_a_sum_that_does_not_fit():
    memory = PaneMemory(PaneTableSpec(pa.schema([("k", pa.int64())]), (AccumulatorSpec("s", "int64", "sum"),)))
    rows = np.zeros(2, np.int32), np.zeros(2, np.int64)
    inputs = [AccumulatorInput(np.full(2, 1 << 62, np.int64), NONE)]
    window = np.array([10, 0, -100, TIME_LIMIT - 1], np.int64)
    with pytest.raises(PenstockError, match="does not fit 64 bits"):
        memory.accumulate(rows, window, inputs, 1)


@examples(60)
@given(LENGTHS, st.integers(1, 9000), st.integers(0, 40), st.booleans(), st.integers(0, 1 << 32))
@example(10, 9000, 30, False, 1)  # many pages, all of them known
@example(10_000_000, 9000, 2, True, 2)
def test_whole_blocks_add_what_short_batches_add(length, keys, spread, late_rows, seed):
    """A block of rows in time whose pages are all there goes without a look at each row; short batches never do."""
    chance = np.random.default_rng(seed)
    spec = PaneTableSpec(pa.schema([("k", pa.int64())]), (AccumulatorSpec("s", "int64", "sum"),))
    blocks, short = PaneMemory(spec), PaneMemory(spec)
    size, start, offset = 3 * 1024, int(chance.integers(-1000, 1000)) * length, int(chance.integers(length))
    for number in range(6):
        low = start + min(number, 3) * length  # in the end no window is new, only rows
        slots = chance.integers(0, keys, size, np.int32)
        times = low + chance.integers(0, spread * length + 1, size)
        values = chance.integers(-1000, 1000, size)
        open_from = low + (length if late_rows else 0)
        window = np.array([length, offset, offset + (open_from - offset) // length * length, TIME_LIMIT - 1], np.int64)
        done = blocks.accumulate((slots, times), window, [AccumulatorInput(values, NONE)], keys)
        late = 0
        for at in range(0, size, 512):
            rows = slots[at : at + 512], times[at : at + 512]
            late += short.accumulate(rows, window, [AccumulatorInput(values[at : at + 512], NONE)], keys)[0]
        assert done == (late, 0)
        if number == 3:
            for memory in (blocks, short):
                memory.freeze(1, None)
                memory.copy_all_frozen()
        if chance.random() < 0.3:
            for memory in (blocks, short):
                memory.drop([pane for pane in memory.panes if pane < low])
    cells = []
    for memory in (blocks, short):
        found = memory.present()
        keys_of = zip(found.slots.tolist(), found.panes.tolist(), strict=True)
        cells.append(dict(zip(keys_of, found.cells.tolist(), strict=True)))
    assert cells[0] == cells[1]
    changed = [memory.freeze(2, None) for memory in (blocks, short)]
    pages = [[] if rows is None else rows.pages.tolist() for rows in changed]
    assert pages[0] == pages[1], "the same pages have changed since"


@examples(60)
@given(st.integers(0, 14), st.integers(1, 700), st.integers(0, 1 << 32))
def test_the_index_tells_hashes_apart_that_begin_in_one_place(shared_bits, count, seed):
    """Hashes given outright: alike in low bits, in high bits, or close together, through several growths."""
    chance = np.random.default_rng(seed)
    low = chance.integers(0, 1 << (64 - shared_bits), count, np.uint64) << np.uint64(shared_bits)
    high = chance.integers(0, 1 << (shared_bits + 1), count, np.uint64)
    close = chance.integers(0, 1 << 14, count, np.uint64) | np.uint64(0xFFFF << 48)
    pool = np.concatenate([low, high, close]).view(np.int64)
    index, known = KeyIndex(pa.schema([("k", pa.int64())])), {}
    for _ in range(4):
        hashes = chance.choice(pool, 2 * count)
        slots = index.upsert((FixedColumn(hashes),), hashes).tolist()  # the hash is its own key
        assert slots == [known.setdefault(h, len(known)) for h in hashes.tolist()]
    assert index.hashes.tolist() == list(known)


@examples(100)
@given(st.lists(st.integers(-50, 50) | INT64, max_size=300), st.integers(1, 4))
def test_integer_keys_get_the_slots_their_hashes_get(keys, pieces):
    schema = pa.schema([("k", pa.int64())])
    short, long = KeyIndex(schema), KeyIndex(schema)
    step = max(1, len(keys) // pieces)
    for first in range(0, len(keys), step):
        batch = pa.record_batch([pa.array(keys[first : first + step], pa.int64())], schema=schema)
        columns = key_columns(batch, ("k",))
        expected = long.upsert(columns, hash_columns(batch, ("k",))).tolist()
        assert short.slots_of(columns, batch.num_rows).tolist() == expected
    assert short.hashes.tolist() == long.hashes.tolist()
    assert short.view().gather(np.arange(short.count, dtype=np.int32)) == long.view().gather(
        np.arange(long.count, dtype=np.int32)
    )


@examples(80)
@given(INT64, st.integers(1, 12), st.integers(50, 400), st.integers(0, 1 << 32))
def test_keys_close_together_get_the_slots_their_hashes_get(start, apart, count, seed):
    """Ids that grow, some far away from all others, through several tables of near keys, and then far apart."""
    chance, schema = np.random.default_rng(seed), pa.schema([("k", pa.int64())])
    start = max(min(start, (1 << 63) - 1 - 20 * apart * count), -(1 << 63))
    index, known = KeyIndex(schema), {}
    for number in range(6):
        keys = start + apart * chance.integers(number * count // 2, (number + 2) * count, 3 * count)
        if number % 2:
            keys[chance.integers(0, len(keys), 3)] = chance.integers(-(1 << 63), (1 << 63) - 1, 3)
        slots = index.slots_of((FixedColumn(keys),), len(keys)).tolist()
        assert slots == [known.setdefault(key, len(known)) for key in keys.tolist()]
    assert index.view().gather(np.arange(index.count, dtype=np.int32))[0].to_pylist() == list(known)
    assert index.hashes.tolist() == hash_columns(pa.record_batch({"k": list(known)}), ("k",)).tolist()


def test_keys_far_apart_have_no_table_of_their_own():
    schema = pa.schema([("k", pa.int64())])
    for apart, dense in ((1, True), (3, True), (1000, False)):
        index = KeyIndex(schema)
        keys = apart * np.arange(2000, dtype=np.int64) - 500
        for _ in range(2):
            assert index.slots_of((FixedColumn(keys),), 2000).tolist() == list(range(2000))
        assert index.dense.in_use == dense
        assert index.memory_bytes > index.dense.places.nbytes >= 4
    index = KeyIndex(schema)
    for keys in (np.arange(100, dtype=np.int64), np.arange(300, dtype=np.int64) * 1_000_003):
        index.slots_of((FixedColumn(keys),), len(keys))
    assert not index.dense.in_use, "what was close together is not for ever"


def test_a_table_of_near_keys_is_left_out_where_rows_have_others():
    index = KeyIndex(pa.schema([("k", pa.int64())]))
    near, far = np.arange(1000, dtype=np.int64), (1 << 40) + np.arange(900, dtype=np.int64) * 1_000_003
    index.slots_of((FixedColumn(near),), 1000)
    assert index.dense.in_use
    few = np.concatenate([near, far[:100]])
    assert index.slots_of((FixedColumn(few),), 1100).tolist() == list(range(1100))
    assert index.dense.in_use, "a row in eleven goes to the hash table"
    assert index.slots_of((FixedColumn(far),), 900).tolist() == list(range(1000, 1900))
    assert not index.dense.in_use
    assert index.slots_of((FixedColumn(few),), 1100).tolist() == list(range(1100))
    assert not index.dense.disable(), "there is none"


def test_integer_keys_grow_the_index_and_mix_with_the_long_way():
    index = KeyIndex(pa.schema([("k", pa.int64())]))
    values = np.arange(5000, dtype=np.int64) * 7
    assert index.slots_of((FixedColumn(values),), 5000).tolist() == list(range(5000))
    batch = pa.record_batch({"k": pa.array([None, 7, 0])})
    columns = key_columns(batch, ("k",))
    assert index.slots_of(columns, 3).tolist() == [5000, 1, 0], "a null key takes the long way"
    assert index.slots_of((FixedColumn(values[:3]),), 3).tolist() == [0, 1, 2], "and so does every row behind it"


@examples(100)
@given(st.lists(INT64, max_size=200), st.integers(1, 300), st.data())
def test_integer_keys_are_split_as_their_hashes_are(keys, key_groups, data):
    parallelism = data.draw(st.integers(1, key_groups))
    values = np.array(keys, np.int64)
    order, offsets = np.empty(len(keys), np.int32), np.zeros(parallelism + 1, np.int64)
    split_integers(values, owners_of(key_groups, parallelism), order, offsets)
    hashes = hash_columns(pa.record_batch({"k": pa.array(values)}), ("k",))
    expected = split_by_key_group(hashes, key_groups, parallelism)
    assert order.tolist() == expected[0].tolist()
    assert offsets.tolist() == expected[1].tolist()


@given(
    st.lists(st.tuples(INT64, st.none() | INT64, st.floats(), st.text(max_size=3), st.booleans()), max_size=40),
    st.data(),
)
def test_rows_in_another_order(rows, data):
    kinds = [pa.int64(), pa.timestamp("us"), pa.float64(), pa.string(), pa.bool_()]
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    batch = pa.RecordBatch.from_arrays(arrays, names=list("abcde"))
    batch = batch.slice(data.draw(st.integers(0, len(rows))))
    order = np.array(data.draw(st.permutations(range(batch.num_rows))), np.int32)
    found, wanted = take_rows(batch, order), batch.take(pa.array(order))
    assert found.schema == wanted.schema
    assert pl.from_arrow(found).equals(pl.from_arrow(wanted)), "for Polars NaN equals NaN"
