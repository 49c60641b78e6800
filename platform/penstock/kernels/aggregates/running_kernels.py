"""Kernels of running aggregates: one pass per accumulator that updates a cell and writes its value after each row.

As `kernels.aggregates.aggregate`, but in order of rows and with a result for each row: `out[w, i]` is word w of row i's
cell just after that row. Cells are found by `kernels.aggregates.pages.locate`; `run_rows` comes first and brings them
into the CPU's caches.
"""

from __future__ import annotations

from typing import Any

from penstock.kernels.aggregates.merge import FIRST, MAX_F, MAX_I, MIN_F, MIN_I, SUM_F, SUM_I
from penstock.kernels.compiler.compile import (
    F64,
    F64_IN,
    F64_ROWS,
    I64,
    I64_IN,
    I64_OUT,
    I64_ROWS,
    U8,
    U8_IN,
    U8_OUT,
    i8,
    kernel,
    njit,
    tuple_of,
)

#: Counts the non-null values; extends the numbers of `kernels.aggregates.merge`.
COUNT_VALID = 9

_AT = tuple_of(i8, i8)
_INTEGERS = tuple_of(I64_IN, U8_IN)
_FLOATS = tuple_of(F64_IN, U8_IN)
_TIMED = tuple_of(I64_IN, I64_IN, U8_IN)


@njit
def _is_valid(bitmap: Any, bit: Any) -> Any:
    return len(bitmap) == 0 or ((bitmap[bit >> 3] >> (bit & 7)) & 1) == 1


@kernel(i8(I64_ROWS, I64_IN, I64_OUT))
def run_rows(cells: I64, cell: I64, out: I64) -> int:
    """Count every row in its cell and mark the cell dirty; return how many cells were clean before."""
    fresh = 0
    for i in range(len(cell)):
        word = cells[cell[i], 0]
        fresh += 1 - (word & 1)
        word = (word + 2) | 1
        cells[cell[i], 0] = word
        out[i] = word >> 1
    return fresh


@kernel(i8(I64_ROWS, _AT, I64_IN, _INTEGERS, i8, I64_ROWS))
def run_i64(cells: I64, at: tuple[int, int], cell: I64, column: tuple[I64, U8], bit_offset: int, out: I64) -> int:
    """Compute sum, minimum, maximum or number of integers; `at` = (operation, word).

    Returns the number of overflowed additions.
    """
    op, word = at
    values, bitmap = column
    overflow = 0
    for i in range(len(cell)):
        old = cells[cell[i], word]
        if _is_valid(bitmap, bit_offset + i):
            if op == SUM_I:
                value = values[i]
                new = old + value
                overflow += ((old ^ new) & (value ^ new)) < 0
                old = new
            elif op == MIN_I:
                old = min(old, values[i])
            elif op == MAX_I:
                old = max(old, values[i])
            elif op == COUNT_VALID:
                old += 1
            cells[cell[i], word] = old
        out[word, i] = old
    return overflow


@kernel(i8(F64_ROWS, _AT, I64_IN, _FLOATS, i8, F64_ROWS))
def run_f64(cells: F64, at: tuple[int, int], cell: I64, column: tuple[F64, U8], bit_offset: int, out: F64) -> int:
    """Compute sum, minimum or maximum of floats; NaN counts as the largest."""
    op, word = at
    values, bitmap = column
    for i in range(len(cell)):
        old = cells[cell[i], word]
        if _is_valid(bitmap, bit_offset + i):
            value = values[i]
            if op == SUM_F:
                old += value
            elif op == MIN_F:
                if value < old or old != old:  # noqa: PLR0124 - NaN
                    old = value
            elif op == MAX_F and (value > old or value != value):  # noqa: PLR0124
                old = value
            cells[cell[i], word] = old
        out[word, i] = old
    return 0


@kernel(i8(F64_ROWS, _AT, I64_IN, _FLOATS, i8, F64_ROWS))
def run_moments(cells: F64, at: tuple[int, int], cell: I64, column: tuple[F64, U8], bit_offset: int, out: F64) -> int:
    """Apply Welford's update of (count, mean, sum of squared deviations) in three words."""
    word = at[1]
    values, bitmap = column
    for i in range(len(cell)):
        row = cell[i]
        count, mean, squares = cells[row, word], cells[row, word + 1], cells[row, word + 2]
        if _is_valid(bitmap, bit_offset + i):
            count += 1.0
            delta = values[i] - mean
            mean += delta / count
            squares += delta * (values[i] - mean)
            cells[row, word], cells[row, word + 1], cells[row, word + 2] = count, mean, squares
        out[word, i], out[word + 1, i], out[word + 2, i] = count, mean, squares
    return 0


@kernel(i8(I64_ROWS, _AT, I64_IN, _TIMED, i8, I64_ROWS))
def run_timed(
    cells: I64, at: tuple[int, int], cell: I64, column: tuple[I64, I64, U8], bit_offset: int, out: I64
) -> int:
    """Keep (event time, value) of the earliest or the latest row; of equal times, of the first or the last row."""
    op, word = at
    times, values, bitmap = column
    for i in range(len(cell)):
        row = cell[i]
        time = cells[row, word]
        if _is_valid(bitmap, bit_offset + i) and (times[i] < time if op == FIRST else times[i] >= time):
            time = times[i]
            cells[row, word] = time
            cells[row, word + 1] = values[i]
        out[word, i] = time
        out[word + 1, i] = cells[row, word + 1]
    return 0


@kernel(i8(I64_ROWS, i8, I64_IN, I64_IN, U8_OUT))
def keep_rows(cells: I64, op: int, cell: I64, order: I64, kept: U8) -> int:
    """Set for every row whether it replaces the kept row of its key, by `order` (FIRST: if less; LAST: if not less).

    Word 1 of a cell is the order of the kept row, word 0 marks that there is one. Returns how many cells were clean
    before.
    """
    fresh = 0
    for i in range(len(cell)):
        row = cell[i]
        word = cells[row, 0]
        value = order[i]
        if word >> 1 == 0 or (value < cells[row, 1] if op == FIRST else value >= cells[row, 1]):
            fresh += 1 - (word & 1)
            cells[row, 0] = 3
            cells[row, 1] = value
            kept[i] = 1
        else:
            kept[i] = 0
    return fresh
