"""Frozen rows of a pane table: cells in memory, and evicted changed rows in a file.

Both become segments of the table's log. Made by `PaneTable`; encoded in any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.kernels.keys.key_columns import FixedColumn
from penstock.kernels.rows.row_order import hash_order
from penstock.state.cells.hot_panes import rows_to_table, rows_to_tables
from penstock.state.cells.pane_memory import PaneCells
from penstock.state.keys.hash_ranges import inside
from penstock.state.keys.key_index import KeyView, plain_key_schema
from penstock.state.memory.limits import PRODUCTION
from penstock.state.spill.cold_panes import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.pane_memory import FrozenCells
    from penstock.state.spill.cold_file import ColdFileStore


@dataclass(frozen=True, slots=True)
class FrozenPanes:
    """The frozen cells of a pane table; their pages may still have to be copied."""

    spec: PaneTableSpec
    rows: FrozenCells
    #: Memory of variable-length values, kept only to keep it alive.
    pinned: tuple[I64, ...] = ()
    #: Rows of a batch if memory is not bounded: its columns stay in the cache, and the next batch reuses their memory.
    batch_rows: int = PRODUCTION.encoded_rows

    @property
    def memory_bytes(self) -> int:
        """The bytes of the copies."""
        return self.rows.memory_bytes

    @property
    def ordered_rows(self) -> int:
        """The number of all copied rows."""
        return sum(len(part.slots) for part in self.rows.copied)

    def whole(self) -> Iterator[pa.Table]:
        """Yield the cells as columns of a segment, in tables of `batch_rows`."""
        self._check_copied()
        merged = _merged(self.rows.copied, self.spec.width)
        return rows_to_tables(self.spec, self.rows.keys, merged, self.batch_rows)

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """Yield the cells as columns of a segment, sorted by hash, `rows` at a time."""
        self._check_copied()
        parts = self.rows.copied
        slots = np.concatenate([np.empty(0, np.int32), *(p.slots for p in parts)])
        order = hash_order(self.rows.keys.hashes[slots])  # the array of hashes is freed again
        chosen = np.zeros(len(order), np.bool_)
        for begin in range(0, len(order), rows):
            piece = order[begin : begin + rows]
            chosen[piece] = True
            yield rows_to_table(self.spec, self.rows.keys, _chosen_of(parts, chosen, self.spec.width))
            chosen[piece] = False

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the copied cells in some hash ranges; uncopied ones are unchanged in the table's memory."""
        for part in tuple(self.rows.copied):
            found = inside(self.rows.keys.hashes[part.slots], ranges)
            if found.any():
                yield rows_to_table(self.spec, self.rows.keys, part.chosen(found))

    def _check_copied(self) -> None:
        if self.rows.left:
            left = self.rows.left
            raise RuntimeError(f"{left} frozen pages are not copied yet: call copy_pages until it returns True")


def _chosen_of(parts: list[PaneCells], chosen: NDArray[np.bool_], width: int) -> PaneCells:
    """Return the chosen rows of several parts, in their order there."""
    found, first = [], 0
    for part in parts:
        found.append(part.chosen(np.flatnonzero(chosen[first : first + len(part.slots)])))
        first += len(part.slots)
    return _merged(found, width)


def _merged(parts: list[PaneCells], width: int) -> PaneCells:
    if len(parts) == 1:
        return parts[0]
    return PaneCells(
        np.concatenate([np.empty(0, np.int32), *(p.slots for p in parts)]),
        np.concatenate([np.empty(0, np.int64), *(p.panes for p in parts)]),
        np.concatenate([np.empty((0, width), np.int64), *(p.cells for p in parts)]),
    )


_PART_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class FrozenCold:
    """Rows of a file that is no longer written, each key once (`frozen.FrozenContent`, `frozen.BatchedContent`)."""

    spec: PaneTableSpec
    rows: ColdFileStore
    owned: HashRange

    @property
    def memory_bytes(self) -> int:
        """Return 0: the rows are on disk."""
        return 0

    @property
    def ordered_rows(self) -> int:
        """Return 0: the rows are in order."""
        return 0

    def whole(self) -> Iterator[pa.Table]:
        """Yield the rows as columns of a segment, sorted by hash."""
        return self.tables(_PART_ROWS)

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows in some hash ranges."""
        for wanted in ranges:
            part = wanted.intersect(self.owned)
            if part is not None:
                for pane in self.rows.panes:
                    yield from self._of(list(self.rows.scan(pane, part)), pane)

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """Yield the rows as columns of a segment, one hash range at a time."""
        for pane in self.rows.panes:
            for part in parts_of(self.rows.rows_of(pane), self.owned, rows):
                yield from self._of(list(self.rows.scan(pane, part, most=rows)), pane)

    def _of(self, chunks: list[tuple[KeyColumns, I64, I64, I64]], pane: int) -> Iterator[pa.Table]:
        if chunks:
            schema = plain_key_schema(self.spec.key_schema)
            hashes = np.concatenate([p[1] for p in chunks])
            cells = np.concatenate([p[3] for p in chunks])
            columns = tuple(_stored([p[0] for p in chunks], k) for k in range(len(schema)))
            slots = np.arange(len(hashes), dtype=np.int32)
            found = PaneCells(slots, np.full(len(hashes), pane, np.int64), cells)
            yield rows_to_table(self.spec, KeyView(schema, hashes, columns), found)


def _stored(chunks: list[KeyColumns], k: int) -> tuple[I64, None, np.ndarray, int]:
    """Return one fixed-width key column as an index stores it: values, no starts, validity, number of nulls."""
    values, valid = [], []
    for piece in chunks:
        column = piece[k]
        assert isinstance(column, FixedColumn)  # noqa: S101 - files have keys of fixed width
        values.append(column.values)
        count = len(column.values)
        bits = column.bitmap
        valid.append(np.unpackbits(bits, count=count, bitorder="little") if len(bits) else np.ones(count, np.uint8))
    known = np.concatenate(valid)
    return np.concatenate(values), None, known, int(len(known) - known.sum())
