"""The part of a pane table in memory: key index, pages, and the values that cells refer to.

Used by `PaneTable`, also to merge cold rows with hot ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.errors import PenstockError
from penstock.kernels.aggregates import merge
from penstock.kernels.keys.key_columns import key_column
from penstock.state.cells.pane_memory import PaneMemory, Rows
from penstock.state.cells.value_heap import ValueHeap
from penstock.state.keys.key_index import KeyIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec

#: Most rows of one table of output.
CHUNK = 65_536


@dataclass(frozen=True, slots=True)
class Fired:
    """Keys with their merged accumulators over the panes of one window; word 0 is the number of rows."""

    keys: list[pa.Array]
    hashes: I64
    cells: I64


class HotPanes:
    """Keys and cells in memory."""

    def __init__(self, spec: PaneTableSpec, *, small: bool = False, heap: ValueHeap | None = None) -> None:
        """Start empty; `small`: see `KeyIndex`; `heap`: an existing heap to use."""
        self.spec = spec
        #: The values that words of strings, binaries and long decimals refer to.
        self.heap = ValueHeap() if heap is None else heap
        self.index = KeyIndex(spec.key_schema, small=small)
        self.memory = PaneMemory(spec)
        self._out: tuple[I32, I64] | None = None

    @property
    def memory_bytes(self) -> int:
        """The bytes of index, pages and values."""
        return self.index.memory_bytes + self.memory.memory_bytes + self.heap.memory_bytes

    def bytes_with(self, count: int) -> int:
        """Return the bytes of a table of one pane with `count` keys, which must not be fewer than now."""
        return self.index.bytes_with(count) + self.memory.bytes_with(count)

    def put(self, keys: KeyColumns, hashes: I64, panes: I64, cells: I64) -> None:
        """Overwrite whole cells, in order."""
        slots = self.index.upsert(keys, hashes)
        self.memory.put(slots, panes, cells, self.index.count)

    def fire(self, panes: list[int]) -> Iterator[Fired]:
        """Yield every key with a row in these panes, merged, in chunks; do not write between chunks."""
        pages = self.memory.window_pages(panes)
        if len(pages) == 0:
            return
        if self._out is None:
            self._out = np.empty(CHUNK, np.int32), np.empty((CHUNK, self.spec.width), np.int64)
        slots, cells = self._out
        state = np.zeros(2, np.int64)
        keys = self.index.view()
        while state[0] < pages.shape[1]:
            count = merge.merge_panes(self.memory.cells, pages, self.spec.ops, slots, cells, state)
            if state[1]:
                raise overflow("a window over several panes")
            if count:
                found = slots[:count]
                yield Fired(keys.gather(found), keys.hashes[found], cells[:count].copy())

    def rows_at(self, slots: I32) -> Rows:
        """Return the rows of these slots in a table of one pane, with their dirty bits."""
        cells = self.memory.cells[self.memory.find(slots, 0)]
        there = cells[:, 0] != 0
        slots = slots[there]
        return Rows(slots, np.zeros(len(slots), np.int64), cells[there])

    def rebuilt_in_pieces(self, kept: I32, piece: int) -> HotPanes:
        """Return a compacted copy as `rebuilt` does, for a table of one pane, copying `piece` rows at a time."""
        keys, copy = self.index.view(), HotPanes(self.spec, small=True, heap=self.heap)
        for first in range(0, len(kept), piece):
            slots = kept[first : first + piece]
            copy.index.upsert(canonical(self.spec, keys.gather(slots)), keys.hashes[slots])
            rows = self.rows_at(slots)
            numbers = first + np.searchsorted(slots, rows.slots).astype(np.int32)
            copy.memory.put(numbers.astype(np.int32), rows.panes, rows.cells, copy.index.count)
        return copy

    def rebuilt(self, kept: I32) -> HotPanes:
        """Return a copy with only the kept keys, renumbered in the same order.

        No page may be frozen and uncopied.
        """
        rows, keys = self.memory.present(), self.index.view()
        copy = HotPanes(self.spec, heap=self.heap)
        for first in range(0, len(kept), CHUNK):
            piece = kept[first : first + CHUNK]
            copy.index.upsert(canonical(self.spec, keys.gather(piece)), keys.hashes[piece])
        moved = np.full(self.index.count, -1, np.int32)
        moved[kept] = np.arange(len(kept), dtype=np.int32)
        chosen = moved[rows.slots] >= 0
        copy.memory.put(moved[rows.slots[chosen]], rows.panes[chosen], rows.cells[chosen], copy.index.count)
        return copy


def canonical(spec: PaneTableSpec, arrays: list[pa.Array]) -> KeyColumns:
    """Return key columns in the kernels' form."""
    return tuple(key_column(array, name) for array, name in zip(arrays, spec.key_schema.names, strict=True))


def overflow(what: str) -> PenstockError:
    """Return the error of an integer sum that does not fit."""
    return PenstockError(
        f"{what}: an integer sum does not fit 64 bits", hint="sum a float64 column instead, or use smaller windows"
    )
