"""Columns of row state: append-only typed values that are read by row number.

Fixed-width values are int64 words (floats by their bits), others are bytes one after the other. Arrays grow at their
end and are replaced, never moved in place. So a copy of a column object taken at a freeze stays valid while the owner
appends. Used by `penstock.state.tables.value_table`; copies are read by any thread.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.kernels.keys import hash_index as kernels
from penstock.kernels.keys.key_columns import (
    BytesColumn,
    bytes_to_arrow,
    fixed_column,
    fixed_to_arrow,
    float_column,
    key_column,
)
from penstock.kernels.keys.key_types import is_fixed
from penstock.state.memory.limits import PRODUCTION

if TYPE_CHECKING:
    from penstock.kernels.compiler.compile import I32, I64, U8


class FixedValues:
    """Values of a type that fits into a word."""

    def __init__(self, data_type: pa.DataType, capacity: int) -> None:
        """Allocate `capacity` rows."""
        self._type = data_type
        self._words: I64 = np.empty(capacity, np.int64)
        self._valid: U8 = np.empty(capacity, np.uint8)

    def put(self, first: int, array: pa.Array) -> None:
        """Write the values of rows `first`, `first + 1`..., which have room."""
        rows = len(array)
        if pt.is_floating(self._type):  # not as a key, which has one zero and one NaN
            self._words[first : first + rows] = float_column(array).view(np.int64)
        else:
            self._words[first : first + rows] = fixed_column(array).values
        self._valid[first : first + rows] = _valid(array)

    def put_nulls(self, first: int, rows: int) -> None:
        """Write rows without a value."""
        self._words[first : first + rows] = 0
        self._valid[first : first + rows] = 0

    def array(self, rows: I32) -> pa.Array:
        """Return the values of rows."""
        valid = self._valid[rows]
        return fixed_to_arrow(self._words[rows], None if valid.all() else valid, self._type)

    def values(self, rows: I32) -> list[Any]:
        """Return the values of rows as Python objects."""
        if not (pt.is_int64(self._type) or pt.is_float64(self._type)):
            return python_values(self.array(rows))
        words = self._words[rows]
        values: list[Any] = (words if pt.is_int64(self._type) else words.view(np.float64)).tolist()
        valid = self._valid[rows]
        if not valid.all():
            for row in np.flatnonzero(valid == 0).tolist():
                values[row] = None
        return values

    def words(self, rows: I32) -> I64:
        """Return the words of rows."""
        words: I64 = self._words[rows]
        return words

    def moved(self, rows: I32, capacity: int) -> FixedValues:
        """Return a column of these rows, in this order, with room for `capacity`."""
        new = FixedValues(self._type, capacity)
        new._words[: len(rows)] = self._words[rows]
        new._valid[: len(rows)] = self._valid[rows]
        return new

    def bytes_of(self, rows: int) -> int:
        """Return the bytes of the first `rows` rows."""
        return 9 * rows


class BytesValues:
    """Values of any length."""

    def __init__(self, data_type: pa.DataType, capacity: int, first_bytes: int) -> None:
        """Allocate `capacity` rows, and initially `first_bytes` bytes for them."""
        self._type = data_type
        self._first_bytes = first_bytes
        self._data: U8 = np.empty(first_bytes, np.uint8)
        self._starts: I64 = np.zeros(capacity + 1, np.int64)
        self._valid: U8 = np.empty(capacity, np.uint8)

    def put(self, first: int, array: pa.Array) -> None:
        """Write the values of rows `first`, `first + 1`..., which have room."""
        column = key_column(array)
        assert isinstance(column, BytesColumn)  # noqa: S101 - what is not fixed is bytes
        rows, at = np.arange(len(array), dtype=np.int32), int(self._starts[first])
        need = at + int(kernels.bytes_of_rows(column.offsets, rows))
        if need > len(self._data):
            data = np.empty(max(need, 2 * len(self._data)), np.uint8)
            data[:at] = self._data[:at]
            self._data = data
        source = (column.data, column.offsets, column.bitmap)
        kernels.append_bytes(source, column.bit_offset, rows, first, (self._data, self._starts, self._valid))

    def put_nulls(self, first: int, rows: int) -> None:
        """Write rows without a value."""
        self._starts[first + 1 : first + rows + 1] = self._starts[first]
        self._valid[first : first + rows] = 0

    def array(self, rows: I32) -> pa.Array:
        """Return the values of rows."""
        data, offsets = self._gathered(rows)
        valid = self._valid[rows]
        return bytes_to_arrow(data, offsets, None if valid.all() else valid, self._type)

    def values(self, rows: I32) -> list[Any]:
        """Return the values of rows as Python objects."""
        return python_values(self.array(rows))

    def moved(self, rows: I32, capacity: int) -> BytesValues:
        """Return a column of these rows, in this order, with room for `capacity`."""
        new = BytesValues(self._type, capacity, self._first_bytes)
        data, offsets = self._gathered(rows)
        new._data = np.empty(max(self._first_bytes, 2 * len(data)), np.uint8)
        new._data[: len(data)] = data
        new._starts[: len(offsets)] = offsets
        new._valid[: len(rows)] = self._valid[rows]
        return new

    def bytes_of(self, rows: int) -> int:
        """Return the bytes of the first `rows` rows."""
        return int(self._starts[rows]) + 9 * rows

    def _gathered(self, rows: I32) -> tuple[U8, I64]:
        size = int((self._starts[rows + 1] - self._starts[rows]).sum()) if len(rows) else 0
        data, offsets = np.empty(size, np.uint8), np.empty(len(rows) + 1, np.int64)
        kernels.gather_bytes(self._data, self._starts, rows, data, offsets)
        return data, offsets


ValueColumn: TypeAlias = FixedValues | BytesValues


def column_of(data_type: pa.DataType, capacity: int, first_bytes: int = PRODUCTION.first_bytes) -> ValueColumn:
    """Return an empty column with `capacity` rows, and initially `first_bytes` bytes for a variable length."""
    return FixedValues(data_type, capacity) if is_fixed(data_type) else BytesValues(data_type, capacity, first_bytes)


def python_values(array: pa.Array) -> list[Any]:
    """Return an array as Python values; timestamps via numpy, which is five times faster."""
    if pt.is_timestamp(array.type) and array.type.tz in ("UTC", None) and array.null_count == 0:
        naive: list[Any] = array.to_numpy(zero_copy_only=False).astype("datetime64[us]").tolist()
        return naive if array.type.tz is None else [value.replace(tzinfo=dt.UTC) for value in naive]
    values: list[Any] = array.to_pylist()
    return values


def plain_values(array: pa.Array) -> list[Any]:
    """Return an array as Python values; integers and floats without nulls are ten times faster."""
    if array.null_count == 0 and (pt.is_int64(array.type) or pt.is_float64(array.type)):
        values: list[Any] = array.to_numpy().tolist()
        return values
    return python_values(array)


def _valid(array: pa.Array) -> Any:
    return 1 if array.null_count == 0 else array.is_valid().to_numpy(zero_copy_only=False)
