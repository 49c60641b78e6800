"""Kernels of the pane table's memory.

Pages of 4096 cells, found by (pane, slot), captured when frozen, merged when fired.

`meta` has one row a page: [frozen by (0 = none, negative = listed for capture), dirty, pane start, first slot, orphan].
`page_table[pane row, slot >> 12]` is the page, -1 for none. `pane_index` is open addressing of (pane start, pane row +
1).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compile import (
    F64_ROWS,
    I32,
    I32_IN,
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
)

PAGE_BITS = 12
PAGE_ROWS = 1 << PAGE_BITS
FROZEN, DIRTY, PANE, FIRST_SLOT, ORPHAN = 0, 1, 2, 3, 4
META_COLUMNS = 5
#: Reasons why `locate` stopped, in state[5].
DONE, NEED_PANES, NEED_PAGES = 0, 1, 2
#: Ways to combine; the word of each accumulator is the second column of `ops`.
SUM_I, MIN_I, MAX_I, SUM_F, MIN_F, MAX_F, MOMENTS, FIRST, LAST = 0, 1, 2, 3, 4, 5, 6, 7, 8

_ROWS = tuple_of(I32_IN, I64_IN)
_TABLES = tuple_of(I64_OUT, I32_ROWS, I64_ROWS, I64_OUT, I64_OUT)
_VIEWS = tuple_of(I64_ROWS, F64_ROWS)
_TAKEN = tuple_of(I32_OUT, I64_OUT, I64_ROWS)
_UNORDERED = tuple_of(I64_IN, I32_IN, I64_ROWS_IN)
_ORDERED = tuple_of(I64_OUT, I32_OUT, I64_ROWS)
_GIVEN = tuple_of(I64_ROWS_IN, I64_IN)
_ENDED = tuple_of(I32_OUT, I64_ROWS, F64_ROWS, I64_OUT)
_KEPT = tuple_of(I64_OUT, I64_ROWS, F64_ROWS)


@njit
def _mix(value: Any) -> Any:
    h = np.uint64(value) * np.uint64(0x9E3779B185EBCA87)
    return np.int64(h ^ (h >> np.uint64(29)))


@njit
def _pane_row(pane_index: Any, pane: Any) -> Any:
    mask = len(pane_index) // 2 - 1
    at = _mix(pane) & mask
    while pane_index[2 * at + 1] != 0:
        if pane_index[2 * at] == pane:
            return pane_index[2 * at + 1] - 1
        at = (at + 1) & mask
    return -1


@kernel(i8(I64_OUT, i8, i8))
def enter_pane(pane_index: I64, pane: int, row: int) -> Any:
    """Put (pane, row) into the index, which has room."""
    mask = len(pane_index) // 2 - 1
    at = _mix(pane) & mask
    while pane_index[2 * at + 1] != 0:
        at = (at + 1) & mask
    pane_index[2 * at] = pane
    pane_index[2 * at + 1] = row + 1
    return at


@kernel(i8(_ROWS, I64_OUT, _TABLES, I64_ROWS, I64_IN, I64_OUT))
def locate(
    rows: tuple[I32, I64], cell: I64, tables: tuple[I64, I32, I64, I64, I64], cells: I64, initial: I64, state: I64
) -> Any:
    """Write the cell of every (slot, pane) from row `state[0]` on, making pages where there are none; marks them dirty.

    `tables` = (pane index, page table, page meta, stack of free pages, pages to capture before the next write).
    `state` = [row, unused, free pages, pages to capture, missing pane, reason]. Returns the row reached.
    """
    slots, panes = rows
    pane_index, page_table, meta, free, capture = tables
    n = len(slots)
    i = state[0]
    known = False
    pane, pane_row = np.int64(0), np.int64(0)
    state[5] = DONE
    while i < n:
        if not known or panes[i] != pane:
            pane = panes[i]
            pane_row = _pane_row(pane_index, pane)
            known = pane_row >= 0
            if not known:
                state[4] = pane
                state[5] = NEED_PANES
                break
        slot = slots[i]
        page = np.int64(page_table[pane_row, slot >> PAGE_BITS])
        if page < 0:
            if state[2] == 0:
                state[5] = NEED_PAGES
                break
            state[2] -= 1
            page = free[state[2]]
            page_table[pane_row, slot >> PAGE_BITS] = page
            meta[page, FROZEN] = 0
            meta[page, PANE] = pane
            meta[page, FIRST_SLOT] = (slot >> PAGE_BITS) << PAGE_BITS
            meta[page, ORPHAN] = 0
            for r in range(page << PAGE_BITS, (page + 1) << PAGE_BITS):
                for w in range(len(initial)):
                    cells[r, w] = initial[w]
        elif meta[page, FROZEN] > 0:
            meta[page, FROZEN] = -meta[page, FROZEN]
            capture[state[3]] = page
            state[3] += 1
        meta[page, DIRTY] = 1
        cell[i] = (page << PAGE_BITS) + (slot & (PAGE_ROWS - 1))
        i += 1
    state[0] = i
    return i


@kernel(i8(I64_ROWS, I64_IN))
def count_dirty(cells: I64, pages: I64) -> int:
    """Return how many cells of these pages changed since the last freeze."""
    count = 0
    for p in range(len(pages)):
        first = pages[p] << PAGE_BITS
        for r in range(first, first + PAGE_ROWS):
            count += cells[r, 0] & 1
    return count


@kernel(i8(I64_ROWS, I64_IN, I64_ROWS_IN, _TAKEN))
def take_dirty(cells: I64, pages: I64, meta: I64, out: tuple[I32, I64, I64]) -> int:
    """Copy the changed cells of these pages to (slots, panes, cells) and mark them clean; returns how many."""
    slots, panes, taken = out
    count = 0
    for p in range(len(pages)):
        page = pages[p]
        first = page << PAGE_BITS
        for r in range(PAGE_ROWS):
            if cells[first + r, 0] & 1:
                cells[first + r, 0] -= 1
                slots[count] = meta[page, FIRST_SLOT] + r
                panes[count] = meta[page, PANE]
                for w in range(cells.shape[1]):
                    taken[count, w] = cells[first + r, w]
                count += 1
    return count


@kernel(i8(I64_ROWS, I64_IN))
def count_present(cells: I64, pages: I64) -> int:
    """Return how many cells of these pages hold rows (or a change yet to be saved)."""
    count = 0
    for p in range(len(pages)):
        first = pages[p] << PAGE_BITS
        for r in range(first, first + PAGE_ROWS):
            count += cells[r, 0] != 0
    return count


@kernel(i8(I64_ROWS, I64_IN, I64_ROWS_IN, _TAKEN))
def take_present(cells: I64, pages: I64, meta: I64, out: tuple[I32, I64, I64]) -> int:
    """Copy all used cells of these pages, dirty bits included, to (slots, panes, cells); returns how many."""
    slots, panes, taken = out
    count = 0
    for p in range(len(pages)):
        page = pages[p]
        first = page << PAGE_BITS
        for r in range(PAGE_ROWS):
            if cells[first + r, 0] != 0:
                slots[count] = meta[page, FIRST_SLOT] + r
                panes[count] = meta[page, PANE]
                for w in range(cells.shape[1]):
                    taken[count, w] = cells[first + r, w]
                count += 1
    return count


@kernel(i8(I64_ROWS, I64_IN, I64_ROWS_IN, _TAKEN))
def take_rows(cells: I64, pages: I64, meta: I64, out: tuple[I32, I64, I64]) -> int:
    """Copy all cells with rows of these pages to (slots, panes, cells) and mark all clean; returns how many."""
    slots, panes, taken = out
    count = 0
    for p in range(len(pages)):
        page = pages[p]
        first = page << PAGE_BITS
        for r in range(PAGE_ROWS):
            cells[first + r, 0] &= ~1
            if cells[first + r, 0] != 0:
                slots[count] = meta[page, FIRST_SLOT] + r
                panes[count] = meta[page, PANE]
                for w in range(cells.shape[1]):
                    taken[count, w] = cells[first + r, w]
                count += 1
    return count


@kernel(i8(I64_IN, i8, _UNORDERED, _ORDERED))
def arrange(order: I64, mask: int, rows: tuple[I64, I32, I64], out: tuple[I64, I32, I64]) -> int:
    """Write (hashes, slots, words) of (hashes, slots, cells) in the order of `order[i] & mask`.

    Word w of the cells goes to `words[w]`; word 0 becomes the number of rows. Returns how often a hash is less than the
    one before it.
    """
    hashes, slots, cells = rows
    hashes_out, slots_out, words = out
    descents = 0
    last = np.int64(-(1 << 63))
    for i in range(len(order)):
        row = order[i] & mask
        value = hashes[row]
        descents += value < last
        last = value
        hashes_out[i] = value
        slots_out[i] = slots[row]
        words[0, i] = cells[row, 0] >> 1
        for w in range(1, cells.shape[1]):
            words[w, i] = cells[row, w]
    return descents


@kernel(i8(I64_ROWS, I64_IN, I64_ROWS_IN))
def put_cells(cells: I64, cell: I64, source: I64) -> int:
    """Overwrite the cells with the rows of `source`, in order."""
    for i in range(len(cell)):
        for w in range(cells.shape[1]):
            cells[cell[i], w] = source[i, w]
    return len(cell)


@njit
def _combine_moments(into: Any, at: Any, other: Any, row: Any, word: Any) -> Any:
    left, right = into[at, word], other[row, word]
    total = left + right
    if right > 0.0:
        delta = other[row, word + 1] - into[at, word + 1]
        into[at, word] = total
        into[at, word + 1] += delta * right / total
        into[at, word + 2] += other[row, word + 2] + delta * delta * left * right / total


@njit
def _combine(into: Any, at: Any, other: Any, row: Any, ops: Any) -> Any:
    """Merge one cell into another; returns 1 when an integer sum overflowed."""
    into_i, into_f = into
    other_i, other_f = other
    overflow = 0
    for o in range(len(ops)):
        op, w = ops[o, 0], ops[o, 1]
        if op == SUM_I:
            old, value = into_i[at, w], other_i[row, w]
            new = old + value
            overflow |= ((old ^ new) & (value ^ new)) < 0
            into_i[at, w] = new
        elif op == MIN_I:
            into_i[at, w] = min(into_i[at, w], other_i[row, w])
        elif op == MAX_I:
            into_i[at, w] = max(into_i[at, w], other_i[row, w])
        elif op == SUM_F:
            into_f[at, w] += other_f[row, w]
        elif op == MIN_F:
            if other_f[row, w] < into_f[at, w] or into_f[at, w] != into_f[at, w]:
                into_f[at, w] = other_f[row, w]
        elif op == MAX_F:
            if other_f[row, w] > into_f[at, w] or other_f[row, w] != other_f[row, w]:
                into_f[at, w] = other_f[row, w]
        elif op == MOMENTS:
            _combine_moments(into_f, at, other_f, row, w)
        elif op == FIRST:
            if other_i[row, w] < into_i[at, w]:
                into_i[at, w] = other_i[row, w]
                into_i[at, w + 1] = other_i[row, w + 1]
        elif op == LAST and other_i[row, w] >= into_i[at, w]:
            into_i[at, w] = other_i[row, w]
            into_i[at, w + 1] = other_i[row, w + 1]
    return overflow


@kernel(i8(_VIEWS, I32_ROWS, I64_ROWS_IN, I32_OUT, _VIEWS, I64_OUT))
def merge_panes(cells: tuple[I64, I64], pages: I32, ops: I64, slots: I32, out: tuple[I64, I64], state: I64) -> int:
    """Merge the panes of a window per slot.

    `pages[pane, slot page]`, from slot page `state[0]` on while `out` has room.

    Returns the rows written (slots and cells, word 0 = number of rows); `state` = [next slot page, overflowed
    additions].
    """
    source = cells[0]
    target = out[0]
    count = 0
    block = state[0]
    while block < pages.shape[1] and count + PAGE_ROWS <= len(slots):
        for r in range(PAGE_ROWS):
            present = False
            for p in range(len(pages)):
                page = np.int64(pages[p, block])
                if page < 0:
                    continue
                row = (page << PAGE_BITS) + r
                used = source[row, 0] >> 1
                if used == 0:
                    continue
                if not present:
                    present = True
                    slots[count] = (block << PAGE_BITS) + r
                    target[count, 0] = used
                    for w in range(1, source.shape[1]):
                        target[count, w] = source[row, w]
                else:
                    target[count, 0] += used
                    state[1] += _combine(out, count, cells, row, ops)
            if present:
                count += 1
        block += 1
    state[0] = block
    return count


@kernel(i8(_VIEWS, I32_ROWS, _GIVEN, _ENDED, _KEPT, I64_OUT))
def take_sessions(
    cells: tuple[I64, I64],
    pages: I32,
    rule: tuple[I64, I64],
    ended: tuple[I32, I64, I64, I64],
    kept: tuple[I64, I64, I64],
    state: I64,
) -> Any:
    """Find each slot's sessions in its panes, the newest pane first, and merge those that have ended.

    A cell belongs to the session found before it when its last time is at most a gap before that session's first.
    `pages[pane, slot page]`; `rule` = (ops, [gap, sessions whose last time is at most this have ended, word of the
    first time, word of the last, panes that are going to be dropped]); `ended` = (slots, cells, cells as floats, cells
    that are gone); `kept` = (newest cell of an open session that takes up those in panes to be dropped, what it is to
    hold, as floats). `state` = [next slot page, overflowed additions, ended, gone, kept, least last time of an open
    session]. Goes on while there is room for a slot page in every pane; returns the sessions that ended.
    """
    ops, numbers = rule
    gap, closed_to, first_word, last_word, going = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    source = cells[0]
    slots, closed, closed_f, gone = ended
    open_cell, opened, opened_f = kept
    panes = len(pages)
    while state[0] < pages.shape[1] and state[2] + panes * PAGE_ROWS <= len(slots):
        for r in range(PAGE_ROWS):
            low = np.int64(0)
            head, taken, is_closed = np.int64(-1), np.int64(-1), False
            for p in range(panes - 1, -1, -1):
                page = np.int64(pages[p, state[0]])
                if page < 0:
                    continue
                row = (page << PAGE_BITS) + r
                used = source[row, 0] >> 1
                if used == 0:
                    continue
                if head >= 0 and source[row, last_word] + gap >= low:
                    low = min(low, source[row, first_word])
                    if not is_closed and p >= going:
                        continue
                    if is_closed:
                        closed[taken, 0] += used
                        state[1] += _combine((closed, closed_f), taken, cells, row, ops)
                    else:
                        if taken < 0:
                            taken = state[4]
                            state[4] += 1
                            open_cell[taken] = head
                            opened[taken] = source[head]
                            opened[taken, 0] |= 1
                        opened[taken, 0] += 2 * used
                        state[1] += _combine((opened, opened_f), taken, cells, row, ops)
                else:
                    head, low, taken = row, source[row, first_word], np.int64(-1)
                    is_closed = source[row, last_word] <= closed_to
                    if not is_closed:
                        state[5] = min(state[5], source[row, last_word])
                        continue
                    taken = state[2]
                    state[2] += 1
                    slots[taken] = (state[0] << PAGE_BITS) + r
                    closed[taken] = source[row]
                    closed[taken, 0] = used
                gone[state[3]] = row
                state[3] += 1
        state[0] += 1
    return state[2]
