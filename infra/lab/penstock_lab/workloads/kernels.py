"""Compiled loops of the benchmarks' source and sink: make events, spell keys as strings, add rows to a checksum.

Compiled, or loaded from the disk cache, at import; the specs' `preload` names this module, so that workers inherit it
from their template.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.connector.compiled import kernel, njit, types

#: Prime modulus of a row's part of the checksum.
MODULUS = 1_000_000_007
#: Event time of event 0 (us).
START_US = 1_700_000_000_000_000
#: No time is this many milliseconds from T0.
_FAR = 1 << 52
#: Bytes of a key spelled as a string: one letter and seven digits.
TEXT_BYTES = 8

_I64 = types.int64
_IN = types.Array(types.int64, 1, "C", readonly=True)
_OUT = types.int64[::1]
_BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
_BYTES_OUT = types.uint8[::1]
_M32 = np.uint64((1 << 32) - 1)
_U = np.uint64
_LETTER = ord("u")


def _compiled(*signature: Any) -> Any:
    return kernel(signature[0](*signature[1:]))


def _generate(first: int, step: int, keys: int, user: Any, amount: Any, times: Any) -> int:
    """Make events `first, first + step ...`, by integer arithmetic that every implementation of the workloads repeats.

    The key is `b div 16 mod keys`. Division by a number known only at run time would take longer than the rest, so it
    is a multiplication and a shift, exact for the 28 bits of `b div 16`.
    """
    shift = _U(34)
    bound = keys
    while bound > 1:
        bound >>= 1
        shift += _U(1)
    inverse = (_U(1) << shift) // _U(keys) + _U(1)
    i = _U(first)
    for j in range(len(user)):
        a = (i * _U(2654435761)) & _M32
        b = (((a + (a >> _U(15))) & _M32) * _U(1540483477)) & _M32
        c = (((a + (a >> _U(13))) & _M32) * _U(1103515245)) & _M32
        b >>= _U(4)
        user[j] = b - ((b * inverse) >> shift) * _U(keys)
        amount[j] = _U(1) + (c >> _U(20)) % _U(1000)
        times[j] = START_US + 1000 * (np.int64(i // _U(100)) - np.int64((c >> _U(4)) % _U(5000)))
        i += _U(step)
    return len(user)


def _spell(keys: Any, out: Any) -> int:
    """Write each key as `u` and seven digits."""
    for j in range(len(keys)):
        rest = keys[j]
        out[8 * j] = _LETTER
        for digit in range(7, 0, -1):
            out[8 * j + digit] = 48 + rest % 10
            rest //= 10
    return len(keys)


def _unspell(text: Any, out: Any) -> int:
    """Invert `_spell`."""
    for j in range(len(out)):
        key = 0
        for digit in range(1, 8):
            key = key * 10 + text[8 * j + digit] - 48
        out[j] = key
    return len(out)


def _add_windows(user: Any, end: Any, count: Any, total: Any, scale: Any, sums: Any) -> int:
    """Add window results; `scale` = [length of a window (us), last window end that counts (us)].

    `sums` = rows, sum of counts, sum of sums, sum of ((user * 31 + window * 17 + count) * (sum + 7)) mod the prime.
    """
    unit, cut = scale[0], scale[1]
    counted = 0
    for j in range(len(user)):
        if end[j] <= cut:
            window = (end[j] - START_US) // unit
            counted += 1
            sums[1] += count[j]
            sums[2] += total[j]
            sums[3] += ((user[j] * 31 + window * 17 + count[j]) * (total[j] + 7)) % MODULUS
    sums[0] += counted
    return counted


@njit(inline="always")
def _rest(value: Any) -> Any:
    """Return `value` mod the prime; small values, the usual case, need no division."""
    return value if 0 <= value < MODULUS else value % MODULUS


@njit(inline="always")
def _milliseconds(time: Any) -> Any:
    """Return whole milliseconds since T0, rounded down; unsigned, as the compiler then divides by a multiplication."""
    return np.int64(np.uint64(time - START_US + 1000 * _FAR) // np.uint64(1000)) - _FAR


def _add_rows(user: Any, first: Any, second: Any, third: Any, sums: Any) -> int:
    """Add rows: number, sum of `first`, sum of `second`, sum of (user * 31 + third) mod the prime."""
    ones = twos = checks = np.int64(0)
    for j in range(len(user)):
        ones += first[j]
        twos += second[j]
        checks += _rest(user[j] * 31 + third[j])
    _sum_up(len(user), ones, twos, checks, sums)
    return len(user)


def _add_timed_rows(user: Any, first: Any, second: Any, third: Any, sums: Any) -> int:
    """Add rows whose `first` is a time in microseconds, which counts as milliseconds since T0."""
    ones = twos = checks = np.int64(0)
    for j in range(len(user)):
        ones += _milliseconds(first[j])
        twos += second[j]
        checks += _rest(user[j] * 31 + third[j])
    _sum_up(len(user), ones, twos, checks, sums)
    return len(user)


@njit(inline="always")
def _sum_up(rows: Any, ones: Any, twos: Any, checks: Any, sums: Any) -> None:
    sums[0] += rows
    sums[1] += ones
    sums[2] += twos
    sums[3] += checks


generate = _compiled(_I64, _I64, _I64, _I64, _OUT, _OUT, _OUT)(_generate)
spell = _compiled(_I64, _IN, _BYTES_OUT)(_spell)
unspell = _compiled(_I64, _BYTES_IN, _OUT)(_unspell)
add_windows = _compiled(_I64, _IN, _IN, _IN, _IN, _IN, _OUT)(_add_windows)
add_rows = _compiled(_I64, _IN, _IN, _IN, _IN, _OUT)(_add_rows)
add_timed_rows = _compiled(_I64, _IN, _IN, _IN, _IN, _OUT)(_add_timed_rows)
