"""Arrow columns as arrays for kernels, in canonical form, and back: int64 for fixed-width types, bytes for the rest.

Canonical: all ints and bools are int64; float32 is float64, -0.0 is 0.0, there is one NaN; timestamps are microseconds
(nanosecond columns keep theirs); dates are days; decimals up to 18 digits their unscaled number. So equal keys have
equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.errors import GraphError
from penstock.kernels.compiler.compile import F64, F64_IN, I64, I64_OUT, U8, i8, kernel
from penstock.kernels.keys.key_types import is_fixed, is_key_type

_NO_BITMAP = np.zeros(0, np.uint8)


def _no_bitmap() -> U8:
    return _NO_BITMAP


_NAN_BITS = 0x7FF8000000000000
#: Microseconds per unit of timestamps; nanoseconds stay nanoseconds.
_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


@dataclass(frozen=True, slots=True)
class FixedColumn:
    """Canonical int64 values; an empty bitmap means no nulls; bit `bit_offset + i` belongs to row i."""

    values: I64
    bitmap: U8 = field(default_factory=_no_bitmap)
    bit_offset: int = 0

    @property
    def nullable(self) -> bool:
        """Return whether a row may be null."""
        return len(self.bitmap) > 0


@dataclass(frozen=True, slots=True)
class BytesColumn:
    """Row i is `data[offsets[i]:offsets[i + 1]]`; `decimal`: 16-byte unscaled numbers, hashed in Java's form."""

    data: U8
    offsets: I64
    bitmap: U8 = field(default_factory=_no_bitmap)
    bit_offset: int = 0
    decimal: bool = False

    @property
    def nullable(self) -> bool:
        """Return whether a row may be null."""
        return len(self.bitmap) > 0


KeyColumns: TypeAlias = tuple[FixedColumn | BytesColumn, ...]


@kernel(i8(F64_IN, I64_OUT))
def canonical_floats(values: F64, out: I64) -> int:
    """Write the canonical bits of floats: one zero, one NaN."""
    bits = values.view(np.int64)
    for i in range(len(values)):
        value = values[i]
        if value != value:  # noqa: PLR0124 - that is what NaN is
            out[i] = _NAN_BITS
        elif value == 0.0:
            out[i] = 0
        else:
            out[i] = bits[i]
    return len(values)


def _bitmap(array: pa.Array) -> tuple[U8, int]:
    if array.null_count == 0:
        return _NO_BITMAP, 0
    return np.frombuffer(array.buffers()[0], np.uint8), int(array.offset)


def _raw(array: pa.Array, dtype: Any, *, per_row: int = 1) -> Any:
    rows = len(array)
    if rows == 0:
        return np.zeros(0, dtype)
    item = np.dtype(dtype).itemsize * per_row
    return np.frombuffer(array.buffers()[1], dtype, count=rows * per_row, offset=array.offset * item)


def _fixed_values(array: pa.Array) -> I64:
    kind = array.type
    if pt.is_int64(kind) or pt.is_uint64(kind):
        return _raw(array, np.int64)  # type: ignore[no-any-return]
    if pt.is_boolean(kind):
        if len(array) == 0:
            return np.zeros(0, np.int64)
        packed = np.frombuffer(array.buffers()[1], np.uint8)
        bits = np.unpackbits(packed, count=array.offset + len(array), bitorder="little")
        return bits[array.offset :].astype(np.int64)
    if pt.is_floating(kind):
        floats = np.ascontiguousarray(_raw(array, kind.to_pandas_dtype()), np.float64)
        out = np.empty(len(array), np.int64)
        canonical_floats(floats, out)
        return out
    if pt.is_integer(kind):
        return _raw(array, kind.to_pandas_dtype()).astype(np.int64)  # type: ignore[no-any-return]
    if pt.is_timestamp(kind):
        raw: I64 = _raw(array, np.int64)
        return raw if _UNIT_US[kind.unit] == 1 else raw * _UNIT_US[kind.unit]
    if pt.is_decimal128(kind):
        return np.ascontiguousarray(_raw(array, np.int64, per_row=2)[0::2])
    if pt.is_date32(kind) or pt.is_time32(kind):
        return _raw(array, np.int32).astype(np.int64)  # type: ignore[no-any-return]
    if pt.is_date64(kind):
        return _raw(array, np.int64) // 86_400_000  # type: ignore[no-any-return]
    return _raw(array, np.int64)  # type: ignore[no-any-return]  # time64, duration


def fixed_column(array: pa.Array) -> FixedColumn:
    """Return a fixed-width Arrow array in canonical form; int64 and microsecond columns are not copied."""
    bitmap, bit_offset = _bitmap(array)
    return FixedColumn(_fixed_values(array), bitmap, bit_offset)


def float_column(array: pa.Array) -> F64:
    """Return a numeric Arrow array as float64 (values of null rows are arbitrary)."""
    kind = array.type
    if pt.is_float64(kind):
        return _raw(array, np.float64)  # type: ignore[no-any-return]
    if pt.is_floating(kind):
        return _raw(array, kind.to_pandas_dtype()).astype(np.float64)  # type: ignore[no-any-return]
    return _fixed_values(array).astype(np.float64)


def _bytes_column(array: pa.Array) -> BytesColumn:
    kind, rows = array.type, len(array)
    bitmap, bit_offset = _bitmap(array)
    if pt.is_fixed_size_binary(kind) or pt.is_decimal128(kind):
        width = 16 if pt.is_decimal128(kind) else kind.byte_width
        data = _raw(array, np.uint8, per_row=width)
        offsets = np.arange(rows + 1, dtype=np.int64) * width
        return BytesColumn(data, offsets, bitmap, bit_offset, decimal=bool(pt.is_decimal128(kind)))
    wide = pt.is_large_string(kind) or pt.is_large_binary(kind)
    if rows == 0:
        return BytesColumn(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    buffers = array.buffers()
    dtype = np.int64 if wide else np.int32
    offsets = np.frombuffer(buffers[1], dtype, count=rows + 1, offset=array.offset * np.dtype(dtype).itemsize)
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.zeros(0, np.uint8)
    return BytesColumn(data, offsets.astype(np.int64, copy=False), bitmap, bit_offset)


def key_column(array: pa.Array, name: str = "key") -> FixedColumn | BytesColumn:
    """Return one key column in canonical form.

    Raises:
        GraphError: the type cannot be a key.
    """
    if is_fixed(array.type):
        return fixed_column(array)
    if pt.is_dictionary(array.type):
        return key_column(array.dictionary_decode(), name)
    if not is_key_type(array.type):
        raise GraphError(
            f"column {name!r} of type {array.type} cannot be a key",
            hint="key by integers, floats, booleans, strings, binaries, timestamps, dates or decimals",
        )
    return _bytes_column(array)


def value_column(array: pa.Array) -> FixedColumn | BytesColumn:
    """Return a column of values as `key_column` does, but floats by their bits: zeros keep their sign."""
    plain = array.dictionary_decode() if pt.is_dictionary(array.type) else array
    if pt.is_floating(plain.type):
        return FixedColumn(float_column(plain).view(np.int64), *_bitmap(plain))
    return key_column(plain)


def key_columns(batch: pa.RecordBatch, columns: tuple[str, ...]) -> KeyColumns:
    """Return the named columns of a batch in canonical form."""
    return tuple(key_column(batch.column(name), name) for name in columns)


def validity_buffer(valid: U8) -> pa.Buffer | None:
    """Return the Arrow validity bitmap of 0/1 bytes, None when all are valid."""
    return None if bool(valid.all()) else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())


def fixed_to_arrow(values: I64, valid: U8 | None, data_type: pa.DataType) -> pa.Array:
    """Return canonical values as an Arrow array of `data_type`: the inverse of `fixed_column`."""
    if pt.is_boolean(data_type):
        data: Any = np.packbits(values.astype(np.uint8), bitorder="little")
    elif pt.is_float64(data_type):
        data = values
    elif pt.is_floating(data_type):
        data = values.view(np.float64).astype(data_type.to_pandas_dtype())
    elif pt.is_integer(data_type):
        data = values.astype(data_type.to_pandas_dtype(), copy=False)
    elif pt.is_timestamp(data_type):
        data = values if _UNIT_US[data_type.unit] == 1 else values // _UNIT_US[data_type.unit]
    elif pt.is_decimal128(data_type):
        data = np.empty((len(values), 2), np.int64)
        data[:, 0] = values
        data[:, 1] = values >> 63
    elif pt.is_date32(data_type) or pt.is_time32(data_type):
        data = values.astype(np.int32)
    elif pt.is_date64(data_type):
        data = values * 86_400_000
    else:
        data = values
    bitmap = None if valid is None else validity_buffer(valid)
    return pa.Array.from_buffers(data_type, len(values), [bitmap, pa.py_buffer(np.ascontiguousarray(data))])


def bytes_to_arrow(data: U8, offsets: I64, valid: U8 | None, data_type: pa.DataType) -> pa.Array:
    """Return contiguous bytes as an Arrow array of `data_type`: the inverse of the bytes form."""
    bitmap = None if valid is None else validity_buffer(valid)
    rows = len(offsets) - 1
    if pt.is_fixed_size_binary(data_type) or pt.is_decimal128(data_type):
        width = 16 if pt.is_decimal128(data_type) else data_type.byte_width
        if bitmap is not None and valid is not None:  # null rows hold no bytes here, but `width` of them in Arrow
            padded = np.zeros((rows, width), np.uint8)
            padded[valid.astype(bool)] = data.reshape(-1, width)
            data = padded.reshape(-1)
        return pa.Array.from_buffers(data_type, rows, [bitmap, pa.py_buffer(np.ascontiguousarray(data))])
    wide = pt.is_large_string(data_type) or pt.is_large_binary(data_type)
    index = offsets if wide else offsets.astype(np.int32)
    return pa.Array.from_buffers(data_type, rows, [bitmap, pa.py_buffer(index), pa.py_buffer(data)])
