"""Kernels that assign rows to panes: the pane of a row and late rows, and the groups of key and pane of a batch.

Called by window operators and `operators.aggregates.combine`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiler.compile import I32, I32_IN, I64, I64_IN, I64_OUT, i8, kernel, njit, tuple_of

#: Rows further than this from the epoch (73 000 years) are refused; their times would overflow.
TIME_LIMIT = 1 << 61
LATE = 1
OUT_OF_RANGE = 2
IN_NO_WINDOW = 4


@njit
def _floor(value: Any, step: Any, offset: Any) -> Any:
    rest = (value - offset) % step
    return value - rest


@kernel(i8(I64_IN, I64_IN, i8, I64_OUT, I64_OUT))
def assign_panes(times: I64, window: I64, close_before: int, panes: I64, counts: I64) -> int:
    """Write the pane start of every row into `panes` and count the rest; return how many rows to leave out.

    `window` = (pane, size, slide, offset); a row is late when its last window starts before `close_before`. Rows to
    leave out get the smallest int64 as pane; `counts` = [late, out of range, in no window].
    """
    pane, size, slide, offset = window[0], window[1], window[2], window[3]
    none = np.iinfo(np.int64).min
    late = 0
    out_of_range = 0
    gap = 0
    low, high, start, usable = 0, 0, 0, False
    for i in range(len(times)):
        t = times[i]
        if low <= t < high:  # same pane as the row before
            if usable:
                panes[i] = start
                continue
        elif t >= TIME_LIMIT or t <= -TIME_LIMIT:
            panes[i] = none
            out_of_range += 1
            continue
        else:
            start = _floor(t, pane, offset)
            low, high = start, start + pane
            usable = _floor(t, slide, offset) >= close_before and t - _floor(t, slide, offset) < size
            if usable:
                panes[i] = start
                continue
        panes[i] = none
        if t - _floor(t, slide, offset) >= size:
            gap += 1
        else:
            late += 1
    counts[0], counts[1], counts[2] = late, out_of_range, gap
    return late + out_of_range + gap


_U = np.uint64


@njit
def _group_by_slot(slots: Any, tables: Any, floor: Any) -> Any:
    """Do the work of `group_rows` where all rows are of one pane."""
    known, group_of, first_rows = tables
    count, room = np.int64(0), len(first_rows)
    for i in range(_U(0), _U(len(slots))):
        at = _U(slots[i])
        group = known[at] - floor
        if group < 0:
            if count == room:
                return np.int64(-1)
            group = count
            known[at] = floor + group
            first_rows[_U(count)] = i
            count += 1
        group_of[i] = group
    return count


@kernel(i8(I32_IN, I64_IN, I64_IN, tuple_of(I64_OUT, I64_OUT, I64_OUT, I64_OUT), i8))
def group_rows(slots: I32, times: I64, window: I64, tables: tuple[I64, I64, I64, I64], floor: int) -> int:
    """Number the groups (slot, pane) in order of their first rows; return how many, or -1 if they exceed the room.

    `window` = [length of a pane, start of the first pane, panes]: every time is in one of them. `tables` = (groups by
    slot and pane; group of each row; first row of each group; its pane's start). A group in the table is stored as its
    number plus `floor`. Smaller entries are of earlier calls, so that the table need not be cleared.
    """
    known, group_of, first_rows, panes = tables
    length, base, count_panes = window[0], window[1], window[2]
    if count_panes == 1:
        count = _group_by_slot(slots, (known, group_of, first_rows), floor)
        panes[: max(count, 0)] = base
        return int(count)
    inverse = 1.0 / np.float64(length)
    count = np.int64(0)
    for i in range(len(slots)):
        distance = times[i] - base
        pane = np.int64(np.float64(distance) * inverse)
        rest = distance - pane * length
        if rest < 0:
            pane -= 1
        elif rest >= length:
            pane += 1
        at = np.int64(slots[i]) * count_panes + pane
        group = known[at] - floor
        if group < 0:
            if count == len(first_rows):
                return -1
            group = count
            known[at] = floor + group
            first_rows[group] = i
            panes[group] = base + pane * length
            count += 1
        group_of[i] = group
    return int(count)
