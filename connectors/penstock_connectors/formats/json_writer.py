"""Compiled JSON writing: one pass over the rows of a batch, from columns to one text per row.

The pass writes integers, times, booleans and strings; other values come as finished JSON text. Its output equals that
of Polars byte for byte. All positions are addresses. Called by `json_encode`; compiled or loaded from the disk cache at
import, so workers import it while warming up.
"""

# ruff: noqa: PLR1714 - a set is no value for compiled code

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.connector.compiled import njit, types
from penstock_connectors.formats.json_layout import BOOLEAN, FIELD_WORDS, HEAD_WORDS, INTEGER, TEXT, TIMESTAMP
from penstock_connectors.formats.memory import byte, compiled, copy, put_byte, put_word, word

_DAY = 86_400_000_000
_I = types.int64


@njit
def _decimal(p: Any, value: Any, digits: Any) -> Any:
    """Write the decimal digits of a non-negative value; return the position after them."""
    left = np.uint64(value)
    for k in range(digits - 1, -1, -1):
        rest = left // np.uint64(10)
        put_byte(p + k, np.int64(left - rest * np.uint64(10)) + 48)
        left = rest
    return p + digits


@njit
def _integer(p: Any, value: Any) -> Any:
    size = np.uint64(value)
    if value < 0:
        put_byte(p, 45)
        p += 1
        size = np.uint64(0) - size
    digits, limit = 1, np.uint64(10)
    while digits < 19 and size >= limit:
        digits += 1
        limit *= np.uint64(10)
    left = size
    for k in range(digits - 1, -1, -1):
        rest = left // np.uint64(10)
        put_byte(p + k, np.int64(left - rest * np.uint64(10)) + 48)
        left = rest
    return p + digits


@njit
def _literal(p: Any, letters: Any, count: Any) -> Any:
    """Write up to five letters packed into a number, the first in its lowest byte."""
    for k in range(count):
        put_byte(p + k, (letters >> (8 * k)) & 255)
    return p + count


@njit
def _timestamp(p: Any, value: Any) -> Any:
    """Write a time between the years 1 and 9999."""
    days = value // _DAY
    rest = value - days * _DAY
    # days count from the first of March of year 0, so that a leap day is the last day of its year
    shifted = days + 719_468
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    seconds = rest // 1_000_000
    micros = rest - seconds * 1_000_000
    put_byte(p, 34)
    p = _decimal(p + 1, year, 4)
    put_byte(p, 45)
    p = _decimal(p + 1, month, 2)
    put_byte(p, 45)
    p = _decimal(p + 1, day, 2)
    put_byte(p, 84)
    p = _decimal(p + 1, seconds // 3600, 2)
    put_byte(p, 58)
    p = _decimal(p + 1, seconds // 60 % 60, 2)
    put_byte(p, 58)
    p = _decimal(p + 1, seconds % 60, 2)
    if micros:
        put_byte(p, 46)
        p = _decimal(p + 1, micros // 1000, 3) if micros % 1000 == 0 else _decimal(p + 1, micros, 6)
    put_byte(p, 43)
    p = _decimal(p + 1, 0, 2)
    put_byte(p, 58)
    p = _decimal(p + 1, 0, 2)
    put_byte(p, 34)
    return p + 1


@njit
def _text(p: Any, source: Any, end: Any) -> Any:
    """Write a string with its quotes, with escapes where JSON requires them."""
    put_byte(p, 34)
    p += 1
    while source < end:
        c = byte(source)
        source += 1
        if c >= 32 and c != 34 and c != 92:
            put_byte(p, c)
            p += 1
            continue
        put_byte(p, 92)
        short = c
        if c == 8:
            short = 98
        elif c == 9:
            short = 116
        elif c == 10:
            short = 110
        elif c == 12:
            short = 102
        elif c == 13:
            short = 114
        elif c < 32:
            p = _literal(p + 1, 0x303075, 3)  # u00
            put_byte(p, 48 + (c >> 4))
            put_byte(p + 1, (c & 15) + (48 if (c & 15) < 10 else 87))
            p += 2
            continue
        put_byte(p + 1, short)
        p += 2
    put_byte(p, 34)
    return p + 1


def _write(layout: int, offsets: int, target: int) -> int:
    """Write all rows one after another, and their 64-bit offsets (one more than rows); return the bytes."""
    fields, rows = word(layout), word(layout + 8)
    p = target
    for i in range(rows):
        put_word(offsets + 8 * i, p - target)
        for c in range(fields):
            field = layout + 8 * (HEAD_WORDS + FIELD_WORDS * c)
            length = word(field + 16)
            copy(p, word(field + 8), length)
            p += length
            bitmap, bit = word(field + 40), word(field + 48) + i
            if bitmap != 0 and (byte(bitmap + (bit >> 3)) >> (bit & 7)) & 1 == 0:
                p = _literal(p, 0x6C6C756E, 4)  # null
                continue
            kind, values = word(field), word(field + 24)
            if kind == INTEGER:
                p = _integer(p, word(values + 8 * i))
            elif kind == TIMESTAMP:
                value = word(values + 8 * i)
                if word(field + 72) != 0 and value == word(field + 64):
                    # the same time as the last one, as is usual for windows: copy its text
                    copy(p, word(field + 72), word(field + 80))
                    p += word(field + 80)
                    continue
                begin = p
                p = _timestamp(p, value)
                put_word(field + 64, value)
                put_word(field + 72, begin)
                put_word(field + 80, p - begin)
            elif kind == BOOLEAN:
                known = word(values + 8 * i) != 0
                p = _literal(p, 0x65757274, 4) if known else _literal(p, 0x65736C6166, 5)  # true, false
            else:
                begin, end = word(word(field + 32) + 8 * i), word(word(field + 32) + 8 * i + 8)
                if kind == TEXT:
                    p = _text(p, values + begin, values + end)
                else:
                    begin, end = begin + (word(field + 56) >> 8), end - (word(field + 56) & 255)
                    copy(p, values + begin, end - begin)
                    p += end - begin
        put_byte(p, 125)
        p += 1
    put_word(offsets + 8 * rows, p - target)
    return p - target


write = compiled(_I(_I, _I, _I), _write)
