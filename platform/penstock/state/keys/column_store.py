"""Columns that grow at their end, as words or bytes: the keys of an index, and the values of a `ValueTable`.

Arrays grow at their end and are replaced, never moved in place, and existing rows never change. So a `frozen` copy
stays valid in any thread while the owner appends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from penstock.kernels.keys import hash_index as kernels
from penstock.kernels.keys.key_columns import BytesColumn, FixedColumn, bytes_to_arrow, fixed_to_arrow
from penstock.kernels.keys.key_types import is_fixed

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.kernels.compiler.compile import I32, I64, U8


@dataclass(slots=True)
class FixedStore:
    """Values of a type that fits into a word (floats by their bits)."""

    data_type: pa.DataType
    words: I64
    valid: U8
    #: Upper bound of the number of nulls.
    nulls: int = 0

    @property
    def memory_bytes(self) -> int:
        """The bytes of the arrays."""
        return int(self.words.nbytes + self.valid.nbytes)

    def bytes_of(self, rows: int) -> int:
        """Return the bytes of the first `rows` rows."""
        return 9 * rows

    def frozen(self) -> FixedStore:
        """Return the column as of now."""
        return FixedStore(self.data_type, self.words, self.valid, self.nulls)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` rows."""
        self.words, self.valid = grown(self.words, capacity), grown(self.valid, capacity)

    def append(self, column: FixedColumn, rows: I32, first: int) -> None:
        """Write these rows of a column at `first`, `first + 1`..., which have room."""
        source, store = (column.values, column.bitmap), (self.words, self.valid)
        self.nulls += kernels.append_fixed(source, column.bit_offset, rows, first, store)

    def append_nulls(self, first: int, rows: int) -> None:
        """Write rows without a value."""
        self.words[first : first + rows] = 0
        self.valid[first : first + rows] = 0
        self.nulls += rows

    def array(self, rows: I32) -> pa.Array:
        """Return the values of rows."""
        return fixed_to_arrow(self.words[rows], self.valid[rows] if self.nulls else None, self.data_type)

    def moved(self, rows: I32, capacity: int) -> FixedStore:
        """Return a column of these rows, in this order, with room for `capacity`."""
        return FixedStore(
            self.data_type, grown(self.words[rows], capacity), grown(self.valid[rows], capacity), self.nulls
        )

    def differ(self, column: FixedColumn, rows: I32, slots: I32, bad: U8) -> int:
        """Mark the rows of a column that differ from the value at their slot; return their number."""
        source, store = (column.values, column.bitmap), (self.words, self.valid)
        return int(kernels.differ_fixed(source, column.bit_offset, (rows, slots), store, bad))


@dataclass(slots=True)
class BytesStore:
    """Values of any length, one after the other; the methods are those of `FixedStore`."""

    data_type: pa.DataType
    data: U8
    starts: I64
    valid: U8
    nulls: int = 0

    @property
    def memory_bytes(self) -> int:
        """The bytes of the arrays."""
        return int(self.data.nbytes + self.starts.nbytes + self.valid.nbytes)

    def bytes_of(self, rows: int) -> int:
        """Return the bytes of the first `rows` rows."""
        return int(self.starts[rows]) + 9 * rows

    def frozen(self) -> BytesStore:
        """Return the column as of now."""
        return BytesStore(self.data_type, self.data, self.starts, self.valid, self.nulls)

    def grow(self, capacity: int) -> None:
        """Make room for `capacity` rows."""
        self.starts, self.valid = grown(self.starts, capacity + 1), grown(self.valid, capacity)

    def append(self, column: BytesColumn, rows: I32, first: int) -> None:
        """Write these rows of a column at `first`, `first + 1`..., which have room."""
        need = int(self.starts[first]) + int(kernels.bytes_of_rows(column.offsets, rows))
        if need > len(self.data):
            self.data = grown(self.data, max(need, 2 * len(self.data)))
        source, store = (column.data, column.offsets, column.bitmap), (self.data, self.starts, self.valid)
        self.nulls += kernels.append_bytes(source, column.bit_offset, rows, first, store)

    def append_nulls(self, first: int, rows: int) -> None:
        """Write rows without a value."""
        self.starts[first + 1 : first + rows + 1] = self.starts[first]
        self.valid[first : first + rows] = 0
        self.nulls += rows

    def array(self, rows: I32) -> pa.Array:
        """Return the values of rows."""
        data, offsets = self._gathered(rows)
        return bytes_to_arrow(data, offsets, self.valid[rows] if self.nulls else None, self.data_type)

    def moved(self, rows: I32, capacity: int) -> BytesStore:
        """Return a column of these rows, in this order, with room for `capacity`."""
        data, offsets = self._gathered(rows)
        arrays = (grown(data, 2 * len(data)), grown(offsets, capacity + 1), grown(self.valid[rows], capacity))
        return BytesStore(self.data_type, *arrays, self.nulls)

    def differ(self, column: BytesColumn, rows: I32, slots: I32, bad: U8) -> int:
        """Mark the rows of a column that differ from the value at their slot; return their number."""
        source, store = (column.data, column.offsets, column.bitmap), (self.data, self.starts, self.valid)
        return int(kernels.differ_bytes(source, column.bit_offset, (rows, slots), store, bad))

    def _gathered(self, rows: I32) -> tuple[U8, I64]:
        size = int((self.starts[rows + 1] - self.starts[rows]).sum()) if len(rows) else 0
        data, offsets = np.empty(size, np.uint8), np.empty(len(rows) + 1, np.int64)
        kernels.gather_bytes(self.data, self.starts, rows, data, offsets)
        return data, offsets


ColumnStore: TypeAlias = FixedStore | BytesStore


def new_store(data_type: pa.DataType, capacity: int, first_bytes: int) -> ColumnStore:
    """Return an empty column with room for `capacity` rows, and initially `first_bytes` bytes of variable length."""
    valid = np.zeros(capacity, np.uint8)
    if is_fixed(data_type):
        return FixedStore(data_type, np.zeros(capacity, np.int64), valid)
    return BytesStore(data_type, np.empty(first_bytes, np.uint8), np.zeros(capacity + 1, np.int64), valid)


def grown(array: np.ndarray, capacity: int) -> np.ndarray:
    """Return a copy of an array with room for `capacity` elements."""
    bigger = np.empty(capacity, array.dtype)
    bigger[: len(array)] = array
    return bigger
