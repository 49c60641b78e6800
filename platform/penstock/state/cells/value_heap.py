"""Heap of the variable-length values that cells refer to: results of `min`, `max`, `first` and `last`.

A cell holds the address of a value in words of a `ValueHeap` (their form: `kernels.aggregates.values`). Values are
never changed or moved in place: a reader that copies cells keeps `pinned` as well. Values without a reference are
dropped when the table compacts the heap. It does so when its size has doubled, when memory is full and when keys are
evicted. Owned by one thread.
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

#: Words of a memory block, unless a batch needs more; below the second number a heap is not compacted.
_PIECE, _LEAST = 1 << 16, 1 << 20
_DECIMAL_BYTES = 16


class ValueHeap:
    """The memory of values."""

    def __init__(self, least: int = _LEAST) -> None:
        """Start empty; the heap of fewer than `least` words is never full."""
        self._pieces: list[I64] = []
        self._room: I64 = np.empty(0, np.int64)
        self._least = least
        #: Words in use, and their number that starts a compaction.
        self._used, self._most = 0, least

    @property
    def memory_bytes(self) -> int:
        """The bytes of all values, also of unreferenced ones."""
        return 8 * self._used

    @property
    def full(self) -> bool:
        """Whether the heap should be compacted."""
        return self._used > self._most

    @property
    def pinned(self) -> tuple[I64, ...]:
        """The memory blocks that contain the addresses returned so far."""
        return tuple(self._pieces)

    def put(self, array: pa.Array) -> I64:
        """Store values; return the address of each, 0 for null."""
        addresses = np.empty(len(array), np.int64)
        column = _bytes_of(array)
        need = 2 * len(array) + int(column.offsets[-1] - column.offsets[0]) // 8 + 1
        given = (column.data, column.offsets, column.bitmap)
        self._make_room(need)
        used = kernels.pack_values(given, column.bit_offset, address_of(self._room), (self._room, addresses))
        self._take(int(used))
        return addresses

    def put_words(self, words: I64) -> int:
        """Store packed values, one after the other in words; return the address of the first."""
        self._make_room(len(words))
        self._room[: len(words)] = words
        address = address_of(self._room)
        self._take(len(words))
        return address

    def compact(self, addresses: I64) -> I64:
        """Keep only the values at these addresses, one row for each cell; return the new addresses.

        Equal values within a row are stored once: `min`, `max`, `first` and `last` of one column are often equal.
        """
        flat, width = np.ascontiguousarray(addresses).reshape(-1), addresses.shape[1]
        sizes, found = np.zeros(2, np.int64), np.empty(len(flat), np.int64)
        kernels.size_of_values(flat, width, sizes)
        before = self.pinned  # keeps the old memory until all values are moved
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
    """Return the values at these addresses as an array of their type; 0 gives null."""
    addresses, sizes = np.ascontiguousarray(addresses), np.zeros(2, np.int64)
    kernels.size_of_values(addresses, 1, sizes)
    data, offsets = np.empty(int(sizes[0]), np.uint8), np.empty(len(addresses) + 1, np.int64)
    kernels.unpack_values(addresses, data, offsets)
    if pt.is_decimal128(data_type):
        data = _byte_swapped(_signed(data))
    return bytes_to_arrow(data, offsets, (addresses != 0).astype(np.uint8), data_type)


def _bytes_of(array: pa.Array) -> BytesColumn:
    """Return values as bytes that sort like the values."""
    column = key_column(array)
    assert isinstance(column, BytesColumn)  # noqa: S101 - callers pass no other types
    if column.decimal:
        column = BytesColumn(_signed(_byte_swapped(column.data)), column.offsets, column.bitmap, column.bit_offset)
    return column


def _byte_swapped(data: U8) -> U8:
    """Convert 16-byte numbers from little to big-endian, or back."""
    return np.ascontiguousarray(data.reshape(-1, _DECIMAL_BYTES)[:, ::-1]).reshape(-1)


def _signed(data: U8) -> U8:
    """Flip the sign bits, so that negative numbers sort first, or flip them back."""
    rows = data.reshape(-1, _DECIMAL_BYTES).copy()
    rows[:, 0] ^= 0x80
    return rows.reshape(-1)
