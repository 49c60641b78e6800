"""Compiled JSON parsing: one pass over the payloads of a batch for flat schemas, with one status per row.

A row that the pass accepts is exactly the one that `json_rows` would decode. Rows that it cannot decide (bad, unusual,
too long) get the status `UNDECIDED` and go to that module. Strings and difficult floats are left in place, as (address,
length). The scanners use plain addresses `p` (next byte) and `end` instead of arrays: passing array headers between
functions took most of the time. Called by `json_table`; everything is compiled or loaded from the disk cache at import,
so workers import it while warming up.
"""

# ruff: noqa: PLR1714 - a set is no value for compiled code

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.connector.compiled import types
from penstock_connectors.formats.memory import byte, compiled

INTEGER, FLOAT, BOOLEAN, TEXT, TIMESTAMP = range(5)
#: Row status: accepted; accepted with non-ASCII bytes that still need validation; to be decoded exactly.
GOOD, NON_ASCII, UNDECIDED = range(3)
#: Values of the validity matrix: null or missing, a value, a float left as text, a text with escapes.
NULL, VALUE, AS_TEXT, ESCAPED = range(4)

_POWERS = 10.0 ** np.arange(23)
_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_MIN_MICROS = -62_135_596_800_000_000
_MAX_MICROS = 253_402_300_799_999_999
_AUTO_FROM = 100_000_000_000_000

_I = types.int64
_types: Any = types
_PAIR = _types.UniTuple(types.int64, 2)


def _space(p: int, end: int) -> int:
    while p < end and (byte(p) == 32 or byte(p) == 10 or byte(p) == 13 or byte(p) == 9):
        p += 1
    return p


space = compiled(_I(_I, _I), _space)


def _string_end(p: int, end: int) -> tuple[int, int]:
    """Scan a string from `p` after its opening quote.

    Returns (position of the closing quote or -1, 1 = escapes | 2 = non-ASCII).
    """
    flags = 0
    while p < end:
        c = byte(p)
        if c == 34:
            return p, flags
        if c < 32:
            return -1, 0
        if c >= 128:
            flags |= 2
        elif c == 92:
            flags |= 1
            p += 1
            if p >= end:
                return -1, 0
            c = byte(p)
            if c == 117:
                if p + 4 >= end:
                    return -1, 0
                code = 0
                for k in range(1, 5):
                    h = byte(p + k)
                    digit = h - 48 if 48 <= h <= 57 else (h | 32) - 87 if 97 <= (h | 32) <= 102 else -1
                    if digit < 0:
                        return -1, 0
                    code = code * 16 + digit
                if 0xD800 <= code <= 0xDFFF:  # pairs are rare: the exact decoder joins them
                    return -1, 0
                p += 4
            elif not (c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116):
                return -1, 0
        p += 1
    return -1, 0


string_end = compiled(_PAIR(_I, _I), _string_end)


def _number_end(p: int, end: int) -> tuple[int, int]:
    """Return (position after the number or -1, whether it has a fraction or an exponent)."""
    if p < end and byte(p) == 45:
        p += 1
    start = p
    while p < end and 48 <= byte(p) <= 57:
        p += 1
    if p == start or (byte(start) == 48 and p > start + 1):
        return -1, 0
    floating = 0
    if p < end and byte(p) == 46:
        floating = 1
        p += 1
        start = p
        while p < end and 48 <= byte(p) <= 57:
            p += 1
        if p == start:
            return -1, 0
    if p < end and (byte(p) == 101 or byte(p) == 69):
        floating = 1
        p += 1
        if p < end and (byte(p) == 43 or byte(p) == 45):
            p += 1
        start = p
        while p < end and 48 <= byte(p) <= 57:
            p += 1
        if p == start:
            return -1, 0
    return p, floating


number_end = compiled(_PAIR(_I, _I), _number_end)


def _literal(p: int, end: int) -> int:
    """Return 1 true, 2 false, 3 null, 0 none of them; `p` is at its first letter."""
    if p + 4 <= end and byte(p) == 116 and byte(p + 1) == 114 and byte(p + 2) == 117 and byte(p + 3) == 101:
        return 1
    if p + 5 <= end and byte(p) == 102 and byte(p + 1) == 97 and byte(p + 2) == 108 and byte(p + 3) == 115:
        return 2 if byte(p + 4) == 101 else 0
    if p + 4 <= end and byte(p) == 110 and byte(p + 1) == 117 and byte(p + 2) == 108 and byte(p + 3) == 108:
        return 3
    return 0


literal = compiled(_I(_I, _I), _literal)


def _skip(p: int, end: int) -> tuple[int, int]:
    """Skip one value of any kind, strictly; return (position after it or -1, string flags seen)."""
    objects = np.uint64(0)  # one bit per level: 1 = object
    depth, flags = 0, 0
    want_value, may_close = True, False
    while True:
        p = space(p, end)
        if p >= end:
            return -1, 0
        c = byte(p)
        if want_value and not (may_close and (c == 93 or c == 125)):
            if depth > 0 and objects & np.uint64(1):
                if c != 34:
                    return -1, 0
                p, seen = string_end(p + 1, end)
                if p < 0:
                    return -1, 0
                flags |= seen
                p = space(p + 1, end)
                if p >= end or byte(p) != 58:
                    return -1, 0
                p = space(p + 1, end)
                if p >= end:
                    return -1, 0
                c = byte(p)
            may_close = False
            if c == 123 or c == 91:
                if depth == 60:
                    return -1, 0
                objects = (objects << np.uint64(1)) | np.uint64(1 if c == 123 else 0)
                depth += 1
                may_close = True
                p += 1
                continue
            if c == 34:
                p, seen = string_end(p + 1, end)
                flags |= seen
                p = p + 1 if p >= 0 else -1
            elif c == 45 or 48 <= c <= 57:
                p, seen = number_end(p, end)
            else:
                word = literal(p, end)
                p = -1 if word == 0 else p + 5 if word == 2 else p + 4
            if p < 0:
                return -1, 0
            want_value = False
        elif depth > 0 and c == (125 if objects & np.uint64(1) else 93):
            objects >>= np.uint64(1)
            depth -= 1
            p += 1
            want_value, may_close = False, False
        elif depth > 0 and c == 44 and not want_value:
            want_value = True
            p += 1
            continue
        else:
            return -1, 0
        if depth == 0:
            return p, flags


skip = compiled(_PAIR(_I, _I), _skip)


def _two(p: int) -> int:
    """Return the two-digit number at `p`, or -1000."""
    a, b = byte(p) - 48, byte(p + 1) - 48
    return a * 10 + b if 0 <= a <= 9 and 0 <= b <= 9 else -1000


two = compiled(_I(_I), _two)


def _iso_micros(p: int, end: int) -> tuple[int, int]:
    """Return (1, microseconds) for an accepted ISO 8601 time, else (0, 0)."""
    if end - p < 16 or byte(p + 4) != 45 or byte(p + 7) != 45 or byte(p + 13) != 58:
        return 0, 0
    if byte(p + 10) != 84 and byte(p + 10) != 32:
        return 0, 0
    year = two(p) * 100 + two(p + 2)
    month, day = two(p + 5), two(p + 8)
    hour, minute = two(p + 11), two(p + 14)
    if year < 1 or month < 1 or month > 12 or day < 1 or hour < 0 or hour > 23 or minute < 0 or minute > 59:
        return 0, 0
    leap = 1 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 0
    if day > _MONTH_DAYS[month - 1] + (leap if month == 2 else 0):
        return 0, 0
    second, fraction = 0, 0
    p += 16
    if p + 2 < end and byte(p) == 58:
        second = two(p + 1)
        if second < 0 or second > 59:
            return 0, 0
        p += 3
        if p < end and byte(p) == 46:
            p += 1
            digits = 0
            while p < end and 48 <= byte(p) <= 57:
                if digits < 6:
                    fraction = fraction * 10 + (byte(p) - 48)
                digits += 1
                p += 1
            if digits < 1 or digits > 9:
                return 0, 0
            for _ in range(digits, 6):
                fraction *= 10
    offset = 0
    if p < end and byte(p) == 90:
        p += 1
    elif p + 2 < end and (byte(p) == 43 or byte(p) == 45):
        sign = 1 if byte(p) == 43 else -1
        hours, minutes = two(p + 1), 0
        p += 3
        if p + 2 < end and byte(p) == 58:
            minutes = two(p + 1)
            p += 3
        elif p + 1 < end:
            minutes = two(p)
            p += 2
        if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
            return 0, 0
        offset = sign * (hours * 60 + minutes) * 60
    if p != end:
        return 0, 0
    y = year - 1 if month <= 2 else year  # days from the civil date, with years that begin in March
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    micros = (((days * 24 + hour) * 60 + minute) * 60 + second - offset) * 1_000_000 + fraction
    return (1, micros) if _MIN_MICROS <= micros <= _MAX_MICROS else (0, 0)


iso_micros = compiled(_PAIR(_I, _I), _iso_micros)


def _integer_value(p: int, end: int) -> tuple[int, int]:
    """Return (1, value) of the digits between, or (0, 0) when they may not fit 64 bits."""
    negative = byte(p) == 45
    if negative:
        p += 1
    if end - p > 18:
        return 0, 0
    value = 0
    for k in range(p, end):
        value = value * 10 + (byte(k) - 48)
    return 1, -value if negative else value


integer_value = compiled(_PAIR(_I, _I), _integer_value)


def _float_value(p: int, end: int) -> tuple[int, float]:
    """Return (1, value) when it follows exactly from one multiplication or division of exact doubles, else (0, 0)."""
    negative = byte(p) == 45
    if negative:
        p += 1
    mantissa, digits, exponent = 0, 0, 0
    point = False
    while p < end:
        c = byte(p)
        if c == 46:
            point = True
        elif 48 <= c <= 57:
            mantissa = mantissa * 10 + (c - 48)
            digits += 1 if mantissa > 0 else 0
            exponent -= 1 if point else 0
            if digits > 18:
                return 0, 0.0
        else:
            break
        p += 1
    if p < end:  # e or E
        p += 1
        below = byte(p) == 45
        if below or byte(p) == 43:
            p += 1
        given = 0
        if end - p > 5:
            return 0, 0.0
        while p < end:
            given = given * 10 + (byte(p) - 48)
            p += 1
        exponent += -given if below else given
    if mantissa > 9_007_199_254_740_992 or exponent < -22 or exponent > 22:
        return 0, 0.0
    value = float(mantissa)
    value = value / _POWERS[-exponent] if exponent < 0 else value * _POWERS[exponent]
    return 1, -value if negative else value


float_value = compiled(_types.Tuple((_I, types.float64))(_I, _I), _float_value)
