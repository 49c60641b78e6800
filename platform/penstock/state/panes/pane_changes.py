"""Changes of a pane table that are not in the object store yet: frozen cells, and evicted changed rows in a file.

Both become segments of the table's log. Called by `PaneTable` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.kernels.keys.key_columns import FixedColumn
from penstock.kernels.rows.row_order import hash_order
from penstock.state.cells.hot_panes import rows_to_table, rows_to_tables
from penstock.state.cells.pane_memory import PaneCells
from penstock.state.keys.hash_ranges import inside
from penstock.state.keys.key_index import KeyView, plain_key_schema
from penstock.state.log.frozen import EncodeResources, FrozenSegment
from penstock.state.memory.limits import PRODUCTION
from penstock.state.spill.cold_panes import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.cells.hot_panes import HotPanes
    from penstock.state.cells.pane_memory import FrozenCells
    from penstock.state.log.frozen import FrozenContent, FrozenSource
    from penstock.state.panes.pane_eviction import MemoryBounds
    from penstock.state.spill.cold_file import ColdFileStore
    from penstock.state.spill.cold_panes import ColdPanes


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


class PaneChanges:
    """The changed rows of one table before their upload."""

    def __init__(self, source: FrozenSource, spec: PaneTableSpec, folder: Path, bounds: MemoryBounds | None) -> None:
        """Start without changes; with `bounds` rows are encoded in bounded memory."""
        self._source = source
        self._spec = spec
        self._folder = folder
        self._bounds = bounds
        self._pending: list[FrozenSegment] = []
        #: Changed rows that were evicted since the last freeze.
        self._evicted: ColdFileStore | None = None

    @property
    def memory_bytes(self) -> int:
        """The bytes of rows that wait for an upload."""
        return sum(s.memory_bytes for s in self.undurable())

    @property
    def pending(self) -> bool:
        """Whether segments may wait for an upload."""
        return bool(self._pending)

    def undurable(self) -> tuple[FrozenSegment, ...]:
        """Return the segments that are not in the object store yet."""
        self._pending = [s for s in self._pending if not s.durable]
        return tuple(self._pending)

    def freeze(self, hot: HotPanes, *, whole: bool, pinned: tuple[I64, ...] = ()) -> FrozenSegment | None:
        """Freeze the changed rows in memory, or all rows to replace saved ones; None if no row has changed.

        `pinned`: the memory of values that cells refer to, kept as long as the frozen rows.
        """
        log = self._source.log
        if whole:  # hide all rows that were saved before
            log.add_tombstone(self._source.hash_range, MIN_TIMESTAMP, MAX_TIMESTAMP)
        position = log.next_position()
        rows = hot.memory.freeze(position, hot.index.view(), whole=whole)
        if rows is None:
            return None
        log.append(position)
        return self._waits(position, FrozenPanes(self._spec, rows, pinned, self._source.limits.encoded_rows))

    def freeze_evicted(self) -> None:
        """Turn the evicted changed rows into a segment, which is older than the rows in memory."""
        if self._evicted is not None and self._evicted.panes:
            log = self._source.log
            position = log.next_position()
            log.append(position)
            self._waits(position, FrozenCold(self._spec, self._evicted, self._source.hash_range))
            self._evicted = None

    def spill(self, segment: FrozenSegment) -> None:
        """Keep a frozen segment on the local disk instead of in memory."""
        segment.spill(self._folder / f"{self._source.state}-{segment.position}.parquet")

    def place(self, cold: ColdPanes) -> ColdFileStore:
        """Return the file for changed rows that are evicted now."""
        if self._evicted is None:
            self._evicted = cold.for_changes()
        assert self._evicted is not None  # noqa: S101 - cold rows in files support it
        return self._evicted

    def frozen_within(self, position: int, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows frozen at a position as columns of a segment, until they are durable."""
        for segment in self._pending:
            if segment.position == position:
                yield from segment.within(ranges)

    def evicted_within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the changed rows evicted since the last freeze, as columns of a segment."""
        if self._evicted is not None:
            yield from FrozenCold(self._spec, self._evicted, self._source.hash_range).within(ranges)

    def close(self) -> None:
        """Drop all waiting segments."""
        self._pending = []
        self._evicted = None

    def _waits(self, position: int, content: FrozenContent) -> FrozenSegment:
        room, limits = self._encode_resources(), self._source.limits
        segment = FrozenSegment(self._spec, position, content, room, wide=not self._source.remote, limits=limits)
        self._pending.append(segment)
        return segment

    def _encode_resources(self) -> EncodeResources | None:
        bounds = self._bounds
        if bounds is None:
            return None
        name = f"{self._source.uid}-{self._source.state}"
        return EncodeResources(directory=self._folder, name=name, rows=bounds.encode_batch_rows, budget=bounds.budget)
