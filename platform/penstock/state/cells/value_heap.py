"""Values of any length that cells refer to: strings, binaries and long decimals of `min`, `max`, `first` and `last`.

A cell holds the address of a value in words of a `ValueHeap` (their form: `kernels.aggregates.values`). Values are
never changed and never move under anybody: who copies cells holds `pinned`, too. What no cell refers to any more is
left behind when the table compacts the heap: when it is twice what it was after the last time, when memory is full and
when keys leave. Owned by one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.types as pt

from penstock.kernels.aggregates import values as kernels
from penstock.kernels.keys.key_columns import BytesColumn, bytes_to_arrow, key_column
from penstock.state.cells.accumulators import address_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.kernels.compiler.compile import I64, U8

#: Words of a piece of memory, if a batch does not need more; a heap is not compacted below that many.
_PIECE, _LEAST = 1 << 16, 1 << 20
_DECIMAL_BYTES = 16


class ValueHeap:
    """Memory of values."""

    def __init__(self, least: int = _LEAST) -> None:
        """Start empty; the heap of fewer than `least` words is never full."""
        self._pieces: list[I64] = []
        self._room: I64 = np.empty(0, np.int64)
        self._least = least
        #: Words that were taken, and how many there may be.
        self._used, self._most = 0, least

    @property
    def memory_bytes(self) -> int:
        """Bytes of all values, also of those that nothing refers to."""
        return 8 * self._used

    @property
    def full(self) -> bool:
        """Whether it is time to compact."""
        return self._used > self._most

    @property
    def pinned(self) -> tuple[I64, ...]:
        """Memory that the addresses given so far lie in."""
        return tuple(self._pieces)

    def put(self, array: pa.Array) -> I64:
        """Take up values; returns the address of each, 0 for null."""
        addresses = np.empty(len(array), np.int64)
        column = _bytes_of(array)
        need = 2 * len(array) + int(column.offsets[-1] - column.offsets[0]) // 8 + 1
        given = (column.data, column.offsets, column.bitmap)
        self._make_room(need)
        used = kernels.pack_values(given, column.bit_offset, address_of(self._room), (self._room, addresses))
        self._take(int(used))
        return addresses

    def take_up(self, words: I64) -> int:
        """Take up values that lie one behind the other, in words; returns the address of the first."""
        self._make_room(len(words))
        self._room[: len(words)] = words
        address = address_of(self._room)
        self._take(len(words))
        return address

    def compact(self, addresses: I64) -> I64:
        """Leave all values behind that these addresses, a row for each cell, do not name; returns the new ones.

        What is equal within a row is there once afterwards: `min`, `max`, `first` and `last` of one column often are.
        """
        flat, width = np.ascontiguousarray(addresses).reshape(-1), addresses.shape[1]
        sizes, found = np.zeros(2, np.int64), np.empty(len(flat), np.int64)
        kernels.size_of_values(flat, width, sizes)
        before = self.pinned  # to be read until all is moved
        self._pieces, self._room, self._used = [], np.empty(0, np.int64), 0
        self._make_room(int(sizes[1]))
        self._take(int(kernels.move_values(flat, width, address_of(self._room), (self._room, found))))
        del before
        self._most = max(self._least, 2 * self._used)
        return found.reshape(addresses.shape)

    def _make_room(self, words: int) -> None:
        if words > len(self._room):
            self._room = np.empty(max(words, _PIECE), np.int64)
            self._pieces.append(self._room)

    def _take(self, words: int) -> None:
        self._room = self._room[words:]
        self._used += words


def take_values(addresses: I64, data_type: pa.DataType) -> pa.Array:
    """Return the values at these addresses as an array of the type they came of; 0 gives null."""
    addresses, sizes = np.ascontiguousarray(addresses), np.zeros(2, np.int64)
    kernels.size_of_values(addresses, 1, sizes)
    data, offsets = np.empty(int(sizes[0]), np.uint8), np.empty(len(addresses) + 1, np.int64)
    kernels.unpack_values(addresses, data, offsets)
    if pt.is_decimal128(data_type):
        data = _turned(_signed(data))
    return bytes_to_arrow(data, offsets, (addresses != 0).astype(np.uint8), data_type)


def _bytes_of(array: pa.Array) -> BytesColumn:
    """Return values as bytes whose order is that of the values."""
    column = key_column(array)
    assert isinstance(column, BytesColumn)  # noqa: S101 - other types never come here
    if column.decimal:
        column = BytesColumn(_signed(_turned(column.data)), column.offsets, column.bitmap, column.bit_offset)
    return column


def _turned(data: U8) -> U8:
    """Turn 16-byte numbers from little to big-endian, or back."""
    return np.ascontiguousarray(data.reshape(-1, _DECIMAL_BYTES)[:, ::-1]).reshape(-1)


def _signed(data: U8) -> U8:
    """Let negative numbers stand before the others, or take that back."""
    rows = data.reshape(-1, _DECIMAL_BYTES).copy()
    rows[:, 0] ^= 0x80
    return rows.reshape(-1)
