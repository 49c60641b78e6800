"""Combining before the shuffle: the grouping against numpy, and a table of cells against the rows, exactly."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.config.settings import JobSettings
from penstock.core.elements import TS_COLUMN
from penstock.kernels.aggregates.merge import merge_cells
from penstock.kernels.aggregates.pane_assignment import TIME_LIMIT, group_rows
from penstock.kernels.keys.hashing import hash_columns
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.aggregates.aggregate_plan import AggregatePlan
from penstock.operators.aggregates.aggregate_schema import parse
from penstock.operators.aggregates.combine import CELLS_COLUMN, Combiner, cells_of, combiner_for, read_cells
from penstock.state.cells.pane_memory import add_rows
from penstock.state.cells.value_heap import ValueHeap, take_values

ALWAYS = JobSettings(combine_min_rows=1, combine_ratio=1.0)
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("s", pa.string()),
        pa.field("i", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field(TS_COLUMN, pa.int64(), nullable=False),
    ]
)
EXACT = [
    {"fn": "count", "column": None, "alias": "n"},
    {"fn": "count", "column": "i", "alias": "values"},
    {"fn": "sum", "column": "i", "alias": "total"},
    {"fn": "mean", "column": "i", "alias": "mean"},
    {"fn": "min", "column": "i", "alias": "least"},
    {"fn": "max", "column": "i", "alias": "most"},
    {"fn": "min", "column": "x", "alias": "low"},
    {"fn": "max", "column": "x", "alias": "high"},
    {"fn": "first", "column": "x", "alias": "first"},
    {"fn": "last", "column": "i", "alias": "last"},
]
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -2.25, float("inf"), float("-inf"), float("nan")])
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(0, 3),
        st.none() | st.sampled_from(["", "a", "b" * 20]),
        st.none() | st.integers(-1000, 1000),
        st.none() | FLOATS,
        st.integers(-90, 90),
    ),
    min_size=1,
    max_size=80,
)


def config(aggregates=EXACT, key=("k", "s"), size=30, **window):
    shape = {"kind": "tumbling", "size_us": size, **window}
    return {"key": list(key), "window": shape, "aggregates": list(aggregates)}


def batch_of(rows):
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def grouped(slots, times, length, base):
    """The kernel's twin: numbers in order of first rows."""
    pairs = np.stack([slots.astype(np.int64), (times - base) // length])
    _, first, inverse = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    first_rows = first[order]
    return number[inverse.reshape(-1)], first_rows, base + (times[first_rows] - base) // length * length


LENGTHS = st.integers(1, 50) | st.sampled_from([10_000_000, 3_600_000_001, (1 << 40) + 12345, (1 << 50) - 1])


@examples(150)
@given(
    LENGTHS,
    st.integers(-(1 << 60), 1 << 60),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 63), st.floats(0, 1, exclude_max=True)), max_size=200),
    st.integers(1, 3),
)
def test_rows_are_grouped_as_numpy_groups_them(length, base, rows, rounds):
    slots = np.array([s for s, _, _ in rows], np.int32)
    inside = [min(length - 1, int(part * length)) for _, _, part in rows]
    times = np.array([base + p * length + i for (_, p, _), i in zip(rows, inside, strict=True)], np.int64)
    known, floor = np.zeros(640, np.int64), 1
    for _ in range(rounds):  # what an earlier batch left in the table is not there
        group_of, first_rows, panes = (np.full(len(rows), -7, np.int64) for _ in range(3))
        tables = (known, group_of, first_rows, panes)
        count = group_rows(slots, times, np.array([length, base, 64], np.int64), tables, floor)
        floor += len(rows)
        expected = grouped(slots, times, length, base)
        assert count == len(expected[1])
        for found, wanted in zip((group_of, first_rows[:count], panes[:count]), expected, strict=True):
            assert found.tolist() == wanted.tolist()
    if count > 1:
        few = (known, group_of, first_rows[: count - 1], panes[: count - 1])
        assert group_rows(slots, times, np.array([length, base, 64], np.int64), few, floor) == -1


@examples(150)
@given(ROWS, st.integers(0, 5), st.sampled_from([(30, 30, 0), (30, 10, 7), (50, 20, 3)]), st.lists(st.integers(0, 80)))
def test_merged_cells_are_those_of_the_rows_bit_by_bit(rows, skipped, window, cuts):
    """Rows in batches of any size, combined or not, against all rows one by one."""
    size, slide, offset = window
    shape = {"kind": "sliding", "size_us": size, "slide_us": slide, "offset_us": offset}
    settings_ = config() | {"window": shape}
    combiner = combiner_for(settings_, SCHEMA, ALWAYS)
    plan, pane = AggregatePlan(parse(settings_), SCHEMA), parse(settings_).pane
    rows = rows[:1] * skipped + rows
    whole = batch_of(rows).slice(skipped)
    spec = plan.spec
    assert spec.exact
    groups, cells, direct = {}, *(np.tile(spec.initial, (whole.num_rows, 1)) for _ in range(2))

    def cells_for(data, panes):
        keys = zip(data.column("k").to_pylist(), data.column("s").to_pylist(), panes.tolist(), strict=True)
        return np.array([groups.setdefault(key, len(groups)) for key in keys], np.int64)

    ends = sorted({min(cut, whole.num_rows) for cut in cuts} | {0, whole.num_rows})
    for low, high in itertools.pairwise(ends):
        part = whole.slice(low, high - low)
        times = part.column(TS_COLUMN).to_numpy()
        own = cells_for(part, times - (times - offset) % pane)
        assert add_rows(spec, (direct, direct.view(np.float64)), own, plan.inputs(part)) is None
        if (low + high) % 3 == 0:
            assert add_rows(spec, (cells, cells.view(np.float64)), own, plan.inputs(part)) is None
            continue
        combined = combiner.combine(part)
        combined.validate(full=True)
        assert combined.schema == combiner.schema
        assert (cells_of(combined)[:, 0] >> 1).sum() == part.num_rows, "every row counts once"
        at = cells_for(combined, combined.column(TS_COLUMN).to_numpy())
        assert len(set(at.tolist())) == len(at), "a row a key and pane"
        given_cells = cells_of(combined)
        assert merge_cells(cells, at, given_cells, spec.ops) == 0
    assert cells.tolist() == direct.tolist()


def orders(count, users, seed=0, **columns):
    random = np.random.default_rng(seed)
    values = {
        "k": random.integers(0, users, count),
        "s": None,
        "i": random.integers(0, 100, count),
        "x": None,
        TS_COLUMN: random.integers(0, 30, count),
    } | columns
    arrays = [
        pa.nulls(count, f.type) if values[f.name] is None else pa.array(np.asarray(values[f.name]), f.type)
        for f in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def made(aggregates=EXACT[:3], key=("k",), **changes):
    found = combiner_for(config(aggregates, key), SCHEMA, JobSettings(**({"combine_min_rows": 1} | changes)))
    assert isinstance(found, Combiner)
    return found


def test_what_depends_on_the_order_is_combined_only_when_asked_for():
    for fn in ("sum", "mean", "var", "std"):
        inexact = config([{"fn": fn, "column": "x", "alias": "a"}])
        assert combiner_for(inexact, SCHEMA, JobSettings()) is None
        assert combiner_for(inexact, SCHEMA, JobSettings(combine="all")) is not None
    assert combiner_for(config(), SCHEMA, JobSettings()) is not None
    assert combiner_for(config(), SCHEMA, JobSettings(combine="off")) is None


def test_windows_whose_rows_do_not_fare_alike_are_left_alone():
    gaps = config() | {"window": {"kind": "sliding", "size_us": 10, "slide_us": 30}}
    for refused in (config() | {"allowed_lateness_us": 5}, gaps):
        assert combiner_for(refused, SCHEMA, ALWAYS) is None


def test_few_keys_are_combined_and_many_are_not_looked_at_for_some_time():
    combiner = made()
    assert combiner.combine(orders(4000, 10)).num_rows == 10
    assert combiner.combine(orders(4000, 1 << 40)) is None
    rows = 0
    while combiner.combine(orders(4000, 10)) is None:
        rows += 4000
    assert rows >= 1 << 19
    assert rows < (1 << 19) + 8000
    assert combiner.combine(orders(4000, 1 << 40)) is None
    again = 0
    while combiner.combine(orders(4000, 10)) is None:
        again += 4000
    assert rows - 4000 <= again <= rows + 4000, "a success makes the pause short again"


def test_every_vain_trial_doubles_the_pause():
    combiner, tried = made(), []
    combiner._partials.reduce = lambda *_: tried.append(rows)
    batch = orders(1 << 16, 3)
    for number in range(1 << 10):
        rows = number << 16
        combiner.combine(batch)
    steps = [(b - a - (1 << 16)) >> 19 for a, b in itertools.pairwise(tried)]
    assert steps == [1, 2, 4, 8, 16, 32, 32]


def test_small_batches_go_as_they_are():
    combiner = made(combine_min_rows=100)
    assert combiner.combine(orders(99, 2)) is None
    assert combiner.combine(orders(100, 2)) is not None


@pytest.mark.parametrize("time", [TIME_LIMIT, -TIME_LIMIT, (1 << 63) - 1, -(1 << 63), 30 * 70])
def test_times_that_are_impossible_or_far_apart_go_as_they_are(time):
    combiner = made(combine_ratio=1.0)
    assert combiner.combine(orders(2, 1, **{TS_COLUMN: [0, 30 * 63]})) is not None
    assert combiner.combine(orders(2, 1, **{TS_COLUMN: [0, time]})) is None


def test_a_partial_sum_that_does_not_fit_leaves_the_rows_to_the_window():
    assert made().combine(orders(2, 1, i=[1 << 62, 1 << 62])) is None
    assert made().combine(orders(2, 1, i=[1 << 62, -(1 << 62)])).num_rows == 1


def test_keys_that_share_a_hash_stay_apart():
    schema = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.int64()), SCHEMA.field(TS_COLUMN)])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([None, 1] * 9), pa.array([1, None] * 9), pa.array([5] * 18)], schema=schema
    )
    assert len(set(hash_columns(batch, ("a", "b")).tolist())) == 1
    shape = config(EXACT[:1], ("a", "b"))
    combined = combiner_for(shape, schema, ALWAYS).combine(batch)
    assert combined.column("a").to_pylist() == [None, 1]
    assert (cells_of(combined)[:, 0] >> 1).tolist() == [9, 9]


def test_strings_go_with_the_cells_that_refer_to_them_and_nothing_tells_where_they_were():
    texts = [{"fn": fn, "column": "s", "alias": fn} for fn in ("min", "max", "first", "last")]
    values, spec = [None, "b", "a" * 20, "c", None, "", None], AggregatePlan(parse(config(texts, ("k",))), SCHEMA).spec
    batch = orders(7, 1, k=[1, 1, 1, 1, 2, 2, 3], s=values, **{TS_COLUMN: [0, 4, 3, 9, 1, 1, 1]})
    combined = made(texts, combine_ratio=1.0).combine(batch)
    assert not cells_of(combined)[:, list(spec.value_words)].any(), "a replay would send other bytes"
    (received,), heap = _sent(combined), ValueHeap()
    cells = read_cells(received.slice(1), spec, heap)
    cells = np.concatenate([read_cells(received.slice(0, 1), spec, heap), cells])
    assert (cells[:, 0] >> 1).tolist() == [4, 2, 1]
    found = [take_values(cells[:, word], kind).to_pylist() for word, kind in spec.value_words.items()]
    assert found == [["a" * 20, "", None], ["c", "", None], ["a" * 20, "", None], ["c", "", None]]


def _sent(batch):
    """Read a batch as another process does."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue())


def test_keys_are_forgotten_when_there_are_too_many():
    combiner = made(combine_ratio=1.0)
    for first in range(0, 200_000, 5000):
        batch = orders(
            10_000, 1, k=np.repeat(np.arange(first, first + 5000), 2), **{TS_COLUMN: np.zeros(10_000, np.int64)}
        )
        assert combiner.combine(batch).num_rows == 5000
    assert combiner._partials._index.count < 40_000


def test_cells_of_a_slice_are_the_slices():
    combined = made().combine(orders(1000, 7))
    assert cells_of(combined.slice(3, 2)).tolist() == cells_of(combined)[3:5].tolist()
    assert combined.schema.field(CELLS_COLUMN).type.byte_width == 8 * cells_of(combined).shape[1]
    assert key_columns(combined, ("k",))[0].values.tolist() == combined.column("k").to_pylist()


def test_keys_of_earlier_batches_do_not_keep_few_keys_from_being_combined():
    combiner = combiner_for(config(EXACT[2:3], key=("k",)), SCHEMA, JobSettings(combine_min_rows=1, combine_ratio=0.9))

    def combined(first, keys):
        rows = np.arange(4000)
        columns = [
            pa.array(first + rows % keys),
            pa.nulls(4000, pa.string()),
            pa.array(rows),
            pa.nulls(4000, pa.float64()),
        ]
        columns.append(pa.array(rows % 60 * 30))
        combiner._left = 0
        return combiner.combine(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))

    few = combined(0, 7).num_rows
    for first in range(0, 30_000, 1000):
        combined(first, 1000)
    assert combined(0, 7).num_rows == few
