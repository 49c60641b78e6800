"""Values of any length in cells: their form and their order against Python's, the heap against what is still named."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.kernels.aggregates.merge import MAX_V, MIN_V, keep_extremes, merge_cells
from penstock.state.cells.accumulators import AccumulatorSpec, PaneTableSpec
from penstock.state.cells.value_heap import ValueHeap, take_values
from penstock.state.tiers.cold_panes import CellRecords

TEXTS = st.text(max_size=20) | st.sampled_from(
    ["", "a\0", "a", "abcdefgh", "abcdefgh\0", "abcdefghi", "ä", "\U0001f600"]
)
DECIMALS = st.integers(-(10**30), 10**30).map(lambda n: Decimal(n).scaleb(-2))
KINDS = {
    "string": (pa.string(), TEXTS),
    "large string": (pa.large_string(), TEXTS),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), TEXTS),
    "binary": (pa.binary(), st.binary(max_size=40)),
    "fixed": (pa.binary(5), st.binary(min_size=5, max_size=5)),
    "decimal": (pa.decimal128(38, 2), DECIMALS),
}


def twin(op, cells, cell, values, seen=None):
    """The kernel, of Python's values."""
    choose = min if op == MIN_V else max
    for row, value in zip(cell, values, strict=True):
        both = [v for v in (cells[row], value) if v is not None]
        cells[row] = choose(both) if both else None
        if seen is not None:
            seen.append(cells[row])
    return cells


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("op", [MIN_V, MAX_V])
@examples(60)
@given(st.data())
def test_the_least_and_the_greatest_are_pythons(kind, op, data):
    data_type, one = KINDS[kind]
    rows = data.draw(st.lists(st.tuples(st.integers(0, 3), st.none() | one), max_size=40))
    places, values = [r[0] for r in rows], [r[1] for r in rows]
    heap, seen = ValueHeap(), []
    array = pa.array([values[0] if values else None, *values], data_type).slice(1)  # bits do not begin with a byte
    addresses, plain = heap.put(array), array.type.value_type if kind == "dictionary" else data_type
    assert take_values(addresses, plain).to_pylist() == values
    cells, out = np.zeros((4, 2), np.int64), np.zeros((2, len(rows)), np.int64)
    cell = np.array(places, np.int64)
    keep_extremes(cells, (op, 1), cell, addresses, out)
    wanted = twin(op, [None] * 4, places, values, seen)
    assert take_values(cells[:, 1], plain).to_pylist() == wanted
    assert take_values(out[1], plain).to_pylist() == seen
    # cells of other panes are merged by the same order
    given_ = np.zeros((len(rows), 2), np.int64)
    given_[:, 1] = addresses
    merged = np.zeros((4, 2), np.int64)
    ops = np.array([[op, 1]], np.int64)
    merge_cells(merged, cell, given_, ops)
    assert take_values(merged[:, 1], plain).to_pylist() == wanted
    moved = heap.compact(cells[:, 1:])
    assert take_values(moved[:, 0], plain).to_pylist() == wanted


@examples(60)
@given(st.lists(st.tuples(st.none() | TEXTS, st.integers(), st.none() | DECIMALS), min_size=1, max_size=30), st.data())
def test_cells_come_back_from_their_records_with_what_they_refer_to(rows, data):
    """Of any of the records, in any order, and into a heap that has other values."""
    texts, times, decimals = zip(*rows, strict=True)
    kinds = (pa.string(), pa.decimal128(38, 2))
    spec = PaneTableSpec(
        pa.schema([pa.field("k", pa.int64())]),
        (AccumulatorSpec("most", "value", "max", kinds[0]), AccumulatorSpec("end", "value", "last", kinds[1])),
    )
    heap, records = ValueHeap(), CellRecords(spec)
    cells = np.empty((len(rows), spec.width), np.int64)
    cells[:, 0], cells[:, 2] = 2 * np.arange(len(rows)), [time % (1 << 60) for time in times]
    first, second = spec.value_words
    cells[:, first], cells[:, second] = heap.put(pa.array(texts, kinds[0])), heap.put(pa.array(decimals, kinds[1]))
    packed = records.pack(cells.copy())
    chosen = data.draw(st.permutations(range(len(rows))))[: data.draw(st.integers(1, len(rows)))]
    other = ValueHeap()
    other.put(pa.array(["something else"]))
    found = records.unpack([packed[i] for i in chosen], other)
    del heap
    assert found[:, [0, 2]].tolist() == cells[chosen][:, [0, 2]].tolist()
    assert take_values(found[:, first], kinds[0]).to_pylist() == [texts[i] for i in chosen]
    assert take_values(found[:, second], kinds[1]).to_pylist() == [decimals[i] for i in chosen]


@examples(60)
@given(st.lists(st.tuples(*[st.none() | TEXTS] * 3), min_size=1, max_size=20), st.data())
def test_what_is_equal_in_a_cell_is_there_once(rows, data):
    """Compacted and in its record, whether it came as one value or as several."""
    spec = PaneTableSpec(
        pa.schema([pa.field("k", pa.int64())]),
        tuple(AccumulatorSpec(fn, "value", fn, pa.string()) for fn in ("min", "max", "last")),
    )
    heap, cells, words = ValueHeap(), np.zeros((len(rows), spec.width), np.int64), list(spec.value_words)
    for word, texts in zip(words, zip(*rows, strict=True), strict=True):
        cells[:, word] = heap.put(pa.array(texts, pa.string()))
    if data.draw(st.booleans()):
        cells[:, words[1]] = cells[:, words[0]]
        rows = [(first, first, last) for first, _, last in rows]
    taken = [sum(8 + -(-len(t.encode()) // 8) * 8 for t in {*row} - {None}) for row in rows]
    records = CellRecords(spec).pack(cells.copy())
    assert [len(record) for record in records] == [8 * spec.width + bytes_ for bytes_ in taken]
    other = ValueHeap()
    unpacked = CellRecords(spec).unpack(records, other)
    moved = heap.compact(cells[:, words])
    assert heap.memory_bytes == other.memory_bytes == sum(taken)
    for found in (moved, unpacked[:, words]):
        columns = [take_values(found[:, k], pa.string()).to_pylist() for k in range(3)]
        assert list(zip(*columns, strict=True)) == rows


def test_compacting_leaves_behind_what_nothing_names():
    heap = ValueHeap(least=100)
    held = heap.put(pa.array(["kept " * 10, None])).reshape(2, 1)
    for _ in range(50):
        heap.put(pa.array(["forgotten " * 20]))
        pinned, before = heap.pinned, heap.memory_bytes
        if heap.full:
            moved = heap.compact(held)
            assert heap.memory_bytes < before
            assert take_values(held[:, 0], pa.string()).to_pylist() == ["kept " * 10, None]  # as long as it is pinned
            held = moved
        del pinned
    assert heap.memory_bytes <= 8 * (100 + 30)
    assert take_values(held[:, 0], pa.string()).to_pylist() == ["kept " * 10, None]
