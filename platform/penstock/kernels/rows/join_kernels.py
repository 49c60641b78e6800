"""Kernels of joins: which rows of a sorted run belong to each row that asks, and the pairs that makes.

A run is sorted by (slot, time). Called by `penstock.state.tables.join_buffer` and the join operators; the plain twins
in numpy are what the property tests compare with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiler.compile import I32, I32_IN, I32_OUT, I64, I64_IN, I64_OUT, i8, kernel, njit, tuple_of

_RUN = tuple_of(I32_IN, I64_IN)
_SPANS = tuple_of(I64_IN, I64_IN)
_RANGES = tuple_of(I64_OUT, I64_OUT)
_RANGES_IN = tuple_of(I64_IN, I64_IN)
_PAIRS = tuple_of(I32_OUT, I32_OUT)


@njit
def _first_at(slots: Any, times: Any, slot: Any, time: Any) -> Any:
    """Return the first place of a run that is not before (slot, time)."""
    low, high = 0, len(slots)
    while low < high:
        middle = (low + high) >> 1
        if slots[middle] < slot or (slots[middle] == slot and times[middle] < time):
            low = middle + 1
        else:
            high = middle
    return low


@kernel(i8(_RUN, I32_IN, _SPANS, _RANGES))
def find_ranges(run: tuple[I32, I64], asking: I32, spans: tuple[I64, I64], ranges: tuple[I64, I64]) -> int:
    """Write for every asking slot where its rows with a time in its span (inclusive) begin in the run, and how many.

    Returns how many that are altogether.
    """
    slots, times = run
    lows, highs = spans
    firsts, counts = ranges
    total = 0
    for i in range(len(asking)):
        slot, high = asking[i], highs[i]
        first = _first_at(slots, times, slot, lows[i])
        stop, step = first, 1
        # most have few rows in their span: steps that double, then halves of the last one
        while stop + step <= len(slots) and slots[stop + step - 1] == slot and times[stop + step - 1] <= high:
            stop += step
            step <<= 1
        while step > 0:
            if stop + step <= len(slots) and slots[stop + step - 1] == slot and times[stop + step - 1] <= high:
                stop += step
            step >>= 1
        firsts[i], counts[i] = first, stop - first
        total += stop - first
    return total


def find_ranges_plain(run: tuple[I32, I64], asking: I32, spans: tuple[I64, I64], ranges: tuple[I64, I64]) -> int:
    """As `find_ranges`: its twin in plain numpy."""
    slots, times = run
    lows, highs = spans
    for i, slot in enumerate(asking):
        inside = (slots == slot) & (times >= lows[i]) & (times <= highs[i])
        before = (slots < slot) | ((slots == slot) & (times < lows[i]))
        ranges[0][i], ranges[1][i] = before.sum(), inside.sum()
    return int(ranges[1].sum())


@kernel(i8(_RANGES_IN, I64_OUT, _PAIRS))
def write_pairs(ranges: tuple[I64, I64], state: I64, pairs: tuple[I32, I32]) -> int:
    """Write the next pairs of (asking row, row of the run), as many as there is room for; returns how many.

    `state` = [asking row to go on with, pairs of it that are already written].
    """
    firsts, counts = ranges
    asking, found = pairs
    written = 0
    i, done = state[0], state[1]
    while i < len(counts) and written < len(asking):
        stop = min(counts[i], done + len(asking) - written)
        for k in range(done, stop):
            asking[written] = i
            found[written] = firsts[i] + k
            written += 1
        done = stop
        if done == counts[i]:
            i, done = i + 1, 0
    state[0], state[1] = i, done
    return written


def write_pairs_plain(ranges: tuple[I64, I64]) -> tuple[I32, I32]:
    """Return all pairs that `write_pairs` writes: its twin in plain numpy."""
    firsts, counts = ranges
    asking = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    found = firsts[asking] + np.arange(len(asking)) - begins[asking]
    return asking.astype(np.int32), found.astype(np.int32)
