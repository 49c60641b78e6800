"""Byte keys of a cold store: `pane | hash | key columns`, ordered so that panes and hashes are ranges.

Pane and hash are big-endian with the sign bit flipped; fixed-width key columns follow as (valid, 8 bytes), then bytes
as (length, data). Used by the cold stores of `state.tiers`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.keygroup import HASH_MAX
from penstock.kernels.keys.key_columns import BytesColumn, FixedColumn, KeyColumns, fixed_column
from penstock.kernels.keys.key_types import is_fixed

if TYPE_CHECKING:
    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64, U8
    from penstock.state.keys.key_index import KeyView

_PREFIX = 16
_FIXED = 9
_NULL = 0xFFFFFFFF
_SIGN = np.uint64(1 << 63)
_LENGTH = struct.Struct(">I")


def bound(pane: int, key_hash: int = -(1 << 63)) -> bytes:
    """Return the lowest store key of a pane and hash."""
    return struct.pack(">QQ", (pane + (1 << 63)) & ((1 << 64) - 1), (key_hash + (1 << 63)) & ((1 << 64) - 1))


def bounds(pane: int, part: HashRange) -> tuple[bytes, bytes]:
    """Return the lowest store key of a pane and hash range, and the lowest one after them."""
    return bound(pane, part.low), bound(pane + 1) if part.high == HASH_MAX else bound(pane, part.high + 1)


def _big_endian(values: I64) -> U8:
    return (np.ascontiguousarray(values).view(np.uint64) ^ _SIGN).astype(">u8").view(np.uint8).reshape(-1, 8)


def _from_big_endian(columns: U8) -> I64:
    raw = np.ascontiguousarray(columns).view(">u8").reshape(-1).astype(np.uint64)
    return (raw ^ _SIGN).view(np.int64)


def encode_keys(keys: KeyView, slots: I32, panes: I64) -> list[bytes]:
    """Return the store key of every (slot, pane)."""
    arrays = keys.gather(slots)
    fixed = [fixed_column(a) for a in arrays if is_fixed(a.type)]
    rows = np.zeros((len(slots), _PREFIX + _FIXED * len(fixed)), np.uint8)
    rows[:, :8] = _big_endian(panes)
    rows[:, 8:16] = _big_endian(keys.hashes[slots])
    for k, column in enumerate(fixed):
        at = _PREFIX + _FIXED * k
        valid = np.ones(len(slots), np.uint8)
        if column.nullable:
            bits = np.unpackbits(column.bitmap, count=column.bit_offset + len(slots), bitorder="little")
            valid = bits[column.bit_offset :]
        rows[:, at] = valid
        rows[:, at + 1 : at + 9] = _big_endian(np.where(valid == 1, column.values, 0))
    width = rows.shape[1]
    flat = rows.tobytes()
    heads = [flat[i : i + width] for i in range(0, len(flat), width)]
    for array in (a for a in arrays if not is_fixed(a.type)):
        tails = [_LENGTH.pack(_NULL) if v is None else _LENGTH.pack(len(v)) + v for v in _as_bytes(array)]
        heads = [head + tail for head, tail in zip(heads, tails, strict=True)]
    return heads


def second_numbers(keys: list[bytes]) -> I64:
    """Return the second number of each store key: the hash; of a name of a timer, the time."""
    return _from_big_endian(np.frombuffer(b"".join(key[8:_PREFIX] for key in keys), np.uint8).reshape(-1, 8))


def _as_bytes(array: pa.Array) -> list[bytes | None]:
    if pt.is_decimal128(array.type):
        raw = pa.Array.from_buffers(pa.binary(16), len(array), array.buffers(), offset=array.offset)
        return raw.to_pylist()  # type: ignore[no-any-return]
    wide = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    return array.cast(pa.large_binary() if wide else pa.binary()).to_pylist()  # type: ignore[no-any-return]


def decode_keys(schema: pa.Schema, keys: list[bytes]) -> tuple[KeyColumns, I64, I64]:
    """Return (key columns, hashes, panes) of store keys."""
    fixed_count = sum(is_fixed(f.type) for f in schema)
    head = _PREFIX + _FIXED * fixed_count
    rows = np.frombuffer(b"".join(k[:head] for k in keys), np.uint8).reshape(len(keys), head)
    fixed = iter([_fixed(rows, _PREFIX + _FIXED * k) for k in range(fixed_count)])
    variable = iter(_variable(schema, keys, head))
    columns = tuple(next(fixed) if is_fixed(f.type) else next(variable) for f in schema)
    return columns, _from_big_endian(rows[:, 8:16]), _from_big_endian(rows[:, :8])


def _fixed(rows: U8, at: int) -> FixedColumn:
    valid = np.ascontiguousarray(rows[:, at])
    values = _from_big_endian(rows[:, at + 1 : at + 9])
    return FixedColumn(values) if valid.all() else FixedColumn(values, np.packbits(valid, bitorder="little"))


def _variable(schema: pa.Schema, keys: list[bytes], head: int) -> list[BytesColumn]:
    places = [head] * len(keys)
    columns = []
    for field in schema:
        if is_fixed(field.type):
            continue
        parts: list[bytes] = []
        valid = np.ones(len(keys), np.uint8)
        for i, key in enumerate(keys):
            (length,) = _LENGTH.unpack_from(key, places[i])
            start = places[i] + 4
            if length == _NULL:
                valid[i] = 0
                length = 0
            parts.append(key[start : start + length])
            places[i] = start + length
        offsets = np.zeros(len(keys) + 1, np.int64)
        np.cumsum([len(p) for p in parts], out=offsets[1:])
        data = np.frombuffer(b"".join(parts), np.uint8)
        decimal = bool(pt.is_decimal128(field.type))
        if valid.all():
            columns.append(BytesColumn(data, offsets, decimal=decimal))
        else:
            columns.append(BytesColumn(data, offsets, np.packbits(valid, bitorder="little"), decimal=decimal))
    return columns
