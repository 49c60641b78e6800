"""Kernels that merge cells: panes of a window, panes of a session, and cells combined before the shuffle.

Values of variable length, to which cells only refer, are compared only here, also those of rows.

A cell is a row of words, as in `kernels.aggregates.aggregate`; `ops` tells how to merge each accumulator.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiler.compile import (
    I32,
    I32_OUT,
    I32_ROWS,
    I64,
    I64_IN,
    I64_OUT,
    I64_ROWS,
    I64_ROWS_IN,
    i8,
    kernel,
    njit,
    tuple_of,
    word_at,
)

_U = np.uint64
#: As in `kernels.aggregates.pages`: a module of cached kernels must not depend on constants of another.
_PAGE_BITS = 12
_PAGE_ROWS = 1 << _PAGE_BITS
#: Merge operations; the word of each accumulator is the second column of `ops`.
SUM_I, MIN_I, MAX_I, SUM_F, MIN_F, MAX_F, MOMENTS, FIRST, LAST = 0, 1, 2, 3, 4, 5, 6, 7, 8
#: For values of variable length (`kernels.aggregates.values`), whose word is an address.
MIN_V, MAX_V = 10, 11
#: Registers of `approx_count_distinct`, and their number of words.
REGISTERS, _REGISTER_WORDS = 12, 64

_GIVEN = tuple_of(I64_ROWS_IN, I64_IN)
_ENDED = tuple_of(I32_OUT, I64_ROWS, I64_OUT)
_KEPT = tuple_of(I64_OUT, I64_ROWS)
_AT = tuple_of(i8, i8)


@njit
def _float(word: Any) -> Any:
    return np.int64(word).view(np.float64)


@njit
def _word(value: Any) -> Any:
    return np.float64(value).view(np.int64)


@njit
def _combine_moments(into: Any, at: Any, other: Any, row: Any, word: Any) -> Any:
    left, right = _float(into[at, word]), _float(other[row, word])
    total = left + right
    if right > 0.0:
        mean, spread = _float(into[at, word + 1]), _float(into[at, word + 2])
        delta = _float(other[row, word + 1]) - mean
        into[at, word] = _word(total)
        into[at, word + 1] = _word(mean + delta * right / total)
        into[at, word + 2] = _word(spread + (_float(other[row, word + 2]) + delta * delta * left * right / total))


@njit
def _is_less(left: Any, right: Any) -> Any:
    """Compare the values at two addresses, byte by byte."""
    shorter = min(word_at(left), word_at(right))
    for at in range(8, 8 + shorter, 8):
        ours, theirs = np.uint64(word_at(left + at)), np.uint64(word_at(right + at))
        if ours != theirs:
            return ours < theirs
    return word_at(left) < word_at(right)


@njit
def _extreme(op: Any, old: Any, new: Any) -> Any:
    """Return the address of the smaller (MIN_V) or larger of two values, the old one if they are equal; 0 is none."""
    if new == 0:
        return old
    if old == 0:
        return new
    if op == MIN_V:
        return new if _is_less(new, old) else old
    return new if _is_less(old, new) else old


@njit
def _combine_registers(into: Any, at: Any, other: Any, row: Any, word: Any) -> Any:
    for w in range(word, word + _REGISTER_WORDS):
        ours, theirs = np.uint64(into[at, w]), np.uint64(other[row, w])
        if ours != theirs:
            most = np.uint64(0)
            for shift in range(0, 64, 8):
                mask = np.uint64(255) << np.uint64(shift)
                most |= max(ours & mask, theirs & mask)
            into[at, w] = np.int64(most)


@njit
def _combine(into: Any, at: Any, other: Any, row: Any, ops: Any) -> Any:
    """Merge one cell into another; return 1 if an integer sum overflowed.

    Numba counts references to the arrays at every call, which takes several times as long as the rest. For many cells,
    use `_merge_rows`.
    """
    overflow = 0
    for o in range(len(ops)):
        op, w = ops[o, 0], ops[o, 1]
        old, value = into[at, w], other[row, w]
        if op == SUM_I:
            new = old + value
            overflow |= ((old ^ new) & (value ^ new)) < 0
            into[at, w] = new
        elif op == MIN_I:
            into[at, w] = min(old, value)
        elif op == MAX_I:
            into[at, w] = max(old, value)
        elif op == SUM_F:
            into[at, w] = _word(_float(old) + _float(value))
        elif op == MIN_F:
            if _float(value) < _float(old) or _float(old) != _float(old):
                into[at, w] = value
        elif op == MAX_F:
            if _float(value) > _float(old) or _float(value) != _float(value):
                into[at, w] = value
        elif op == MOMENTS:
            _combine_moments(into, at, other, row, w)
        elif op == FIRST:
            if value < old:
                into[at, w] = value
                into[at, w + 1] = other[row, w + 1]
        elif op == LAST:
            if value >= old:
                into[at, w] = value
                into[at, w + 1] = other[row, w + 1]
        elif op == REGISTERS:
            _combine_registers(into, at, other, row, w)
        elif op >= MIN_V:
            into[at, w] = _extreme(op, old, value)
    return overflow


@njit
def _merge_rows(into: Any, places: Any, other: Any, rows: Any, ops: Any) -> Any:
    """Merge cells into others, in order; return the number of overflowed integer sums."""
    overflowed = 0
    for o in range(len(ops)):
        op, w = ops[o, 0], _U(ops[o, 1])
        if op == SUM_I:
            for i in range(_U(0), _U(len(rows))):
                at = _U(places[i])
                old, value = into[at, w], other[_U(rows[i]), w]
                new = old + value
                overflowed += ((old ^ new) & (value ^ new)) < 0
                into[at, w] = new
        elif op == MIN_I:
            for i in range(_U(0), _U(len(rows))):
                at = _U(places[i])
                into[at, w] = min(into[at, w], other[_U(rows[i]), w])
        elif op == MAX_I:
            for i in range(_U(0), _U(len(rows))):
                at = _U(places[i])
                into[at, w] = max(into[at, w], other[_U(rows[i]), w])
        elif op == SUM_F:
            for i in range(_U(0), _U(len(rows))):
                at = _U(places[i])
                into[at, w] = _word(_float(into[at, w]) + _float(other[_U(rows[i]), w]))
        else:
            for i in range(len(rows)):
                _combine(into, places[i], other, rows[i], ops[o : o + 1])
    return overflowed


@kernel(i8(I64_ROWS, _AT, I64_IN, I64_IN, I64_ROWS))
def keep_extremes(cells: I64, at: tuple[int, int], cell: I64, addresses: I64, out: I64) -> int:
    """Keep the smallest or the largest value of each cell; `at` = (MIN_V or MAX_V, word).

    `out[word, i]` is the value of row i's cell just after that row, if `out` has rows.
    """
    op, word = at
    for i in range(len(cell)):
        found = _extreme(op, cells[cell[i], word], addresses[i])
        cells[cell[i], word] = found
        if len(out) > 0:
            out[word, i] = found
    return 0


@kernel(i8(I64_ROWS, I64_IN, I64_ROWS_IN, I64_ROWS_IN))
def merge_cells(cells: I64, cell: I64, given: I64, ops: I64) -> int:
    """Merge row i of `given` into cell `cell[i]`, in order; return the number of overflowed integer sums."""
    for i in range(_U(0), _U(len(cell))):
        at = _U(cell[i])
        cells[at, 0] = (cells[at, 0] + (given[i, 0] & ~np.int64(1))) | 1
    return int(_merge_rows(cells, cell, given, np.arange(len(cell)), ops))


@kernel(i8(I64_ROWS, I32_ROWS, I64_ROWS_IN, I32_OUT, I64_ROWS, I64_OUT))
def merge_panes(cells: I64, pages: I32, ops: I64, slots: I32, out: I64, state: I64) -> int:
    """Merge the panes of a window per slot.

    `pages[pane, slot page]`, from slot page `state[0]` on while `out` has room.

    Returns the rows written (slots and cells, word 0 = number of rows); `state` = [next slot page, overflowed
    additions].
    """
    count = 0
    index, places, rows = np.empty(_PAGE_ROWS, np.int64), np.empty(_PAGE_ROWS, np.int64), np.empty(_PAGE_ROWS, np.int64)
    while state[0] < pages.shape[1] and count + _PAGE_ROWS <= len(slots):
        index[:] = -1
        for p in range(len(pages)):
            first = np.int64(pages[p, state[0]]) << _PAGE_BITS
            for r in range(_PAGE_ROWS if first >= 0 else 0):
                if cells[first + r, 0] >> 1 != 0:
                    index[r] = 0
        for r in range(_PAGE_ROWS):
            if index[r] == 0:
                index[r], slots[count], out[count, 0] = count, (state[0] << _PAGE_BITS) + r, 0
                count += 1
        for p in range(len(pages)):
            first, more = np.int64(pages[p, state[0]]) << _PAGE_BITS, 0
            for r in range(_PAGE_ROWS if first >= 0 else 0):
                used, at = cells[first + r, 0] >> 1, index[r]
                if used == 0:
                    continue
                if out[at, 0] == 0:
                    for w in range(1, cells.shape[1]):
                        out[at, w] = cells[first + r, w]
                else:
                    places[more], rows[more] = at, first + r
                    more += 1
                out[at, 0] += used
            state[1] += _merge_rows(out, places[:more], cells, rows[:more], ops)
        state[0] += 1
    return count


@kernel(i8(I64_ROWS, I32_ROWS, _GIVEN, _ENDED, _KEPT, I64_OUT))
def take_sessions(
    cells: I64,
    pages: I32,
    rule: tuple[I64, I64],
    ended: tuple[I32, I64, I64],
    kept: tuple[I64, I64],
    state: I64,
) -> Any:
    """Find each slot's sessions in its panes, the newest pane first, and merge those that have ended.

    A cell belongs to the session found before it if its last time is at most a gap before that session's first.
    `pages[pane, slot page]`; `rule` = (ops, [gap, sessions whose last time is at most this have ended, word of the
    first time, word of the last, panes that will be dropped]); `ended` = (slots, cells, cells to remove); `kept` =
    (newest cell of an open session with cells in panes to be dropped, the merged content for it). `state` = [next slot
    page, overflowed additions, ended, removed, kept, smallest last time of an open session]. Continues while there is
    room for a slot page in every pane; returns the sessions that ended.
    """
    ops, numbers = rule
    gap, closed_to, first_word, last_word, going = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    slots, closed, gone = ended
    open_cell, opened = kept
    panes = len(pages)
    while state[0] < pages.shape[1] and state[2] + panes * _PAGE_ROWS <= len(slots):
        for r in range(_PAGE_ROWS):
            low = np.int64(0)
            head, taken, is_closed = np.int64(-1), np.int64(-1), False
            for p in range(panes - 1, -1, -1):
                page = np.int64(pages[p, state[0]])
                if page < 0:
                    continue
                row = (page << _PAGE_BITS) + r
                used = cells[row, 0] >> 1
                if used == 0:
                    continue
                if head >= 0 and cells[row, last_word] + gap >= low:
                    low = min(low, cells[row, first_word])
                    if not is_closed and p >= going:
                        continue
                    if is_closed:
                        closed[taken, 0] += used
                        state[1] += _combine(closed, taken, cells, row, ops)
                    else:
                        if taken < 0:
                            taken = state[4]
                            state[4] += 1
                            open_cell[taken] = head
                            opened[taken] = cells[head]
                            opened[taken, 0] |= 1
                        opened[taken, 0] += 2 * used
                        state[1] += _combine(opened, taken, cells, row, ops)
                else:
                    head, low, taken = row, cells[row, first_word], np.int64(-1)
                    is_closed = cells[row, last_word] <= closed_to
                    if not is_closed:
                        state[5] = min(state[5], cells[row, last_word])
                        continue
                    taken = state[2]
                    state[2] += 1
                    slots[taken] = (state[0] << _PAGE_BITS) + r
                    closed[taken] = cells[row]
                    closed[taken, 0] = used
                gone[state[3]] = row
                state[3] += 1
        state[0] += 1
    return state[2]
