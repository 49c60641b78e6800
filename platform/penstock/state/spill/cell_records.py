"""Cells as byte records for a cold store, each with the variable-length values that it refers to.

A record is the words of a cell, followed by its values in their memory format (`kernels.aggregates.values`), equal ones
once. A word that refers to a value has the value's byte offset among them plus 8; 0 is null. Only
`state.spill.cold_panes` uses it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.kernels.aggregates import values as kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.kernels.compiler.compile import I64
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.value_heap import ValueHeap

#: Bytes of records that are packed at a time; packing needs several copies of them.
_PIECE_BYTES = 1 << 20
#: Added to the offset of a value, so that no value is at 0.
_WORD = 8


class CellRecords:
    """A packer and unpacker of the cells of one table."""

    def __init__(self, spec: PaneTableSpec) -> None:
        """Prepare for cells of `spec`; no state is kept."""
        self._width, self._bytes = spec.width, spec.width * _WORD
        self._words = sorted(spec.value_words)

    def at_once(self, cells: I64) -> int:
        """Return how many of these cells to pack at a time."""
        sizes = np.zeros(2, np.int64)
        addresses = np.ascontiguousarray(cells[:, self._words]).reshape(-1)
        kernels.size_of_values(addresses, max(1, len(self._words)), sizes)
        return max(1, len(cells) * _PIECE_BYTES // max(1, cells.nbytes + _WORD * int(sizes[1])))

    def pack(self, cells: I64) -> list[bytes]:
        """Return a record for each of these cells; the cells may be overwritten."""
        if not self._words:
            return _cut(cells.tobytes(), range(0, cells.nbytes + 1, self._bytes))
        addresses = np.ascontiguousarray(cells[:, self._words])
        flat, sizes = addresses.reshape(-1), np.zeros(2, np.int64)
        kernels.size_of_values(flat, len(self._words), sizes)
        values, places = np.empty(int(sizes[1]), np.int64), np.empty(len(flat), np.int64)
        kernels.move_values(flat, len(self._words), _WORD, (values, places))
        # the values of a row start at its first value, or at that of the next row that has any
        begins = np.append(np.where(flat != 0, places - _WORD, values.nbytes), values.nbytes)
        edges = np.minimum.accumulate(begins[::-1])[::-1][:: len(self._words)]
        cells[:, self._words] = np.where(addresses != 0, places.reshape(addresses.shape) - edges[:-1, np.newaxis], 0)
        heads = _cut(cells.tobytes(), range(0, cells.nbytes + 1, self._bytes))
        tails = _cut(values.tobytes(), edges.tolist())
        return [head + tail for head, tail in zip(heads, tails, strict=True)]

    def unpack(self, records: Sequence[bytes], heap: ValueHeap) -> I64:
        """Return the cells of records; their values are put into `heap`."""
        if not self._words:
            return np.frombuffer(b"".join(records), np.int64).reshape(-1, self._width)
        heads = b"".join([record[: self._bytes] for record in records])
        cells = np.frombuffer(heads, np.int64).reshape(-1, self._width).copy()
        address = heap.take_up(np.frombuffer(b"".join([record[self._bytes :] for record in records]), np.int64))
        sizes = np.fromiter(map(len, records), np.int64, len(records)) - self._bytes
        begins = address + np.cumsum(sizes) - sizes
        places = cells[:, self._words]
        cells[:, self._words] = np.where(places != 0, begins[:, np.newaxis] + places - _WORD, 0)
        return cells


def _cut(data: bytes, edges: Sequence[int]) -> list[bytes]:
    return [data[first:stop] for first, stop in pairwise(edges)]
