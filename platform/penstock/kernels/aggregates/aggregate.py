"""Kernels that add rows to accumulators: one pass per accumulator over (cell of row, value of row).

Cells are rows of words (int64; floats are the same memory as float64). Word 0 holds twice the number of rows of the
cell; its lowest bit is set if the cell changed since the last freeze. So one word tells both present and dirty.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiler.compile import (
    F64,
    F64_IN,
    F64_ROWS,
    I32_IN,
    I64,
    I64_IN,
    I64_OUT,
    I64_ROWS,
    U8,
    U8_IN,
    i8,
    kernel,
    njit,
    tuple_of,
)

_U = np.uint64

_TIMED = tuple_of(I64_IN, I64_IN)
_HASHED = tuple_of(I64_IN, U8_IN)
#: Of HyperLogLog (`operators.aggregates.aggregate_plan`): bits of a hash that select the register, and the words of the
#: registers.
_REGISTER_BITS, _REGISTER_WORDS = 9, 64
#: Rows of a batch that are sampled.
_LOOKED = 256


@njit
def _is_valid(bitmap: Any, bit: Any) -> Any:
    return len(bitmap) == 0 or ((bitmap[bit >> 3] >> (bit & 7)) & 1) == 1


@njit
def _often_same_cell(cell: Any) -> Any:
    """Return whether neighbouring rows often have the same cell, as where a few keys have most rows."""
    alike, looked = 0, min(len(cell), _LOOKED)
    for i in range(1, looked):
        alike += cell[i] == cell[i - 1]
    return 8 * alike > looked


@kernel(i8(I64_ROWS, I64_IN))
def add_rows(cells: I64, cell: I64) -> int:
    """Count every row in its cell and mark the cell dirty.

    A count that was just written can be read only some cycles later, so rows of one cell wait for each other. Where
    that happens often, four rows are counted at a time: all cells are read, then written, each with the later rows of
    the same cell included.
    """
    four, rows = _U(4), _U(len(cell))
    alone = rows & ~_U(3) if _often_same_cell(cell) else _U(0)
    for i in range(_U(0), alone, four):  # unsigned, as numba tests every signed position for being negative
        a, b, c, d = _U(cell[i]), _U(cell[i + _U(1)]), _U(cell[i + _U(2)]), _U(cell[i + _U(3)])
        of_a, of_b, of_c, of_d = cells[a, 0], cells[b, 0], cells[c, 0], cells[d, 0]
        cells[d, 0] = (of_d + 2) | 1
        cells[c, 0] = (of_c + 2 + 2 * (c == d)) | 1
        cells[b, 0] = (of_b + 2 + 2 * ((b == c) + (b == d))) | 1
        cells[a, 0] = (of_a + 2 + 2 * ((a == b) + (a == c) + (a == d))) | 1
    for i in range(alone, rows):
        at = _U(cell[i])
        cells[at, 0] = (cells[at, 0] + 2) | 1
    return len(cell)


@kernel(i8(I64_ROWS, i8, I64_IN, U8_IN, i8))
def add_valid(cells: I64, word: int, cell: I64, bitmap: U8, bit_offset: int) -> int:
    """Count the rows that are not null."""
    for i in range(len(cell)):
        if _is_valid(bitmap, bit_offset + i):
            cells[cell[i], word] += 1
    return len(cell)


@kernel(i8(I64_ROWS, i8, I64_IN, I64_IN, U8_IN, i8))
def sum_i64(cells: I64, word: int, cell: I64, values: I64, bitmap: U8, bit_offset: int) -> int:
    """Add integers; return the number of overflowed additions."""
    overflow = 0
    if len(bitmap) == 0:
        for i in range(len(cell)):
            old, value = cells[cell[i], word], values[i]
            new = old + value
            overflow += ((old ^ new) & (value ^ new)) < 0
            cells[cell[i], word] = new
        return overflow
    for i in range(len(cell)):
        if _is_valid(bitmap, bit_offset + i):
            old, value = cells[cell[i], word], values[i]
            new = old + value
            overflow += ((old ^ new) & (value ^ new)) < 0
            cells[cell[i], word] = new
    return overflow


@kernel(i8(I64_ROWS, i8, I64_IN, I64_IN, U8_IN, i8))
def min_i64(cells: I64, word: int, cell: I64, values: I64, bitmap: U8, bit_offset: int) -> int:
    """Keep the smallest integer."""
    for i in range(len(cell)):
        if _is_valid(bitmap, bit_offset + i):
            cells[cell[i], word] = min(cells[cell[i], word], values[i])
    return 0


@kernel(i8(I64_ROWS, i8, I64_IN, I64_IN, U8_IN, i8))
def max_i64(cells: I64, word: int, cell: I64, values: I64, bitmap: U8, bit_offset: int) -> int:
    """Keep the largest integer."""
    for i in range(len(cell)):
        if _is_valid(bitmap, bit_offset + i):
            cells[cell[i], word] = max(cells[cell[i], word], values[i])
    return 0


@kernel(i8(F64_ROWS, i8, I64_IN, F64_IN, U8_IN, i8))
def sum_f64(cells: F64, word: int, cell: I64, values: F64, bitmap: U8, bit_offset: int) -> int:
    """Add floats."""
    for i in range(len(cell)):
        if _is_valid(bitmap, bit_offset + i):
            cells[cell[i], word] += values[i]
    return 0


@kernel(i8(F64_ROWS, i8, I64_IN, F64_IN, U8_IN, i8))
def min_f64(cells: F64, word: int, cell: I64, values: F64, bitmap: U8, bit_offset: int) -> int:
    """Keep the smallest float; NaN counts as the largest."""
    for i in range(len(cell)):
        if _is_valid(bitmap, bit_offset + i):
            old, value = cells[cell[i], word], values[i]
            if value < old or old != old:  # noqa: PLR0124 - NaN
                cells[cell[i], word] = value
    return 0


@kernel(i8(F64_ROWS, i8, I64_IN, F64_IN, U8_IN, i8))
def max_f64(cells: F64, word: int, cell: I64, values: F64, bitmap: U8, bit_offset: int) -> int:
    """Keep the largest float; NaN counts as the largest."""
    for i in range(len(cell)):
        if _is_valid(bitmap, bit_offset + i):
            old, value = cells[cell[i], word], values[i]
            if value > old or value != value:  # noqa: PLR0124 - NaN
                cells[cell[i], word] = value
    return 0


@kernel(i8(F64_ROWS, i8, I64_IN, F64_IN, U8_IN, i8))
def moments_f64(cells: F64, word: int, cell: I64, values: F64, bitmap: U8, bit_offset: int) -> int:
    """Apply Welford's update of (count, mean, sum of squared deviations) in three words."""
    for i in range(len(cell)):
        if _is_valid(bitmap, bit_offset + i):
            at = cell[i]
            count = cells[at, word] + 1.0
            delta = values[i] - cells[at, word + 1]
            mean = cells[at, word + 1] + delta / count
            cells[at, word] = count
            cells[at, word + 1] = mean
            cells[at, word + 2] += delta * (values[i] - mean)
    return 0


@kernel(i8(I64_ROWS, i8, I64_IN, _TIMED, U8_IN, i8))
def first_i64(cells: I64, word: int, cell: I64, timed: tuple[I64, I64], bitmap: U8, bit_offset: int) -> int:
    """Keep (event time, value) of the earliest row; of equal times, of the first row."""
    times, values = timed
    for i in range(len(cell)):
        if _is_valid(bitmap, bit_offset + i) and times[i] < cells[cell[i], word]:
            cells[cell[i], word] = times[i]
            cells[cell[i], word + 1] = values[i]
    return 0


@kernel(i8(I64_ROWS, i8, I64_IN, _TIMED, U8_IN, i8))
def last_i64(cells: I64, word: int, cell: I64, timed: tuple[I64, I64], bitmap: U8, bit_offset: int) -> int:
    """Keep (event time, value) of the latest row; of equal times, of the last row."""
    times, values = timed
    for i in range(len(cell)):
        if _is_valid(bitmap, bit_offset + i) and times[i] >= cells[cell[i], word]:
            cells[cell[i], word] = times[i]
            cells[cell[i], word + 1] = values[i]
    return 0


@kernel(i8(I64_ROWS, i8, I64_IN, _HASHED, i8, I64_ROWS))
def add_registers(cells: I64, word: int, cell: I64, column: tuple[I64, U8], bit_offset: int, out: I64) -> int:
    """Raise the register of each hash to the position of the first 1 among its other bits.

    `out[word + k, i]` is word k of the registers just after row i, if `out` has rows.
    """
    hashes, bitmap = column
    for i in range(len(cell)):
        at = cell[i]
        if _is_valid(bitmap, bit_offset + i):
            bits = np.uint64(hashes[i])
            register = np.int64(bits >> np.uint64(64 - _REGISTER_BITS))
            bits <<= np.uint64(_REGISTER_BITS)
            rank = np.int64(1)
            while rank <= 64 - _REGISTER_BITS and bits >> np.uint64(63) == 0:
                bits <<= np.uint64(1)
                rank += 1
            place, shift = word + (register >> 3), np.uint64(8 * (register & 7))
            old = np.uint64(cells[at, place])
            if np.int64((old >> shift) & np.uint64(255)) < rank:
                kept = old & ~(np.uint64(255) << shift)
                cells[at, place] = np.int64(kept | (np.uint64(rank) << shift))
        if len(out) > 0:
            for k in range(_REGISTER_WORDS):
                out[word + k, i] = cells[at, word + k]
    return 0


@kernel(i8(I32_IN, I64_IN, I64_OUT))
def group_max(index: I64, values: I64, out: I64) -> int:
    """Raise `out[index[i]]` to `values[i]`."""
    for i in range(len(index)):
        out[index[i]] = max(out[index[i]], values[i])
    return len(index)


def max_by_group(index: I64, values: I64, groups: int) -> I64:
    """Return the largest value of each of `groups` groups; the smallest int64 for a group without rows."""
    out = np.full(groups, np.iinfo(np.int64).min, np.int64)
    group_max(np.ascontiguousarray(index, np.int32), np.ascontiguousarray(values, np.int64), out)
    return out
