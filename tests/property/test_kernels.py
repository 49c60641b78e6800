"""Every kernel against a twin in plain Python."""

import math
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.core.keygroup import key_group_of, subtask_of
from penstock.eventtime.windows import is_late, pane_size, sliding_windows, tumbling_start
from penstock.kernels.aggregates.aggregate import add_rows, max_by_group
from penstock.kernels.aggregates.pane_assignment import TIME_LIMIT, assign_panes
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import bytes_to_arrow, fixed_column, fixed_to_arrow, key_columns
from penstock.kernels.keys.key_types import is_fixed
from penstock.kernels.rows.key_group_split import split_by_key_group, take_split
from penstock.state.keys.key_index import KeyIndex

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def rotate(x, count):
    return ((x << count) | (x >> (64 - count))) & MASK


def xxhash64(data, seed):
    end, at = len(data), 0
    if end >= 32:
        lanes = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        while at <= end - 32:
            for k, word in enumerate(struct.unpack_from("<4Q", data, at)):
                lanes[k] = rotate((lanes[k] + word * P2) & MASK, 31) * P1 & MASK
            at += 32
        h = sum(rotate(v, c) for v, c in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for v in lanes:
            h = ((h ^ rotate(v * P2 & MASK, 31) * P1 & MASK) * P1 + P4) & MASK
    else:
        h = (seed + P5) & MASK
    h = (h + end) & MASK
    while at + 8 <= end:
        (word,) = struct.unpack_from("<Q", data, at)
        h = (rotate(h ^ rotate(word * P2 & MASK, 31) * P1 & MASK, 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= end:
        (word,) = struct.unpack_from("<I", data, at)
        h = (rotate(h ^ word * P1 & MASK, 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        h = rotate(h ^ byte * P5 & MASK, 11) * P1 & MASK
    h = (h ^ h >> 33) * P2 & MASK
    h = (h ^ h >> 29) * P3 & MASK
    return h ^ h >> 32


def canonical(value):
    """The bytes Spark hashes for a value after the canonical casts."""
    if isinstance(value, bool | int):
        return struct.pack("<q", value)
    if isinstance(value, float):
        return struct.pack("<d", float("nan") if math.isnan(value) else value + 0.0)
    if isinstance(value, Decimal):
        number = int(value.scaleb(2))
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return number.to_bytes(size, "big", signed=True)
    return value.encode() if isinstance(value, str) else value


def signed(h):
    return h - (1 << 64) if h >> 63 else h


def expected_hash(row):
    h = 42
    for value in row:
        if value is not None:
            h = xxhash64(canonical(value), h)
    return signed(h)


DECIMALS = st.decimals(min_value=-(10**25), max_value=10**25, places=2, allow_nan=False)
COLUMNS = {
    "int64": (pa.int64(), INT64),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "bool": (pa.bool_(), st.booleans()),
    "float64": (pa.float64(), st.floats()),
    "float32": (pa.float32(), st.floats(width=32)),
    "string": (pa.string(), st.text(max_size=80)),
    "large_string": (pa.large_string(), st.text(max_size=20)),
    "binary": (pa.binary(), st.binary(max_size=80)),
    "fixed": (pa.binary(5), st.binary(min_size=5, max_size=5)),
    "decimal": (pa.decimal128(30, 2), DECIMALS),
}


@st.composite
def tables(draw):
    names = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3, unique=True))
    rows = draw(st.lists(st.tuples(*[st.none() | COLUMNS[n][1] for n in names]), min_size=1, max_size=40))
    skip = draw(st.integers(0, min(3, len(rows) - 1)))
    arrays = [pa.array([r[i] for r in rows], COLUMNS[n][0]) for i, n in enumerate(names)]
    return pa.RecordBatch.from_arrays(arrays, names=names).slice(skip), rows[skip:], tuple(names)


@examples(200)
@given(tables())
def test_hash_columns(table):
    batch, rows, names = table
    assert hash_columns(batch, names).tolist() == [expected_hash(row) for row in rows]


@examples(100)
@given(st.lists(INT64, max_size=100), st.integers(1, 300), st.data())
def test_split(hashes, key_groups, data):
    parallelism = data.draw(st.integers(1, key_groups))
    order, offsets = split_by_key_group(np.array(hashes, np.int64), key_groups, parallelism)
    owners = [subtask_of(key_group_of(h, key_groups), parallelism, key_groups) for h in hashes]
    expected = [[i for i, owner in enumerate(owners) if owner == s] for s in range(parallelism)]
    assert [order[offsets[s] : offsets[s + 1]].tolist() for s in range(parallelism)] == expected
    parts = take_split(pa.record_batch({"row": pa.array(range(len(hashes)), pa.int64())}), order, offsets)
    assert [[] if p is None else p.column("row").to_pylist() for p in parts] == expected
    assert all(p is None or p.num_rows for p in parts)


@given(st.lists(st.integers(0, 9), max_size=600), st.integers(0, 9), st.data())
def test_rows_are_counted_in_their_cells(of_rows, hot, data):
    """Whether rows next to each other are often of one cell or not."""
    often = data.draw(st.lists(st.booleans(), min_size=len(of_rows), max_size=len(of_rows)))
    cell = np.array([hot if chosen else own for own, chosen in zip(of_rows, often, strict=True)], np.int64)
    cells = np.arange(20, dtype=np.int64).reshape(10, 2) * 2
    counts = cells[:, 0] + 2 * np.bincount(cell, minlength=10)
    assert add_rows(cells, cell) == len(cell)
    assert cells[:, 0].tolist() == [count | int(own in cell) for own, count in enumerate(counts.tolist())]
    assert cells[:, 1].tolist() == list(range(2, 42, 4))


@given(st.lists(st.tuples(st.integers(0, 4), INT64), max_size=50))
def test_max_by_group(rows):
    index, values = np.array([r[0] for r in rows], np.int32), np.array([r[1] for r in rows], np.int64)
    expected = [max([v for g, v in rows if g == group], default=-(1 << 63)) for group in range(5)]
    assert max_by_group(index, values, 5).tolist() == expected


@examples(200)
@given(
    st.lists(st.integers(-3000, 3000) | INT64, min_size=1, max_size=60),
    st.integers(1, 500),
    st.integers(1, 500),
    st.integers(-3000, 3000),
    st.data(),
)
def test_assign_panes(times, size, slide, watermark, data):
    offset = data.draw(st.integers(1 - slide, slide - 1))
    pane = pane_size(size, slide)
    closed = watermark - size + 1
    first_open = closed - (closed - offset) % slide + slide
    panes, counts = np.empty(len(times), np.int64), np.zeros(3, np.int64)
    window = np.array([pane, size, slide, offset], np.int64)
    left_out = assign_panes(np.array(times, np.int64), window, first_open, panes, counts)
    expected, late, out_of_range, gap = [], 0, 0, 0
    for t in times:
        windows = sliding_windows(t, size, slide, offset)
        if abs(t) >= TIME_LIMIT:
            out_of_range += 1
        elif not windows:
            gap += 1
        elif all(is_late(w, watermark) for w in windows):
            late += 1
        else:
            expected.append(tumbling_start(t, pane, offset))
            continue
        expected.append(-(1 << 63))
    assert panes.tolist() == expected
    assert counts.tolist() == [late, out_of_range, gap]
    assert left_out == late + out_of_range + gap


@examples(200)
@given(tables(), st.integers(1, 5), st.booleans())
def test_key_index(table, pieces, collide):
    """Slots are dense and the same for the same key alone: also when keys share their hash."""
    batch, rows, names = table
    # the hash of one fixed-width key is a bijection, which the index relies on: only other keys can collide
    collide = collide and (len(names) > 1 or not is_fixed(batch.schema.field(0).type))
    index, slots = KeyIndex(batch.schema), {}
    step = max(1, len(rows) // pieces)
    for first in range(0, len(rows), step):
        piece = batch.slice(first, step)
        hashes = hash_columns(piece, names)
        got = index.upsert(key_columns(piece, names), hashes & 1 if collide else hashes).tolist()
        keys = [tuple(None if v is None else canonical(v) for v in r) for r in rows[first : first + step]]
        for key, slot in zip(keys, got, strict=True):
            assert slots.setdefault(key, slot) == slot
    by_slot = sorted(slots, key=slots.__getitem__)
    assert [slots[key] for key in by_slot] == list(range(index.count))
    gathered = index.view().gather(np.arange(index.count, dtype=np.int32))
    stored = zip(*[a.to_pylist() for a in gathered], strict=True)
    assert [tuple(None if v is None else canonical(v) for v in row) for row in stored] == by_slot


@given(st.integers(1, 3000))
def test_key_index_grows(count):
    batch = pa.record_batch({"k": pa.array([f"key-{i}" for i in range(count)])})
    index = KeyIndex(batch.schema)
    for _ in range(2):
        slots = index.upsert(key_columns(batch, ("k",)), hash_columns(batch, ("k",)))
        assert slots.tolist() == list(range(count))
    assert index.view().gather(slots)[0].to_pylist() == batch.column("k").to_pylist()


@given(st.data(), st.sampled_from(["int8", "uint32", "bool", "float32", "float64", "int64"]))
def test_fixed_columns_come_back(data, name):
    kind, values = COLUMNS[name]
    array = pa.array(data.draw(st.lists(st.none() | values, max_size=30)), kind)
    column = fixed_column(array)
    valid = np.array([v is not None for v in array.to_pylist()], np.uint8)
    back = fixed_to_arrow(column.values, valid, kind)
    assert [canonical(v) if v is not None else v for v in back.to_pylist()] == [
        canonical(v) if v is not None else v for v in array.to_pylist()
    ]


@given(st.lists(st.binary(max_size=9), max_size=20))
def test_bytes_come_back(values):
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int64)
    data = np.frombuffer(b"".join(values), np.uint8)
    for kind in (pa.binary(), pa.large_binary()):
        assert bytes_to_arrow(data, offsets, None, kind).to_pylist() == values
