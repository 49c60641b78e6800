"""The compiled loop over a batch of JSON payloads: fields to columns, and texts to one Arrow buffer.

Called by `json_decode`; built on the scanners of `json_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from penstock_connectors.formats.json_kernels import (
    _AUTO_FROM,
    _BYTES,
    _I,
    _INTS,
    _MAX_MICROS,
    _MIN_MICROS,
    _OUT,
    AS_TEXT,
    ASK,
    BOOLEAN,
    ESCAPED,
    FLOAT,
    GOOD,
    INTEGER,
    NON_ASCII,
    NULL,
    TEXT,
    TIMESTAMP,
    VALUE,
    _compiled,
    float_value,
    integer_value,
    iso_micros,
    literal,
    number_end,
    skip,
    space,
    string_end,
)

_MATRIX = types.uint8[:, ::1]


def _find(data: Any, p: int, length: int, names: Any, name_offsets: Any, first: int) -> int:
    """Return the column whose name is these bytes, looking at `first` first; -1: none."""
    count = len(name_offsets) - 1
    for k in range(count):
        c = first + k
        if c >= count:
            c -= count
        start = name_offsets[c]
        if name_offsets[c + 1] - start == length:
            same = True
            for j in range(length):
                if names[start + j] != data[p + j]:
                    same = False
                    break
            if same:
                return c
    return -1


find = _compiled(_I(_BYTES, _I, _I, _BYTES, _INTS, _I), _find)


def _store(data: Any, p: int, end: int, i: int, c: int, spec: Any, out: Any) -> tuple[int, int]:
    """Read the value at `p` into column `c` of row `i`; return (position behind it or -1, string flags)."""
    values, floats, lengths, valid = out
    kind = spec[0, c]
    first = data[p]
    if first == 110:
        valid[c, i] = NULL
        return (p + 4 if literal(data, p, end) == 3 else -1), 0
    if first == 34:
        q, flags = string_end(data, p + 1, end)
        if q < 0:
            return -1, 0
        if kind == TEXT:
            values[c, i] = p + 1
            lengths[c, i] = q - p - 1
            valid[c, i] = ESCAPED if flags & 1 else VALUE
            return q + 1, flags
        if kind == TIMESTAMP:
            known, micros = iso_micros(data, p + 1, q)
            if known and spec[2, c] <= micros <= spec[3, c]:
                values[c, i] = micros
                valid[c, i] = VALUE
                return q + 1, flags
        return -1, 0
    if first == 116 or first == 102:
        word = literal(data, p, end)
        if kind != BOOLEAN or word == 0:
            return -1, 0
        values[c, i] = 1 if word == 1 else 0
        valid[c, i] = VALUE
        return p + (4 if word == 1 else 5), 0
    q, floating = number_end(data, p, end)
    if q < 0:
        return -1, 0
    if kind == FLOAT:
        exact, number = float_value(data, p, q)
        if exact:
            floats[c, i] = number
            valid[c, i] = VALUE
        else:
            values[c, i] = p
            lengths[c, i] = q - p
            valid[c, i] = AS_TEXT
        return q, 0
    if floating or (kind != INTEGER and kind != TIMESTAMP):
        return -1, 0
    known, value = integer_value(data, p, q)
    if not known:
        return -1, 0
    if kind == TIMESTAMP:
        factor = spec[4, c]
        if factor == 0:
            factor = 1000 if -_AUTO_FROM < value < _AUTO_FROM else 1
        if value > _MAX_MICROS // factor or value < -(-_MIN_MICROS // factor):
            return -1, 0
        value *= factor
    if value < spec[2, c] or value > spec[3, c]:
        return -1, 0
    values[c, i] = value
    valid[c, i] = VALUE
    return q, 0


_ARRAYS = types.Tuple((_OUT, types.float64[:, ::1], _OUT, _MATRIX))
_SPEC = types.Array(types.int64, 2, "C", readonly=True)
store = _compiled(types.UniTuple(_I, 2)(_BYTES, _I, _I, _I, _I, _SPEC, _ARRAYS), _store)


def _row(data: Any, p: int, end: int, i: int, names: Any, name_offsets: Any, spec: Any, out: Any) -> int:
    """Parse one payload into row `i`; return its status."""
    seen = 0
    p = space(data, p, end)
    if p >= end or data[p] != 123:
        return ASK
    p = space(data, p + 1, end)
    hint = 0
    if p < end and data[p] == 125:
        p += 1
    else:
        while True:
            if p >= end or data[p] != 34:
                return ASK
            q, flags = string_end(data, p + 1, end)
            if q < 0 or flags & 1:
                return ASK
            seen |= flags
            c = find(data, p + 1, q - p - 1, names, name_offsets, hint)
            p = space(data, q + 1, end)
            if p >= end or data[p] != 58:
                return ASK
            p = space(data, p + 1, end)
            if p >= end:
                return ASK
            if c < 0:
                p, flags = skip(data, p, end)
            else:
                p, flags = store(data, p, end, i, c, spec, out)
                hint = c + 1 if c + 1 < spec.shape[1] else 0
            if p < 0:
                return ASK
            seen |= flags
            p = space(data, p, end)
            if p >= end:
                return ASK
            if data[p] == 125:
                p += 1
                break
            if data[p] != 44:
                return ASK
            p = space(data, p + 1, end)
    if space(data, p, end) != end:
        return ASK
    for c in range(spec.shape[1]):
        if spec[1, c] != 0 and out[3][c, i] == NULL:
            return ASK
    return NON_ASCII if seen & 2 else GOOD


row = _compiled(_I(_BYTES, _I, _I, _I, _BYTES, _INTS, _SPEC, _ARRAYS), _row)


def _parse(data: Any, offsets: Any, names: Any, name_offsets: Any, spec: Any, out: Any, status: Any) -> int:
    """Parse payload i = data[offsets[i]:offsets[i+1]] into row i of `out`; return the highest status.

    `spec` has one column a field: kind, required, low, high, factor of timestamps (0 = by magnitude).
    `out` is (values, the same memory as floats, lengths of texts, validity), the last one zeroed by the caller.
    """
    worst = 0
    for i in range(len(status)):
        s = row(data, offsets[i], offsets[i + 1], i, names, name_offsets, spec, out)
        status[i] = s
        worst = max(worst, s)
    return worst


parse = _compiled(_I(_BYTES, _INTS, _BYTES, _INTS, _SPEC, _ARRAYS, types.uint8[::1]), _parse)


def _texts(data: Any, starts: Any, lengths: Any, valid: Any, offsets: Any, target: Any) -> int:
    """Copy the texts one behind the other, escapes resolved; return the bytes written."""
    w = 0
    for i in range(len(starts)):
        offsets[i] = w
        if valid[i] == VALUE:
            p = starts[i]
            for k in range(lengths[i]):
                target[w + k] = data[p + k]
            w += lengths[i]
        elif valid[i] == ESCAPED:
            p = starts[i]
            end = p + lengths[i]
            while p < end:
                c = np.int64(data[p])
                p += 1
                if c != 92:
                    target[w] = c
                    w += 1
                    continue
                c = np.int64(data[p])
                p += 1
                if c == 117:
                    code = 0
                    for k in range(4):
                        h = np.int64(data[p + k])
                        code = code * 16 + (h - 48 if h <= 57 else (h | 32) - 87)
                    p += 4
                    if code < 0x80:
                        target[w] = code
                        w += 1
                    elif code < 0x800:
                        target[w] = 0xC0 | (code >> 6)
                        target[w + 1] = 0x80 | (code & 63)
                        w += 2
                    else:
                        target[w] = 0xE0 | (code >> 12)
                        target[w + 1] = 0x80 | ((code >> 6) & 63)
                        target[w + 2] = 0x80 | (code & 63)
                        w += 3
                    continue
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
                target[w] = c
                w += 1
    offsets[len(starts)] = w
    return w


texts = _compiled(
    _I(
        _BYTES,
        types.Array(types.int64, 1, "C"),
        types.Array(types.int64, 1, "C"),
        types.uint8[::1],
        types.int32[::1],
        types.uint8[::1],
    ),
    _texts,
)
