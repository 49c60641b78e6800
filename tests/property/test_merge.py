"""Panes of a window merged into one cell a key, and what was combined before the shuffle, against plain Python."""

import math
import struct

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.kernels.aggregates.merge import merge_cells, merge_panes
from penstock.kernels.keys.key_columns import FixedColumn
from penstock.operators.aggregates.combine import Partials
from penstock.state.cells.accumulators import AccumulatorInput, AccumulatorSpec, PaneTableSpec

KEYS = pa.schema([pa.field("k", pa.int64(), nullable=False)])
PAGE = 4096
ACCUMULATORS = [
    *(AccumulatorSpec(f"{how}_i", "int64", how) for how in ("sum", "min", "max", "first", "last")),
    *(AccumulatorSpec(f"{how}_f", "float64", how) for how in ("sum", "min", "max", "moments")),
]
SPEC = PaneTableSpec(KEYS, tuple(ACCUMULATORS))
FLOATS = (0.0, 1.5, -2.25, 1e300, float("inf"), float("nan"))


def real(word):
    return struct.unpack("<d", struct.pack("<q", word))[0]


def bits(value):
    return struct.unpack("<q", struct.pack("<d", value))[0]


def least(one, other):
    """NaN is the greatest of all."""
    return min(one, other) if one == one and other == other else (one if other != other else other)  # noqa: PLR0124


def merged(old, new):
    """Merge two cells, word 0 left out."""
    result = list(old)
    for spec, w in zip(SPEC.accumulators, SPEC.words, strict=True):
        a, b, floats = old[w], new[w], spec.dtype == "float64"
        if spec.combine == "moments":
            (n, mean, spread), (m, other, more) = ([real(cell[w + i]) for i in range(3)] for cell in (old, new))
            if m > 0.0:
                delta = other - mean
                words = (n + m, mean + delta * m / (n + m), spread + (more + delta * delta * n * m / (n + m)))
                result[w : w + 3] = map(bits, words)
        elif spec.combine == "sum":
            result[w] = bits(real(a) + real(b)) if floats else a + b
        elif spec.combine in ("min", "max") and not floats:
            result[w] = (min if spec.combine == "min" else max)(a, b)
        elif spec.combine == "min":
            result[w] = a if bits(least(real(a), real(b))) == a else b
        elif spec.combine == "max":
            result[w] = b if real(b) > real(a) or math.isnan(real(b)) else a
        elif b < a if spec.combine == "first" else b >= a:
            result[w : w + 2] = new[w : w + 2]
    return result


def some_cells(chance, count):
    cells = chance.integers(-50, 50, (count, SPEC.width))
    for spec, w in zip(SPEC.accumulators, SPEC.words, strict=True):
        if spec.dtype == "float64" and spec.combine != "moments":
            cells[:, w] = chance.choice(FLOATS, count).view(np.int64)
        elif spec.combine == "moments":
            seen = chance.integers(0, 4, count).astype(np.float64)
            cells[:, w] = seen.view(np.int64)
            cells[:, w + 1] = chance.normal(size=count).view(np.int64)
            cells[:, w + 2] = (seen * chance.random(count)).view(np.int64)
    return cells


@examples(40)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 1 << 32))
def test_panes_are_merged_as_cells_one_after_the_other(panes, blocks, seed):
    chance = np.random.default_rng(seed)
    pages = np.full((panes, blocks), -1, np.int32)
    there = chance.random((panes, blocks)) < 0.8
    pages[there] = chance.permutation(panes * blocks)[: there.sum()]
    cells = np.zeros((panes * blocks * PAGE, SPEC.width), np.int64)
    used = chance.choice(len(cells), 60 * panes, replace=False)
    cells[used] = some_cells(chance, len(used))
    cells[used, 0] = 2 * chance.integers(1, 9, len(used)) + chance.integers(0, 2, len(used))
    wanted = {}
    for block in range(blocks):
        for page in pages[:, block].tolist():
            for row in np.flatnonzero(cells[page * PAGE : (page + 1) * PAGE, 0]).tolist() if page >= 0 else ():
                cell, slot = cells[page * PAGE + row].tolist(), block * PAGE + row
                rows, old = cell[0] >> 1, wanted.get(slot)
                wanted[slot] = [rows, *cell[1:]] if old is None else [old[0] + rows, *merged(old, cell)[1:]]
    slots, out = np.empty(2 * PAGE, np.int32), np.empty((2 * PAGE, SPEC.width), np.int64)
    state, found = np.zeros(2, np.int64), {}
    while state[0] < blocks:
        count = merge_panes(cells, pages, SPEC.ops, slots, out, state)
        found |= dict(zip(slots[:count].tolist(), out[:count].tolist(), strict=True))
    assert found == wanted
    assert list(found) == sorted(found), "in order of slots"
    assert state[1] == 0


@examples(60)
@given(st.integers(1, 60), st.integers(0, 1 << 32))
def test_cells_are_merged_in_order(count, seed):
    chance = np.random.default_rng(seed)
    into, given_, at = some_cells(chance, 5), some_cells(chance, count), chance.integers(0, 5, count)
    for cells in (into, given_):
        cells[:, 0] = 2 * chance.integers(1, 9, len(cells)) + chance.integers(0, 2, len(cells))
    wanted = into.tolist()
    for place, cell in zip(at.tolist(), given_.tolist(), strict=True):
        rows = wanted[place][0] + cell[0] - cell[0] % 2 | 1
        wanted[place] = [rows, *merged(wanted[place], cell)[1:]]
    assert merge_cells(into, at, given_, SPEC.ops) == 0
    assert into.tolist() == wanted


def test_sums_that_leave_64_bits_are_counted():
    spec = PaneTableSpec(KEYS, (AccumulatorSpec("s", "int64", "sum"),))
    cells, most = np.zeros((3 * PAGE, spec.width), np.int64), (1 << 63) - 1
    cells[[5, PAGE + 5, 2 * PAGE + 5]] = [[2, most], [2, 1], [2, -1]]
    slots, out, state = np.empty(PAGE, np.int32), np.empty((PAGE, spec.width), np.int64), np.zeros(2, np.int64)
    assert merge_panes(cells, np.array([[0], [1], [2]], np.int32), spec.ops, slots, out, state) == 1
    assert state.tolist() == [1, 2], "up and down again"
    assert merge_cells(cells, np.array([5]), np.array([[2, 1]]), spec.ops) == 1


@examples(60)
@given(st.integers(1, 300), st.integers(1, 5), st.integers(0, 1 << 32))
def test_near_keys_are_grouped_as_keys_far_apart_are(rows, panes, seed):
    """Near ones are numbered by themselves, the others by the index."""
    chance, spec = np.random.default_rng(seed), PaneTableSpec(KEYS, (AccumulatorSpec("s", "int64", "sum"),))
    times, values = chance.integers(0, 10 * panes, rows), chance.integers(-9, 9, rows)
    near = chance.integers(-20, 20, rows)
    none = np.zeros(0, np.uint8)
    found = [
        Partials(spec, 10, 0).reduce((FixedColumn(keys),), times, [AccumulatorInput(values, none)], rows)
        for keys in (near, near * 1_000_003)
    ]
    for one, other in ((getattr(part, name) for part in found) for name in ("first_rows", "panes", "cells")):
        assert one.tolist() == other.tolist()
    groups = dict.fromkeys(zip(near.tolist(), (times // 10).tolist(), strict=True))
    assert len(found[0].panes) == len(groups)
    assert [(int(near[at]), int(times[at]) // 10) for at in found[0].first_rows] == list(groups)
