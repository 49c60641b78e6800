"""One pass over a batch of a windowed aggregate: pane of the row, its cell, every accumulator.

For the common case of `operators.windows.window_aggregate`: late rows are only counted, windows have no gaps, no page
is frozen and no row is in a cold store. If the pass needs a new pane or a free page it returns a reason, and continues
at the same row when called again. Accumulators with more state (`first`, `last`, moments) use `pages.locate` and
`kernels.aggregates.aggregate` instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiler.compile import (
    I32,
    I32_IN,
    I32_ROWS,
    I64,
    I64_IN,
    I64_OUT,
    I64_ROWS,
    I64_ROWS_IN,
    i8,
    intrinsic,
    kernel,
    njit,
    tuple_of,
    types,
    word_at,
)

#: Reasons why the pass stopped, in state[5]; the same as those of `pages.locate`.
DONE, NEED_PANES, NEED_PAGES = 0, 1, 2
#: The operation of an accumulator: the first column of `inputs`.
COUNT, SUM_I, MIN_I, MAX_I, SUM_F, MIN_F, MAX_F = 0, 1, 2, 3, 4, 5, 6
#: Columns of `inputs`: operation, word of the cell, address of the values, address of the bitmap (0: none), first bit.
INPUT_COLUMNS = 5
#: Number of panes whose place is cached, and how many of them precede the pane of the first row.
_CACHED_PANES, _PANES_BEFORE = 64, 16
#: Rows of a block. Numba counts references at each call of a helper: fewer rows cost up to 2 ns a row, more gained
#: nothing.
_BLOCK = 1024
_PAGE_BITS = 12
_PAGE_MASK = (1 << _PAGE_BITS) - 1
_DIRTY, _PANE, _FIRST_SLOT, _ORPHAN, _FROZEN = 1, 2, 3, 4, 0
_U = np.uint64

_ROWS = tuple_of(I32_IN, I64_IN)
_TABLES = tuple_of(I64_IN, I32_ROWS, I64_ROWS, I64_OUT)


def _float_at(_typing: Any, _address: Any) -> Any:
    """Return the double at an address."""
    return types.float64(types.int64), _loader(0)


def _byte_at(_typing: Any, _address: Any) -> Any:
    """Return the byte at an address."""
    return types.uint8(types.int64), _loader(8)


def _loader(bits: int) -> Any:
    from llvmlite import ir

    kind: Any = ir.IntType(bits) if bits else ir.DoubleType()

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], kind.as_pointer()))

    return generate


float_at: Any = intrinsic(_float_at)
byte_at: Any = intrinsic(_byte_at)


@njit
def _row_of_pane(pane_index: Any, pane: Any) -> Any:
    # as `pages._pane_row`; a helper must be in the module of its kernel
    h = np.uint64(pane) * np.uint64(0x9E3779B185EBCA87)
    mask = len(pane_index) // 2 - 1
    at = np.int64(h ^ (h >> np.uint64(29))) & mask
    while pane_index[2 * at + 1] != 0:
        if pane_index[2 * at] == pane:
            return pane_index[2 * at + 1] - 1
        at = (at + 1) & mask
    return np.int64(-1)


@njit
def _take_page(tables: Any, target: Any, state: Any, place: Any) -> Any:
    """Put a free, cleared page in its place (pane row, slot page, pane start); return -1 if there is none."""
    _, page_table, meta, free = tables
    cells, initial = target
    pane_row, block, pane = place
    if state[2] == 0:
        return np.int64(-1)
    state[2] -= 1
    page = free[state[2]]
    page_table[pane_row, block] = page
    meta[page, _FROZEN] = 0
    meta[page, _PANE] = pane
    meta[page, _FIRST_SLOT] = block << _PAGE_BITS
    meta[page, _ORPHAN] = 0
    for r in range(_U(page << _PAGE_BITS), _U((page + 1) << _PAGE_BITS)):
        for w in range(len(initial)):
            cells[r, w] = initial[w]
    return page


@njit
def _valid(bitmap: Any, bit: Any) -> Any:
    return bitmap == 0 or (byte_at(bitmap + (bit >> 3)) >> np.uint8(bit & 7)) & 1 == 1


@njit
def _count_and_sum(ints: Any, places: Any, rows: Any, given: Any) -> Any:
    """Count consecutive rows and add them to a sum without nulls; return 1 if an addition overflowed."""
    first, count = rows
    word, values = _U(given[1]), given[2] + 8 * np.int64(first)
    wrong = np.int64(0)
    for j in range(_U(0), _U(count)):
        cell = _U(places[j])
        old, value = ints[cell, word], word_at(values + 8 * np.int64(j))
        new = old + value
        wrong |= (old ^ new) & (value ^ new)
        ints[cell, word] = new
        ints[cell, 0] = (ints[cell, 0] + 2) | 1
    return np.int64(wrong < 0)


@njit
def _add(cells: Any, places: Any, row_of: Any, count: Any, given: Any) -> Any:
    """Add `count` rows to one accumulator of their cells; return the number of overflowed integer sums."""
    ints, floats = cells
    op, word, values, bitmap, first_bit = given[0], _U(given[1]), given[2], given[3], given[4]
    overflowed = 0
    if op == SUM_I and bitmap == 0:
        for j in range(_U(0), _U(count)):
            cell = _U(places[j])
            old, value = ints[cell, word], word_at(values + 8 * np.int64(row_of[j]))
            new = old + value
            overflowed += ((old ^ new) & (value ^ new)) < 0
            ints[cell, word] = new
        return overflowed
    for j in range(_U(0), _U(count)):
        row = np.int64(row_of[j])
        if not _valid(bitmap, first_bit + row):
            continue
        cell, at = _U(places[j]), values + 8 * row
        if op == COUNT:
            ints[cell, word] += 1
        elif op == SUM_I:
            old, value = ints[cell, word], word_at(at)
            new = old + value
            overflowed += ((old ^ new) & (value ^ new)) < 0
            ints[cell, word] = new
        elif op == MIN_I:
            ints[cell, word] = min(ints[cell, word], word_at(at))
        elif op == MAX_I:
            ints[cell, word] = max(ints[cell, word], word_at(at))
        elif op == SUM_F:
            floats[cell, word] += float_at(at)
        else:
            known, real = floats[cell, word], float_at(at)
            if op == MIN_F:  # NaN sorts last
                if real < known or known != known:  # noqa: PLR0124 - NaN
                    floats[cell, word] = real
            elif real > known or real != real:  # noqa: PLR0124
                floats[cell, word] = real
    return overflowed


@njit
def _scale(length: Any) -> Any:
    """Return (shift, factor, second shift) to divide a distance below 2^31 << shift by `length`.

    (distance >> shift) * factor >> second is the quotient; with a shift it may be one too small.
    """
    shift = _U(0)
    while (length >> shift) >= _U(1 << 26):
        shift += _U(1)
    short = (length >> shift) + (_U(1) if shift else _U(0))
    second = _U(31)
    while (_U(1) << (second - _U(31))) < short:
        second += _U(1)
    factor = (_U(1) << second) // short
    if shift == 0 and factor * short != (_U(1) << second):
        factor += _U(1)
    return shift, factor, second


@njit
def _known_places(rows: Any, timing: Any, tables: Any, block: Any, state: Any) -> Any:
    """Do the work of `_places` for a whole block without branches.

    Return False if a row is late or its page is missing.

    Row numbers are not written, as the rows are consecutive.
    """
    slots, times = rows
    window, (_, factor, second), anchor = timing
    _, page_table, meta, _ = tables
    places, _, pane_rows = block
    begin, base = _U(state[0]), anchor[0]
    earliest, latest = times[begin], times[begin]
    for j in range(_U(0), _U(_BLOCK)):
        earliest = min(earliest, times[begin + j])
        latest = max(latest, times[begin + j])
    span = min(_U(_CACHED_PANES * window[0]), _U(1 << 31))
    if earliest < max(window[2], base) or latest > window[3] or _U(latest - base) >= span:
        return False
    known = np.int64(0)
    for j in range(_U(0), _U(_BLOCK)):
        slot = _U(slots[begin + j])
        pane_row = pane_rows[_U(times[begin + j] - base) * factor >> second]
        page = np.int64(page_table[_U(max(pane_row, np.int64(0))), slot >> _U(_PAGE_BITS)])
        known |= pane_row | page
        places[j] = (page << _PAGE_BITS) + np.int64(slot & _U(_PAGE_MASK))
    if known < 0:
        return False
    for j in range(_U(0), _U(_BLOCK)):
        meta[_U(places[j] >> _PAGE_BITS), _DIRTY] = 1
    return True


@njit
def _places(rows: Any, timing: Any, tables: Any, target: Any, block: Any, state: Any) -> Any:
    """Write the cell of each row of the next block that is in time; return their number.

    Row numbers are written unless all rows are in time.
    """
    slots, times = rows
    window, (shift, factor, second), anchor = timing
    pane_index, page_table, meta, _ = tables
    places, row_of, pane_rows = block
    length, latest = _U(window[0]), window[3]
    earliest = max(window[2], -latest)
    base = anchor[0]
    span = min(_U(_CACHED_PANES) * length, _U(1 << 31) << shift)
    begin = state[0]
    if not shift and len(slots) - begin >= _BLOCK and _known_places(rows, timing, tables, block, state):
        state[0] = begin + _BLOCK
        return _U(_BLOCK)
    count = _U(0)
    for j in range(_U(begin), _U(min(begin + _BLOCK, len(slots)))):
        t = times[j]
        if t < earliest or t > latest:
            if t < -latest or t > latest:
                state[3] += 1
            else:
                state[1] += 1
            continue
        distance = _U(t - base)
        if distance >= span:
            base = t - (t - window[1]) % window[0] - _PANES_BEFORE * window[0]
            anchor[0] = base
            pane_rows[:] = -1
            distance = _U(t - base)
        number = (distance >> shift) * factor >> second
        if shift:
            number += _U(distance - number * length >= length)
        pane_row = pane_rows[number]
        if pane_row < 0:
            pane_row = _row_of_pane(pane_index, base + np.int64(number * length))
            if pane_row < 0:
                state[0], state[4], state[5] = j, base + np.int64(number * length), NEED_PANES
                return count
            pane_rows[number] = pane_row
        slot = _U(slots[j])
        page = np.int64(page_table[_U(pane_row), slot >> _U(_PAGE_BITS)])
        if page < 0:
            place = (pane_row, np.int64(slot >> _U(_PAGE_BITS)), base + np.int64(number * length))
            page = _take_page(tables, target, state, place)
            if page < 0:
                state[0], state[5] = j, NEED_PAGES
                return count
        meta[_U(page), _DIRTY] = 1
        places[count] = (page << _PAGE_BITS) + np.int64(slot & _U(_PAGE_MASK))
        row_of[count] = j
        count += _U(1)
    state[0] = min(begin + _BLOCK, len(slots))
    return count


@kernel(
    i8(_ROWS, I64_IN, _TABLES, tuple_of(I64_ROWS, types.Array(types.float64, 2, "C")), tuple_of(I64_IN, I64_ROWS_IN),
       I64_OUT)
)  # fmt: skip
def accumulate(
    rows: tuple[I32, I64],
    window: I64,
    tables: tuple[I64, I32, I64, I64],
    cells: tuple[I64, Any],
    work: tuple[I64, I64],
    state: I64,
) -> Any:
    """Add the rows from `state[0]` on to their cells, creating pages as needed; return the row reached.

    `rows` = (slots, event times); `window` = [length of a pane, offset, first open start, latest possible time];
    `tables` = (pane index, page table, page meta, stack of free pages); `cells` twice, as int64 and as float64; `work`
    = (an empty cell, inputs). `state` = [row, late rows, free pages, rows of impossible time, missing pane, reason,
    overflowed sums].

    Each block first computes the places of its rows, with data in the L1 cache. Then one loop per accumulator follows,
    short enough for the processor to wait for many cells at once.
    """
    places, row_of = np.empty(_BLOCK, np.int64), np.empty(_BLOCK, np.int32)
    pane_rows = np.full(_CACHED_PANES, -1, np.int64)
    scale = _scale(_U(window[0]))
    # the cached panes start at `anchor[0]`
    anchor = np.full(1, window[1], np.int64)
    state[5] = DONE
    sums_first = len(work[1]) > 0 and work[1][0, 0] == SUM_I and work[1][0, 3] == 0
    while state[5] == DONE and state[0] < len(rows[0]):
        begin, left = state[0], 0
        count = _places(rows, (window, scale, anchor), tables, (cells[0], work[0]), (places, row_of, pane_rows), state)
        in_a_row = count == _U(state[0] - begin)
        if in_a_row and sums_first:
            state[6] += _count_and_sum(cells[0], places, (begin, count), work[1][0])
            left = 1
        else:
            for j in range(_U(0), _U(count)):
                cells[0][_U(places[j]), 0] = (cells[0][_U(places[j]), 0] + 2) | 1
        if in_a_row and left < len(work[1]):
            for j in range(_U(0), _U(count)):
                row_of[j] = np.int32(_U(begin) + j)
        for k in range(left, len(work[1])):
            state[6] += _add(cells, places, row_of, count, work[1][k])
    return state[0]
