"""The compiled loop over a batch of JSON payloads: fields to columns, and texts to one Arrow buffer.

Called by `json_decode`; built on the scanners of `json_kernels`. All positions are addresses. A `layout` is a block of
64-bit words that describes the job: number of fields, rows, addresses of the names, of their offsets and of the four
outputs (values, the lengths of texts, validity), then five words per field: kind, required, lowest, highest, factor of
timestamps (0: by magnitude).
"""

# ruff: noqa: PLR1714 - a set is no value for compiled code

from __future__ import annotations

from penstock.connector.compiled import types
from penstock_connectors.formats.json_kernels import (
    _AUTO_FROM,
    _MAX_MICROS,
    _MIN_MICROS,
    _PAIR,
    AS_TEXT,
    BOOLEAN,
    ESCAPED,
    FLOAT,
    GOOD,
    INTEGER,
    NON_ASCII,
    NULL,
    TEXT,
    TIMESTAMP,
    UNDECIDED,
    VALUE,
    float_value,
    integer_value,
    iso_micros,
    literal,
    number_end,
    skip,
    space,
    string_end,
)
from penstock_connectors.formats.memory import byte, compiled, copy, put_byte, put_float, put_word, word

#: Words of a layout before the fields, and of each field.
HEAD_WORDS, FIELD_WORDS = 7, 5
_I = types.int64


def _find(p: int, length: int, layout: int, first: int) -> int:
    """Return the column with this name, trying `first` first; -1: none."""
    count, names, offsets = word(layout), word(layout + 16), word(layout + 24)
    for k in range(count):
        c = first + k
        if c >= count:
            c -= count
        start = word(offsets + 8 * c)
        if word(offsets + 8 * c + 8) - start == length:
            j = 0
            while j < length and byte(names + start + j) == byte(p + j):
                j += 1
            if j == length:
                return c
    return -1


find = compiled(_I(_I, _I, _I, _I), _find)


def _store(p: int, end: int, i: int, c: int, layout: int) -> tuple[int, int]:
    """Read the value at `p` into column `c` of row `i`; return (position after it or -1, string flags)."""
    cell = c * word(layout + 8) + i
    values, lengths, valid = word(layout + 32) + 8 * cell, word(layout + 40) + 8 * cell, word(layout + 48) + cell
    field = layout + 8 * (HEAD_WORDS + FIELD_WORDS * c)
    kind, low, high = word(field), word(field + 16), word(field + 24)
    first = byte(p)
    if first == 110:
        put_byte(valid, NULL)
        return (p + 4 if literal(p, end) == 3 else -1), 0
    if first == 34:
        q, flags = string_end(p + 1, end)
        if q < 0:
            return -1, 0
        if kind == TEXT:
            put_word(values, p + 1)
            put_word(lengths, q - p - 1)
            put_byte(valid, ESCAPED if flags & 1 else VALUE)
            return q + 1, flags
        if kind == TIMESTAMP:
            known, micros = iso_micros(p + 1, q)
            if known and low <= micros <= high:
                put_word(values, micros)
                put_byte(valid, VALUE)
                return q + 1, flags
        return -1, 0
    if first == 116 or first == 102:
        spelled = literal(p, end)
        if kind != BOOLEAN or spelled == 0:
            return -1, 0
        put_word(values, 1 if spelled == 1 else 0)
        put_byte(valid, VALUE)
        return p + (4 if spelled == 1 else 5), 0
    q, floating = number_end(p, end)
    if q < 0:
        return -1, 0
    if kind == FLOAT:
        exact, number = float_value(p, q)
        if exact:
            put_float(values, number)
            put_byte(valid, VALUE)
        else:
            put_word(values, p)
            put_word(lengths, q - p)
            put_byte(valid, AS_TEXT)
        return q, 0
    if floating or (kind != INTEGER and kind != TIMESTAMP):
        return -1, 0
    known, value = integer_value(p, q)
    if not known:
        return -1, 0
    if kind == TIMESTAMP:
        factor = word(field + 32)
        if factor == 0:
            factor = 1000 if -_AUTO_FROM < value < _AUTO_FROM else 1
        if value > _MAX_MICROS // factor or value < -(-_MIN_MICROS // factor):
            return -1, 0
        value *= factor
    if value < low or value > high:
        return -1, 0
    put_word(values, value)
    put_byte(valid, VALUE)
    return q, 0


store = compiled(_PAIR(_I, _I, _I, _I, _I), _store)


def _members(p: int, end: int, i: int, layout: int) -> tuple[int, int]:
    """Read an object's members, `p` at the first name; return (position after `}` or -1, string flags)."""
    seen, hint, count = 0, 0, word(layout)
    while True:
        if p >= end or byte(p) != 34:
            return -1, 0
        q, flags = string_end(p + 1, end)
        if q < 0 or flags & 1:
            return -1, 0
        seen |= flags
        c = find(p + 1, q - p - 1, layout, hint)
        p = space(q + 1, end)
        if p >= end or byte(p) != 58:
            return -1, 0
        p = space(p + 1, end)
        if p >= end:
            return -1, 0
        if c < 0:
            p, flags = skip(p, end)
        else:
            p, flags = store(p, end, i, c, layout)
            hint = c + 1 if c + 1 < count else 0
        if p < 0:
            return -1, 0
        seen |= flags
        p = space(p, end)
        if p >= end:
            return -1, 0
        if byte(p) == 125:
            return p + 1, seen
        if byte(p) != 44:
            return -1, 0
        p = space(p + 1, end)


members = compiled(_PAIR(_I, _I, _I, _I), _members)


def _row(p: int, end: int, i: int, layout: int) -> int:
    """Parse one payload into row `i`; return its status."""
    seen = 0
    p = space(p, end)
    if p >= end or byte(p) != 123:
        return UNDECIDED
    p = space(p + 1, end)
    if p < end and byte(p) == 125:
        p += 1
    else:
        p, seen = members(p, end, i, layout)
        if p < 0:
            return UNDECIDED
    if space(p, end) != end:
        return UNDECIDED
    rows, valid = word(layout + 8), word(layout + 48)
    for c in range(word(layout)):
        if word(layout + 8 * (HEAD_WORDS + FIELD_WORDS * c + 1)) != 0 and byte(valid + c * rows + i) == NULL:
            return UNDECIDED
    return NON_ASCII if seen & 2 else GOOD


row = compiled(_I(_I, _I, _I, _I), _row)


def _parse(data: int, offsets: int, layout: int, status: int) -> int:
    """Parse payload i, from data + offsets[i] to data + offsets[i+1], into row i; return the worst status."""
    worst = 0
    for i in range(word(layout + 8)):
        start, end = word(offsets + 8 * i), word(offsets + 8 * i + 8)
        s = row(data + start, data + end, i, layout)
        put_byte(status + i, s)
        worst = max(worst, s)
    return worst


parse = compiled(_I(_I, _I, _I, _I), _parse)


def _escape(p: int, target: int) -> tuple[int, int]:
    """Resolve the escape whose backslash is before `p`; return (position after it, position after the output)."""
    c = byte(p)
    p += 1
    if c == 117:
        code = 0
        for k in range(4):
            h = byte(p + k)
            code = code * 16 + (h - 48 if h <= 57 else (h | 32) - 87)
        if code < 0x80:
            put_byte(target, code)
            return p + 4, target + 1
        if code < 0x800:
            put_byte(target, 0xC0 | (code >> 6))
            put_byte(target + 1, 0x80 | (code & 63))
            return p + 4, target + 2
        put_byte(target, 0xE0 | (code >> 12))
        put_byte(target + 1, 0x80 | ((code >> 6) & 63))
        put_byte(target + 2, 0x80 | (code & 63))
        return p + 4, target + 3
    if c == 98:
        c = 8
    elif c == 102:
        c = 12
    elif c == 110:
        c = 10
    elif c == 114:
        c = 13
    elif c == 116:
        c = 9
    put_byte(target, c)
    return p, target + 1


escape = compiled(_PAIR(_I, _I), _escape)


def _texts(source: int, count: int, offsets: int, target: int) -> int:
    """Copy texts one after another, with escapes resolved, and write their 32-bit offsets; return the bytes written.

    `source` is the address of three addresses: of the texts' addresses, of their lengths, and of their validity.
    """
    starts, lengths, valid = word(source), word(source + 8), word(source + 16)
    w = target
    for i in range(count):
        at = w - target
        for k in range(4):
            put_byte(offsets + 4 * i + k, at >> (8 * k))
        p, length, state = word(starts + 8 * i), word(lengths + 8 * i), byte(valid + i)
        if state == VALUE:
            copy(w, p, length)
            w += length
        elif state == ESCAPED:
            end = p + length
            while p < end:
                c = byte(p)
                p += 1
                if c == 92:
                    p, w = escape(p, w)
                else:
                    put_byte(w, c)
                    w += 1
    at = w - target
    for k in range(4):
        put_byte(offsets + 4 * count + k, at >> (8 * k))
    return at


texts = compiled(_I(_I, _I, _I, _I), _texts)
