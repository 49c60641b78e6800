"""Kernels of event-time windows: the pane of a row, and whether all windows of the row are closed."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiler.compile import I64, I64_IN, I64_OUT, i8, kernel, njit

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
    wild = 0
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
            wild += 1
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
    counts[0], counts[1], counts[2] = late, wild, gap
    return late + wild + gap
