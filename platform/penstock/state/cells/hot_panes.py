"""The part of a pane table in memory (key index, pages, values), and its conversion to columns of a segment and back.

Used by `PaneTable`, freezes, restores and remote state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.errors import PenstockError, StateMismatchError
from penstock.kernels.aggregates import merge
from penstock.kernels.aggregates import pages as kernels
from penstock.kernels.rows.row_order import hash_order
from penstock.state.cells.pane_memory import PaneCells, PaneMemory
from penstock.state.cells.value_heap import ValueHeap, take_values
from penstock.state.keys.key_index import KeyIndex
from penstock.state.log.segment_columns import DELETED, NAMESPACE, keyed_batch
from penstock.state.memory.slot_arrays import pieces, renumbering

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.keys.key_index import KeyView

#: Rows that are copied at a time when keys are dropped.
_REBUILT = 1 << 20
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

    def __init__(
        self,
        spec: PaneTableSpec,
        *,
        small: bool = False,
        heap: ValueHeap | None = None,
        index: KeyIndex | None = None,
    ) -> None:
        """Start without rows; `small`: see `KeyIndex`; `heap`, `index`: existing ones to use."""
        self.spec = spec
        #: The values that words of strings, binaries and long decimals refer to.
        self.heap = ValueHeap() if heap is None else heap
        self.index = KeyIndex(spec.key_schema, small=small) if index is None else index
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

    def rows_at(self, slots: I32) -> PaneCells:
        """Return the rows of these slots in a table of one pane, with their dirty bits."""
        cells = self.memory.cells[self.memory.find(slots, 0)]
        there = cells[:, 0] != 0
        slots = slots[there]
        return PaneCells(slots, np.zeros(len(slots), np.int64), cells[there])

    def rebuilt(self, kept: I32, most: int = _REBUILT, index: KeyIndex | None = None) -> HotPanes:
        """Return a copy with only the kept keys, renumbered in the same order, as `index` has them if it is given.

        About `most` rows are copied at a time. No page may be frozen and uncopied.
        """
        copy = HotPanes(self.spec, heap=self.heap, index=index or self.index.kept(kept, most))
        moved = renumbering(kept, self.index.count)
        for rows in self.memory.presents(most):
            chosen = moved[rows.slots] >= 0
            copy.memory.put(moved[rows.slots[chosen]], rows.panes[chosen], rows.cells[chosen], copy.index.count)
        return copy


def overflow(what: str) -> PenstockError:
    """Return the error of an integer sum that does not fit."""
    return PenstockError(
        f"{what}: an integer sum does not fit 64 bits", hint="sum a float64 column instead, or use smaller windows"
    )


def rows_to_table(spec: PaneTableSpec, keys: KeyView, rows: PaneCells) -> pa.Table:
    """Return cells as columns of a segment, sorted by hash."""
    hashes = keys.hashes[rows.slots]
    return _arranged(spec, keys, rows, hashes, hash_order(hashes))


def rows_to_tables(spec: PaneTableSpec, keys: KeyView, rows: PaneCells, most: int) -> Iterator[pa.Table]:
    """Yield cells as columns of a segment in tables of `most` rows, which bounds the memory for columns."""
    hashes = keys.hashes[rows.slots]
    order = hash_order(hashes)
    for piece in pieces(order, most):
        yield _arranged(spec, keys, rows, hashes, piece)


def _arranged(spec: PaneTableSpec, keys: KeyView, rows: PaneCells, hashes: I64, order: I64) -> pa.Table:
    count = len(order)
    words = np.empty((spec.width, count), np.int64)
    out = (np.empty(count, np.int64), np.empty(count, np.int32), words)
    kernels.arrange(order, (hashes, rows.slots, rows.cells), out)
    panes = np.zeros(count, np.int64) if spec.single_pane else rows.panes[order]
    columns = [
        pa.array(out[0]),
        *keys.gather(out[1]),
        pa.array(panes),
        *_columns_of(spec, words),
        pa.array(words[0] == 0),  # a single cell that was cleared, not by a tombstone
        pa.array(np.arange(count)),
    ]
    return pa.Table.from_arrays(columns, schema=spec.segment_schema)


def _columns_of(spec: PaneTableSpec, words: I64) -> list[pa.Array]:
    """Return words as the value columns of a segment; word 0 is the number of rows."""
    return [
        take_values(own, spec.value_words[word]) if word in spec.value_words else pa.array(own.view(np.dtype(dtype)))
        for word, (own, (_, dtype)) in enumerate(zip(words, spec.value_columns, strict=True))
    ]


def cells_to_columns(spec: PaneTableSpec, cells: I64) -> list[pa.Array]:
    """Return cells as the value columns of a segment, without their dirty bits."""
    words = cells.T.copy()
    words[0] >>= 1
    return _columns_of(spec, words)


def columns_to_cells(spec: PaneTableSpec, columns: Sequence[pa.Array], heap: ValueHeap) -> I64:
    """Return cells from the value columns of a segment; values of any length are put into `heap`."""
    cells = np.empty((len(columns[0]), spec.width), np.int64)
    for word, column in enumerate(columns):
        cells[:, word] = heap.put(column) if word in spec.value_words else column.to_numpy().view(np.int64)
    cells[:, 0] <<= 1
    return cells


def table_to_rows(spec: PaneTableSpec, table: pa.Table, heap: ValueHeap) -> tuple[KeyColumns, I64, I64, I64]:
    """Return (keys, hashes, panes, cells) of rows read from a segment; a deleted row gives an empty cell.

    Values of any length are put into `heap`.

    Raises:
        StateMismatchError: the file's columns differ from those of the job's operator.
    """
    wanted = spec.segment_schema
    if table.schema.names != wanted.names or table.schema.types != wanted.types:
        raise StateMismatchError(
            f"saved state has columns ({_describe(table.schema)}), the job keeps ({_describe(wanted)})",
            hint="keep key columns and aggregates as they were, or give the operator a new uid",
        )
    batch, keys, hashes = keyed_batch(table, spec.key_schema)
    cells = columns_to_cells(spec, [batch.column(name) for name, _ in spec.value_columns], heap)
    cells[batch.column(DELETED).to_numpy(zero_copy_only=False), 0] = 0
    return keys, hashes, batch.column(NAMESPACE).to_numpy(), cells


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{f.name} {f.type}" for f in schema)
