"""Cold rows of a pane table in RocksDB: cells packed as byte records, for keys and values of any type.

Called by `PaneTable` and by remote state in the owner's thread.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from penstock.kernels.aggregates import pages as kernels
from penstock.kernels.aggregates import values as value_kernels
from penstock.state.keys.hash_ranges import RECORD_BYTES, LocalBytes
from penstock.state.keys.sorted_keys import bound, bounds, decode_keys, encode_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.pane_memory import PaneCells
    from penstock.state.cells.value_heap import ValueHeap
    from penstock.state.keys.key_index import KeyView
    from penstock.state.spill.rocksdb import RocksStore

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

    def batch_size(self, cells: I64) -> int:
        """Return how many of these cells to pack at a time."""
        sizes = np.zeros(2, np.int64)
        addresses = np.ascontiguousarray(cells[:, self._words]).reshape(-1)
        value_kernels.size_of_values(addresses, max(1, len(self._words)), sizes)
        return max(1, len(cells) * _PIECE_BYTES // max(1, cells.nbytes + _WORD * int(sizes[1])))

    def pack(self, cells: I64) -> list[bytes]:
        """Return a record for each of these cells; the cells may be overwritten."""
        if not self._words:
            return _split_bytes(cells.tobytes(), range(0, cells.nbytes + 1, self._bytes))
        addresses = np.ascontiguousarray(cells[:, self._words])
        flat, sizes = addresses.reshape(-1), np.zeros(2, np.int64)
        value_kernels.size_of_values(flat, len(self._words), sizes)
        values, places = np.empty(int(sizes[1]), np.int64), np.empty(len(flat), np.int64)
        value_kernels.move_values(flat, len(self._words), _WORD, (values, places))
        # the values of a row start at its first value, or at that of the next row that has any
        begins = np.append(np.where(flat != 0, places - _WORD, values.nbytes), values.nbytes)
        edges = np.minimum.accumulate(begins[::-1])[::-1][:: len(self._words)]
        cells[:, self._words] = np.where(addresses != 0, places.reshape(addresses.shape) - edges[:-1, np.newaxis], 0)
        heads = _split_bytes(cells.tobytes(), range(0, cells.nbytes + 1, self._bytes))
        tails = _split_bytes(values.tobytes(), edges.tolist())
        return [head + tail for head, tail in zip(heads, tails, strict=True)]

    def unpack(self, records: Sequence[bytes], heap: ValueHeap) -> I64:
        """Return the cells of records; their values are put into `heap`."""
        if not self._words:
            return np.frombuffer(b"".join(records), np.int64).reshape(-1, self._width)
        heads = b"".join([record[: self._bytes] for record in records])
        cells = np.frombuffer(heads, np.int64).reshape(-1, self._width).copy()
        address = heap.put_words(np.frombuffer(b"".join([record[self._bytes :] for record in records]), np.int64))
        sizes = np.fromiter(map(len, records), np.int64, len(records)) - self._bytes
        begins = address + np.cumsum(sizes) - sizes
        places = cells[:, self._words]
        cells[:, self._words] = np.where(places != 0, begins[:, np.newaxis] + places - _WORD, 0)
        return cells


def _split_bytes(data: bytes, edges: Sequence[int]) -> list[bytes]:
    return [data[first:stop] for first, stop in pairwise(edges)]


class SortedColdStore:
    """Cold rows in a store of sorted bytes."""

    def __init__(self, spec: PaneTableSpec, store: RocksStore, owned: HashRange, regions: int = 1) -> None:
        """Start without rows."""
        self._spec = spec
        self._store = store
        self._local = LocalBytes(owned, regions)
        #: The regions, each of which can be dropped.
        self.regions = self._local.regions
        #: The approximate bytes of the rows that were written to each region since its last drop.
        self.local_bytes = self._local.sizes
        self._records = CellRecords(spec)
        #: pane -> rows written there (a row written twice counts twice).
        self._rows: dict[int, int] = {}

    @property
    def panes(self) -> list[int]:
        """The panes with rows."""
        return list(self._rows)

    def rows_of(self, pane: int) -> int:
        """Return the number of rows of the pane, at most."""
        return self._rows.get(pane, 0)

    def for_changes(self) -> None:
        """Return None: changed rows are encoded immediately instead."""

    def fetch(self, keys: KeyView, requested: tuple[I32, I64], target: tuple[I64, I64], heap: ValueHeap) -> None:
        """Copy the cells of (slots, panes) into the empty cells of `target` = (cells, cell of each): one sorted read.

        Values that they refer to are put into `heap`.
        """
        slots, panes = requested
        cells, cell = target
        rows = np.nonzero(np.isin(panes, np.array(self.panes, np.int64)))[0]
        _, first = np.unique(cell[rows], return_index=True)
        rows = rows[first]
        rows = rows[np.lexsort((keys.hashes[slots[rows]], panes[rows]))]
        values = self._store.get(encode_keys(keys, slots[rows], panes[rows])) if len(rows) else []
        found = [i for i, value in enumerate(values) if value is not None]
        if found:
            words = self._records.unpack([v for v in values if v is not None], heap)
            kernels.put_cells(cells, cell[rows[found]], words)

    def put(self, keys: KeyView, rows: PaneCells) -> None:
        """Write rows."""
        order = np.lexsort((keys.hashes[rows.slots], rows.panes))
        most = self._records.batch_size(rows.cells)
        for first in range(0, len(order), most):
            piece = order[first : first + most]
            cells = rows.cells[piece]
            cells[:, 0] &= ~1
            values = self._records.pack(cells)
            self._store.put(encode_keys(keys, rows.slots[piece], rows.panes[piece]), values)
            sizes = np.fromiter(map(len, values), np.int64, len(values)) + RECORD_BYTES
            self._local.add(keys.hashes[rows.slots[piece]], sizes)
        for pane, count in zip(*np.unique(rows.panes, return_counts=True), strict=True):
            self._rows[int(pane)] = self._rows.get(int(pane), 0) + int(count)

    def forget(self, keys: KeyView, slots: I32, panes: I64) -> None:
        """Remove rows."""
        if self._rows:
            self._store.delete(encode_keys(keys, slots, panes))

    def drop_below(self, pane: int) -> None:
        """Remove all panes that start before `pane`."""
        gone = [p for p in self._rows if p < pane]
        for p in gone:
            del self._rows[p]
        if gone:
            self._store.delete_range(bound(min(gone)), bound(pane))

    def drop(self, region: int) -> None:
        """Remove a region's rows; `rows_of` still counts them."""
        part = self._local.regions[region]
        self._local.sizes[region] = 0
        for pane in self._rows:
            self._store.delete_range(*bounds(pane, part))

    def scan(self, pane: int, part: HashRange, heap: ValueHeap) -> Iterator[tuple[KeyColumns, I64, I64, I64]]:
        """Yield (keys, hashes, panes, cells) of a pane's rows in a hash range; `heap` as in `fetch`."""
        for keys, values in self._store.scan(*bounds(pane, part)):
            cells = self._records.unpack(values, heap)
            columns, hashes, namespaces = decode_keys(self._spec.key_schema, keys)
            yield columns, hashes, namespaces, cells

    def close(self) -> None:
        """Close and remove the files."""
        self._store.close()
