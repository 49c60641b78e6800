"""Kernels of the pane table's memory: pages of 4096 cells, found by (pane, slot).

Frozen pages are captured; `kernels.aggregates.merge` merges pages. `meta` has one row a page: [frozen by (0 = none,
negative = listed for capture), dirty, pane start, first slot, orphan]. `page_table[pane row, slot >> 12]` is the page,
-1 for none. `pane_index` is open addressing of (pane start, pane row + 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiler.compile import (
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

_ROWS = tuple_of(I32_IN, I64_IN)
_TABLES = tuple_of(I64_OUT, I32_ROWS, I64_ROWS, I64_OUT, I64_OUT)
_TAKEN = tuple_of(I32_OUT, I64_OUT, I64_ROWS)
_UNORDERED = tuple_of(I64_IN, I32_IN, I64_ROWS_IN)
_ORDERED = tuple_of(I64_OUT, I32_OUT, I64_ROWS)


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
    """Write the cell of every (slot, pane) from row `state[0]` on, creating pages as needed; mark them dirty.

    `tables` = (pane index, page table, page meta, stack of free pages, pages to capture before the next write). `state`
    = [row, unused, free pages, pages to capture, missing pane, reason]. Returns the row reached.
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
    """Copy the changed cells of these pages to (slots, panes, cells) and mark them clean; return how many."""
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
    """Return how many cells of these pages hold rows or an unsaved change."""
    count = 0
    for p in range(len(pages)):
        first = pages[p] << PAGE_BITS
        for r in range(first, first + PAGE_ROWS):
            count += cells[r, 0] != 0
    return count


@kernel(i8(I64_ROWS, I64_IN, I64_ROWS_IN, _TAKEN))
def take_present(cells: I64, pages: I64, meta: I64, out: tuple[I32, I64, I64]) -> int:
    """Copy all used cells of these pages, dirty bits included, to (slots, panes, cells); return how many."""
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
    """Copy all cells with rows of these pages to (slots, panes, cells) and mark all clean; return how many."""
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


@kernel(i8(I64_IN, _UNORDERED, _ORDERED))
def arrange(order: I64, rows: tuple[I64, I32, I64], out: tuple[I64, I32, I64]) -> int:
    """Write (hashes, slots, words) of (hashes, slots, cells) in the given order; return how many.

    Word w of the cells goes to `words[w]`; word 0 becomes the number of rows.
    """
    hashes, slots, cells = rows
    hashes_out, slots_out, words = out
    for i in range(len(order)):
        row = order[i]
        hashes_out[i] = hashes[row]
        slots_out[i] = slots[row]
        words[0, i] = cells[row, 0] >> 1
        for w in range(1, cells.shape[1]):
            words[w, i] = cells[row, w]
    return len(order)


@kernel(i8(I64_ROWS, I64_IN, I64_ROWS_IN))
def put_cells(cells: I64, cell: I64, source: I64) -> int:
    """Overwrite the cells with the rows of `source`, in order."""
    for i in range(len(cell)):
        for w in range(cells.shape[1]):
            cells[cell[i], w] = source[i, w]
    return len(cell)
