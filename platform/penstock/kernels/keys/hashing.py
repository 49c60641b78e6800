"""Key hashes as Spark computes them: `xxhash64` with seed 42.

Columns are folded in order; a null leaves the running hash unchanged. Keys are in canonical form
(`kernels.keys.key_columns`): every fixed-width key is an int64, strings and binaries are their bytes, decimals of more
than 18 digits the bytes of their unscaled number. Called by the partitioner's split and by keyed operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.kernels.compiler.compile import I64, I64_IN, U8, U8_IN, U64, U64_OUT, i8, kernel, load4, load8, njit
from penstock.kernels.keys.key_columns import FixedColumn, KeyColumns, key_columns

if TYPE_CHECKING:
    import pyarrow as pa

SEED = 42
_U = np.uint64
_P1 = _U(0x9E3779B185EBCA87)
_P2 = _U(0xC2B2AE3D27D4EB4F)
_P3 = _U(0x165667B19E3779F9)
_P4 = _U(0x85EBCA77C2B2AE63)
_P5 = _U(0x27D4EB2F165667C5)


@njit
def _rotate(x: Any, count: Any) -> Any:
    return (x << _U(count)) | (x >> _U(64 - count))


@njit
def _avalanche(h: Any) -> Any:
    h ^= h >> _U(33)
    h *= _P2
    h ^= h >> _U(29)
    h *= _P3
    return h ^ (h >> _U(32))


@njit
def _hash_long(value: Any, seed: Any) -> Any:
    h = seed + _P5 + _U(8)
    h ^= _rotate(value * _P2, 31) * _P1
    return _avalanche(_rotate(h, 27) * _P1 + _P4)


@njit
def _stripes(data: Any, at: Any, end: Any, seed: Any) -> Any:
    v1, v2, v3, v4 = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
    while at <= end - 32:
        v1 = _rotate(v1 + load8(data, at) * _P2, 31) * _P1
        v2 = _rotate(v2 + load8(data, at + 8) * _P2, 31) * _P1
        v3 = _rotate(v3 + load8(data, at + 16) * _P2, 31) * _P1
        v4 = _rotate(v4 + load8(data, at + 24) * _P2, 31) * _P1
        at += 32
    h = _rotate(v1, 1) + _rotate(v2, 7) + _rotate(v3, 12) + _rotate(v4, 18)
    for v in (v1, v2, v3, v4):
        h = (h ^ (_rotate(v * _P2, 31) * _P1)) * _P1 + _P4
    return h


@njit
def _hash_bytes(data: Any, start: Any, length: Any, seed: Any) -> Any:
    at, end = start, start + length
    if length >= 32:
        h = _stripes(data, at, end, seed)
        at += length & ~31
    else:
        h = seed + _P5
    h += _U(length)
    while at + 8 <= end:
        h = _rotate(h ^ (_rotate(load8(data, at) * _P2, 31) * _P1), 27) * _P1 + _P4
        at += 8
    if at + 4 <= end:
        h = _rotate(h ^ (_U(load4(data, at)) * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        h = _rotate(h ^ (_U(data[at]) * _P5), 11) * _P1
        at += 1
    return _avalanche(h)


@kernel(i8(I64_IN, U8_IN, i8, U64_OUT))
def hash_fixed(values: I64, bitmap: U8, bit_offset: int, out: U64) -> int:
    """Fold int64 keys into the running hashes `out`."""
    n = len(values)
    if len(bitmap) == 0:
        for i in range(n):
            out[i] = _hash_long(_U(values[i]), out[i])
    else:
        for i in range(n):
            bit = bit_offset + i
            if (bitmap[bit >> 3] >> (bit & 7)) & 1:
                out[i] = _hash_long(_U(values[i]), out[i])
    return n


@kernel(i8(U8_IN, I64_IN, U8_IN, i8, U64_OUT))
def hash_bytes(data: U8, offsets: I64, bitmap: U8, bit_offset: int, out: U64) -> int:
    """Fold strings or binaries into the running hashes `out`."""
    n = len(offsets) - 1
    nullable = len(bitmap) > 0
    for i in range(n):
        bit = bit_offset + i
        if nullable and not (bitmap[bit >> 3] >> (bit & 7)) & 1:
            continue
        out[i] = _hash_bytes(data, offsets[i], offsets[i + 1] - offsets[i], out[i])
    return n


@kernel(i8(U8_IN, U8_IN, i8, U64_OUT))
def hash_decimals(data: U8, bitmap: U8, bit_offset: int, out: U64) -> int:
    """Fold 16-byte little-endian decimals.

    Java's `BigInteger.toByteArray` (big-endian, as short as the sign allows) is hashed.
    """
    n = len(out)
    nullable = len(bitmap) > 0
    big = np.empty(16, np.uint8)
    for i in range(n):
        bit = bit_offset + i
        if nullable and not (bitmap[bit >> 3] >> (bit & 7)) & 1:
            continue
        for k in range(16):
            big[k] = data[i * 16 + 15 - k]
        fill = np.uint8(255) if big[0] & 128 else np.uint8(0)
        first = 0
        while first < 15 and big[first] == fill and (big[first + 1] & 128) == (fill & 128):
            first += 1
        out[i] = _hash_bytes(big, first, 16 - first, out[i])
    return n


def hash_key_columns(keys: KeyColumns, rows: int) -> I64:
    """Return the signed 64-bit hashes of already canonical key columns."""
    running = np.full(rows, SEED, np.uint64)
    for column in keys:
        if isinstance(column, FixedColumn):
            hash_fixed(column.values, column.bitmap, column.bit_offset, running)
        elif column.decimal:
            first = int(column.offsets[0])
            hash_decimals(column.data[first : first + 16 * rows], column.bitmap, column.bit_offset, running)
        else:
            hash_bytes(column.data, column.offsets, column.bitmap, column.bit_offset, running)
    return running.view(np.int64)


def hash_columns(batch: pa.RecordBatch, columns: tuple[str, ...]) -> I64:
    """Return the signed 64-bit hash of the key columns of every row.

    Raises:
        GraphError: a column's type cannot be a key.
    """
    return hash_key_columns(key_columns(batch, columns), int(batch.num_rows))
