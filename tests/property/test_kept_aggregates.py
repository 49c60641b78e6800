"""Aggregates that need the rows of a window against DuckDB's; the approximate one against a twin and the truth."""

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.kernels.aggregates.aggregate import add_registers
from penstock.kernels.aggregates.merge import REGISTERS, merge_cells
from penstock.kernels.keys.hashing import hash_columns
from penstock.operators.aggregates.aggregate_plan import WORDS, estimates
from penstock.operators.aggregates.aggregate_schema import Aggregate
from penstock.operators.windows.row_stages import packed, unpacked
from penstock.operators.windows.window_outputs import row_aggregate

KINDS = {
    "int": (pa.int32(), st.integers(-5, 5)),
    "float": (pa.float64(), st.sampled_from([-1.5, -0.0, 0.0, 2.25, 1e9])),
    "string": (pa.string(), st.sampled_from(["", "a", "b", "bb"])),
    "decimal": (pa.decimal128(9, 2), st.decimals(-9, 9, places=2)),
}
#: Types beside these whose values stay as they are from a part of a window to the whole.
PART_KINDS = {
    **KINDS,
    "bytes": (pa.large_binary(), st.sampled_from([b"", b"a", bytes([0, 255])])),
    "date": (pa.date32(), st.dates()),
    "long decimal": (pa.decimal128(30, 2), st.decimals(-9, 9, places=2)),
}
NUMBERS = ("int", "float", "decimal", "long decimal")
WINDOWS = 4
NONE = np.zeros(0, np.uint8)


@pytest.mark.parametrize("kind", sorted(KINDS))
@examples(40)
@given(st.data())
def test_kept_aggregates_are_duckdbs(kind, data):
    data_type, one = KINDS[kind]
    rows = data.draw(st.lists(st.tuples(st.integers(0, WINDOWS - 1), st.none() | one), max_size=40))
    rows.sort(key=lambda row: row[0])
    values, window = pa.array([v for _, v in rows], data_type), np.array([w for w, _ in rows], np.int64)
    every = pa.table({"w": pa.array(window), "v": values, "i": pa.array(range(len(rows)), pa.int64())})  # noqa: F841
    of_each = "from range(4) r(w) left join every using (w) group by w order by w"
    q = data.draw(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]))

    def found(fn):
        return row_aggregate(Aggregate(fn, "v", "a", quantile=q), values, window, WINDOWS)

    lists = duckdb.sql(f"select coalesce(list(v order by i) filter (v is not null), []) {of_each}").fetchall()
    assert found("collect").to_pylist() == [one for (one,) in lists]
    counts = duckdb.sql(f"select count(distinct v) {of_each}").fetchall()
    assert found("count_distinct").to_pylist() == [one for (one,) in counts]
    if kind != "string":
        wanted = duckdb.sql(f"select quantile_cont(v::double, {q}) {of_each}").fetchall()
        got = found("quantile").to_pylist()
        assert [one is None for one in got] == [one is None for (one,) in wanted]
        assert [one for one in got if one is not None] == pytest.approx([o for (o,) in wanted if o is not None])


@pytest.mark.parametrize("kind", sorted(PART_KINDS))
@examples(40)
@given(st.data())
def test_parts_of_a_window_give_what_its_rows_give(kind, data):
    data_type, one = PART_KINDS[kind]
    row = st.tuples(st.integers(0, WINDOWS - 1), st.integers(0, 2), st.none() | one)
    rows = sorted(data.draw(st.lists(row, max_size=40)), key=lambda row: row[0])
    for aggregate in [Aggregate("count_distinct", "v", "a"), Aggregate("quantile", "v", "a", quantile=0.3)]:
        if aggregate.fn == "quantile" and kind not in NUMBERS:
            continue

        def given_to(function, rows, aggregate=aggregate):
            values, window = pa.array([v for *_, v in rows], data_type), np.array([w for w, *_ in rows], np.int64)
            return function(aggregate, values, window, WINDOWS)

        parts = [given_to(packed, [row for row in rows if row[1] == salt]).to_pylist() for salt in range(3)]
        found = unpacked(aggregate, data_type, [(*own, None) for own in zip(*parts, strict=True)])
        assert found.equals(given_to(row_aggregate, rows))


def registers_of(hashes):
    """The kernel's twin."""
    found = [0] * 512
    for value in hashes:
        bits = int(value) & (2**64 - 1)
        rest = (bits << 9) & (2**64 - 1)
        found[bits >> 55] = max(found[bits >> 55], min(64 - rest.bit_length() + 1, 56))
    return found


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 7)), max_size=60))
def test_registers_are_those_of_the_twin_however_they_are_merged(rows):
    cell, hashes = np.array([c for c, _ in rows], np.int64), np.array([h for _, h in rows], np.int64)
    cells, out = np.zeros((3, 1 + WORDS), np.int64), np.zeros((1 + WORDS, len(rows)), np.int64)
    add_registers(cells, 1, cell, (hashes, NONE), 0, out)
    wanted = [registers_of([h for c, h in rows if c == place]) for place in range(3)]
    assert cells[:, 1:].copy().view(np.uint8).tolist() == wanted
    for row, (place, _) in enumerate(rows):
        seen = registers_of([h for c, h in rows[: row + 1] if c == place])
        assert np.ascontiguousarray(out[1:, row]).view(np.uint8).tolist() == seen
    single = np.zeros((len(rows), 1 + WORDS), np.int64)
    add_registers(single, 1, np.arange(len(rows)), (hashes, NONE), 0, np.zeros((0, 0), np.int64))
    merged, ops = np.zeros((3, 1 + WORDS), np.int64), np.array([[REGISTERS, 1]], np.int64)
    merge_cells(merged, cell, single, ops)
    assert merged[:, 1:].tolist() == cells[:, 1:].tolist()


@pytest.mark.parametrize("count", [0, 1, 10, 300, 1500, 20_000])
def test_the_error_of_an_estimate_is_the_one_that_is_promised(count):
    """Over 200 sets of that many values: the root of the mean square is 4.6 %, few are beyond three times that."""
    sets = 200
    names = pa.record_batch({"v": pa.array([f"{i}-{n}" for i in range(sets) for n in range(count)], pa.string())})
    cells = np.zeros((sets, 1 + WORDS), np.int64)
    for _ in range(2):  # what comes again counts once
        cell = np.repeat(np.arange(sets), count)
        add_registers(cells, 1, cell, (hash_columns(names, ("v",)), NONE), 0, np.zeros((0, 0), np.int64))
    found = estimates(cells[:, 1:])
    if count < 2:
        assert found.tolist() == [count] * sets
        return
    errors = found / count - 1
    assert np.sqrt((errors**2).mean()) < 0.055
    assert abs(errors.mean()) < 0.015
    assert (np.abs(errors) < 3 * 0.046).mean() > 0.98


def test_quantiles_of_what_no_double_holds_and_of_infinities():
    def quantile(values, q):
        places = np.zeros(len(values), np.int64)
        return row_aggregate(Aggregate("quantile", "v", "a", quantile=q), values, places, 1).to_pylist()[0]

    assert quantile(pa.array([2**53 + 1, 2**60 + 1]), 1.0) == 2.0**60
    infinite = float("inf")
    for values, wanted in (([-infinite, 1.0], -infinite), ([1.0, infinite], infinite), ([infinite] * 2, infinite)):
        assert quantile(pa.array(values), 0.25) == wanted
    assert quantile(pa.array([-1.7e308, 1.7e308]), 0.5) == 0.0
