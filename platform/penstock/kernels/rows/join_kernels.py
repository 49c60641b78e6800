"""Kernels of joins: find the rows of a sorted run for each probing row, and write the pairs.

A run is sorted by (slot, time). Called by `penstock.state.tables.join_buffer` and the join operators; property tests
compare them with plain numpy versions.
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
def find_ranges(run: tuple[I32, I64], probes: I32, spans: tuple[I64, I64], ranges: tuple[I64, I64]) -> int:
    """Write for every probing slot the range of its rows in the run with a time in its span: start and length.

    Spans are inclusive. Returns the sum of the lengths.
    """
    slots, times = run
    lows, highs = spans
    firsts, counts = ranges
    total = 0
    for i in range(len(probes)):
        slot, high = probes[i], highs[i]
        first = _first_at(slots, times, slot, lows[i])
        stop, step = first, 1
        # most spans have few rows: steps that double, then halves of the last one
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


def find_ranges_plain(run: tuple[I32, I64], probes: I32, spans: tuple[I64, I64], ranges: tuple[I64, I64]) -> int:
    """Do the work of `find_ranges` in plain numpy."""
    slots, times = run
    lows, highs = spans
    for i, slot in enumerate(probes):
        inside = (slots == slot) & (times >= lows[i]) & (times <= highs[i])
        before = (slots < slot) | ((slots == slot) & (times < lows[i]))
        ranges[0][i], ranges[1][i] = before.sum(), inside.sum()
    return int(ranges[1].sum())


@kernel(i8(_RANGES_IN, I64_OUT, _PAIRS))
def write_pairs(ranges: tuple[I64, I64], state: I64, pairs: tuple[I32, I32]) -> int:
    """Write the next pairs of (probing row, row of the run), as many as there is room for; return how many.

    `state` = [next probing row, its pairs that are already written].
    """
    firsts, counts = ranges
    probes, found = pairs
    written = 0
    i, done = state[0], state[1]
    while i < len(counts) and written < len(probes):
        stop = min(counts[i], done + len(probes) - written)
        for k in range(done, stop):
            probes[written] = i
            found[written] = firsts[i] + k
            written += 1
        done = stop
        if done == counts[i]:
            i, done = i + 1, 0
    state[0], state[1] = i, done
    return written


def write_pairs_plain(ranges: tuple[I64, I64]) -> tuple[I32, I32]:
    """Return all pairs that `write_pairs` writes, in plain numpy."""
    firsts, counts = ranges
    probes = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    found = firsts[probes] + np.arange(len(probes)) - begins[probes]
    return probes.astype(np.int32), found.astype(np.int32)
