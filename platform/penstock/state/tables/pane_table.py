"""The state of window aggregates: accumulators by key and pane, in memory and in a cold store.

Its keys are those of a `RowState`, which evicts them. Called in the owner's thread; frozen rows are encoded in any.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.kernels.aggregates import cold_cells as kernels
from penstock.kernels.aggregates import merge
from penstock.kernels.rows.row_order import hash_order
from penstock.state.cells.accumulators import AccumulatorInput, PaneTableSpec
from penstock.state.cells.pane_memory import (
    CHUNK,
    REBUILT_ROWS,
    Fired,
    HotPanes,
    PaneCells,
    add_rows,
    overflow,
    rows_to_table,
    rows_to_tables,
    table_to_rows,
)
from penstock.state.cells.value_heap import ValueHeap
from penstock.state.keys.key_index import KeyCounts, KeyIndex, canonical, columns_of
from penstock.state.log.frozen import EncodeResources
from penstock.state.log.segment_file import inside
from penstock.state.memory.limits import PRODUCTION
from penstock.state.memory.slot_arrays import pieces
from penstock.state.tiers.remote_panes import ColdPaneStore, RemotePanes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.pane_memory import FrozenCells
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.arrival import ArrivingState
    from penstock.state.log.frozen import FrozenSegment, FrozenSource, FrozenTable
    from penstock.state.tables.key_space import KeySpace
    from penstock.state.tiers.cold_panes import ColdFileStore


#: Bytes that eviction needs for each evicted key: slot, hash, position in the order and a copy.
_LEAVING_BYTES = 32
#: Cold rows that are merged with hot ones at a time.
_PART_ROWS = 200_000
_MANY = 1 << 31
#: Batches for encoding have one part in this many of the rows: columns take several times the memory of cells.
_ENCODED_PART = 2


class PaneTable:
    """Accumulators by key and pane."""

    def __init__(self, source: FrozenSource[PaneTableSpec], state: KeySpace, cold: ColdPaneStore | None = None) -> None:
        """Create an empty table with the keys of `state`; `load` fills it during a restore.

        `cold` has the rows of evicted keys; without it they stay in memory, or in the records of `state`.
        """
        self.source = source
        self.spec = source.spec
        self._state = state
        self._policy = state.policy
        self._budget = state.policy.budget
        self._holder = f"{source.writer}/{source.uid}/{source.state}"
        self._limits = source.limits
        #: With cold rows in a file: another one, for changed rows that were evicted since the last freeze.
        self._evicted = None if cold is None else cold.for_changes()
        #: Whether memory has a bound that the table always obeys: its cold rows are in a file.
        self._bounded = self._evicted is not None
        self._hot = HotPanes(self.spec, index=state.index)
        source.copy_frozen = self._hot.memory.copy_frozen
        #: The rows of evicted keys; changes of those that are put there are in a segment, or in the file of changes.
        self.cold = cold
        if self._bounded or self.spec.value_words:
            source.directory.mkdir(parents=True, exist_ok=True)
            rows = max(1, self._policy.batch_rows // _ENCODED_PART)
            source.room = EncodeResources(holder=f"{source.uid}-{source.state}", rows=rows, budget=self._budget)
        self._remote = cold if isinstance(cold, RemotePanes) else None
        if self._remote is not None:
            self._remote.follow(self._evicted_within)

    @property
    def heap(self) -> ValueHeap:
        """The heap of values that words of strings, binaries and long decimals refer to; never replaced."""
        return self._hot.heap

    @property
    def arriving(self) -> ArrivingState | None:
        """The state that rows may have to wait for; None: all of it was loaded when the table was declared."""
        if self._remote is not None:
            return self._remote.fetcher
        return self._state.fetcher if self.source.restore is None else self.source.restore

    @property
    def loads_in_parts(self) -> bool:
        """Whether rows of keys can be added before the state of all other keys is loaded."""
        return self.source.ttl is None and self._remote is None

    @property
    def has_cold(self) -> bool:
        """Whether evicted keys may have rows in the cold store."""
        return self.cold is not None and bool(self.cold.panes)

    @property
    def index(self) -> KeyIndex:
        """The keys in memory; replaced when slots are renumbered."""
        return self._state.index

    @property
    def most_rows(self) -> int:
        """The most rows to pass to the table at a time; read it before each batch, as it changes."""
        most = _MANY if not self._bounded and self._state.cold is None else self._policy.batch_rows
        return most if self._remote is None else min(most, self._remote.next_rows())

    # --- rows -------------------------------------------------------------------------------------------------------

    def update(self, keys: KeyColumns, hashes: I64, panes: I64, inputs: Sequence[AccumulatorInput | None]) -> None:
        """Add a batch: one key, hash and pane start per row, one input per accumulator (None: no input).

        Raises:
            PenstockError: an integer sum overflows.
            StateTooLargeError: the state does not fit the managed memory (hashmap backend).
        """
        cell = self._cells_of(keys, hashes, panes)
        overflowed = add_rows(self.spec, (self._hot.memory.cells, self._hot.memory.float_cells), cell, inputs)
        if overflowed is not None:
            raise overflow(overflowed)
        self._settle()

    def merge(self, keys: KeyColumns, hashes: I64, panes: I64, cells: I64) -> None:
        """Add combined rows: one key, hash, pane start and cell each.

        Raises:
            PenstockError: as `update`.
        """
        cell = self._cells_of(keys, hashes, panes)
        if merge.merge_cells(self._hot.memory.cells, cell, cells, self.spec.ops):
            raise overflow("a sum of a window")
        self._settle()

    @property
    def adds_in_one_pass(self) -> bool:
        """Whether `add` can be used now: all accumulators are simple, and no page is frozen or cold."""
        return self.cold is None and self.spec.in_one_pass and not self._hot.memory.frozen

    def add(
        self, keys: KeyColumns, times: I64, window: I64, inputs: Sequence[AccumulatorInput | None]
    ) -> tuple[int, int]:
        """Add a batch by event times, as `update` does; skip late and impossible rows and return their numbers.

        `window` = [length of a pane, offset, first open start, latest possible time].

        Raises:
            PenstockError: as `update`.
        """
        index = self._hot.index
        slots = index.slots_of(keys, len(times))
        left_out = self._hot.memory.accumulate((slots, times), window, inputs, index.count)
        self._settle()
        return left_out

    def panes(self) -> list[int]:
        """Return the starts of all panes with rows, ascending."""
        hot = self._hot.memory.panes
        return hot if self.cold is None else sorted({*hot, *self.cold.panes})

    def fire(self, panes: list[int]) -> Iterator[Fired]:
        """Yield every key with a row in these panes, its accumulators merged, in chunks of at most 65 536 rows.

        The arrays of a chunk are not reused, but the values that its words refer to are only valid until the next
        chunk. Do not write to the table between chunks.
        """
        if self.cold is not None and not set(panes).isdisjoint(self.cold.panes):
            yield from self._fire_with_cold(self.cold, panes)
            return
        yield from self._hot.fire(panes)

    def _fire_with_cold(self, cold: ColdPaneStore, panes: list[int]) -> Iterator[Fired]:
        """Yield fired keys with their cold rows, merging one hash range at a time."""
        keys, rows = self._hot.index.view(), self._hot.memory.present()
        hashes = keys.hashes[rows.slots]
        of_window = np.isin(rows.panes, np.array(panes, np.int64)) & (rows.cells[:, 0] > 1)
        cold_panes = sorted(set(panes).intersection(cold.panes))
        for part in self.source.hash_range.split(-(-sum(map(cold.rows_of, cold_panes)) // _PART_ROWS)):
            merged = HotPanes(self.spec)
            for pane in cold_panes:
                for piece in cold.scan(pane, part, merged.heap):
                    merged.put(*piece)
            chosen = np.nonzero(of_window & (hashes >= part.low) & (hashes <= part.high))[0]
            for at in pieces(chosen, CHUNK):
                merged.put(columns_of(keys, rows.slots[at]), hashes[at], rows.panes[at], rows.cells[at])
            yield from merged.fire(panes)

    def fire_keys(self, keys: KeyColumns, hashes: I64, panes: list[int]) -> Iterator[Fired]:
        """Yield the given keys as `fire` does, each once."""
        # A separate index: the window may hold more keys than the table has in memory, and must not load them.
        lookup_index = KeyIndex(self.spec.key_schema)
        lookup_index.upsert(keys, hashes)
        count = lookup_index.count
        for piece in self.fire(panes):
            chosen = lookup_index.upsert(canonical(self.spec.key_schema, piece.keys), piece.hashes) < count
            if chosen.any():
                mask = pa.array(chosen)
                yield Fired([k.filter(mask) for k in piece.keys], piece.hashes[chosen], piece.cells[chosen])

    def look_up(self, keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
        """Return the live rows of one key in its first `most` panes; see `state.store.StateTable`.

        Rows in memory override cold ones.
        """
        view, slots, in_memory = self._state.find(keys, hashes)
        panes, memory, heap = np.array(self.panes(), np.int64), self._hot.memory, ValueHeap()
        owners, cells = np.repeat(slots, len(panes)), np.zeros((len(panes), self.spec.width), np.int64)
        for place, pane in enumerate(panes.tolist()) if in_memory else ():
            cell = int(memory.find(slots, pane)[0])
            if cell >= 0:
                cells[place] = memory.cells[cell]
        if self.cold is not None and len(missing := np.flatnonzero(cells[:, 0] == 0)):
            self.cold.fetch(view, (owners[missing], panes[missing]), (cells, missing), heap)
        live, deadline = cells[:, 0] > 1, self.source.deadline
        if deadline is not None:
            live &= cells[:, -1] > deadline
        found = np.flatnonzero(live)[:most]
        return rows_to_table(self.spec, view, PaneCells(owners[found], panes[found], cells[found]))

    def counts(self) -> KeyCounts:
        """Return the number of panes of every key in memory."""
        hashes = self._hot.index.hashes
        return KeyCounts(hashes, self._hot.memory.counts(len(hashes)), ((self._hot.index.view(), len(hashes)),))

    def drop_below(self, pane: int) -> None:
        """Drop all panes that start before `pane`: their pages become free, and the log gets one tombstone."""
        gone = [p for p in self._hot.memory.panes if p < pane]
        cold_gone = [] if self.cold is None else [p for p in self.cold.panes if p < pane]
        if not gone and not cold_gone:
            return
        self._hot.memory.drop(gone)
        if self.cold is not None:
            self.cold.drop_below(pane)
        self.source.hide(pane - 1)
        if self._policy.should_find_dead(self.index.count):
            self._state.drop_dead_keys()
        self._state.report()
        self._report_frozen()

    def hide_loaded(self, up_to: int) -> None:
        """Drop restored panes that start at `up_to` or before."""
        self.drop_below(up_to + 1)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def freeze(self) -> FrozenTable:
        """Freeze the table."""
        if self._evicted is not None and self._evicted.panes:  # older than the rows in memory
            self.source.add(FrozenCold(self.spec, self._evicted, self.source.hash_range))
            self._evicted = self._evicted.for_changes()
        self._freeze_dirty()
        return self.source.frozen()

    def expect(self, keys: int) -> None:
        """Make room for about so many restored keys at once, as far as memory allows."""
        hot, budget = self._hot, self._budget
        if hot.index.count:
            return
        free = budget.limit_bytes - budget.used_bytes
        if self.cold is not None:  # of a share, half or the part of a table in a file
            free = budget.share_of(self._policy.holder) // max(2, self._policy.hot_part)
        while keys and (hot.bytes_with(keys) > free or (self.cold is not None and keys > self._limits.hot_keys)):
            keys //= 2
        hot.make_room(keys)

    def load(self, table: pa.Table) -> None:
        """Add restored rows, newest last."""
        most = self.most_rows
        for first in range(0, table.num_rows, most):
            self._load(table.slice(first, most))

    def loader(self, rows: int) -> Callable[[pa.Table], None]:
        """Return the function that adds the rows of a restored segment, of which there are about `rows`.

        It is `load`, unless they exceed the memory: then they are written to the file without a way through memory.
        Then no older segment may have been added with `load`.
        """
        hot, cold = self._hot, self.cold
        fits = self.index.count or not self._policy.above_part(hot.bytes_with(rows), rows)
        return self.load if cold is None or not self._bounded or fits else partial(self._load_into, cold)

    def _load_into(self, cold: ColdPaneStore, table: pa.Table) -> None:
        keys, hashes, panes, cells = table_to_rows(self.spec, table, self.heap)
        self._restored(cells)
        index = KeyIndex(self.spec.key_schema, small=True)
        index.make_room(len(hashes))
        slots, there = index.upsert(keys, hashes), cells[:, 0] != 0
        cold.put(index.view(), PaneCells(slots[there], panes[there], cells[there]))
        if not there.all():
            cold.forget(index.view(), slots[~there], panes[~there])

    def _load(self, table: pa.Table) -> None:
        self._make_room(table.num_rows)
        keys, hashes, panes, cells = table_to_rows(self.spec, table, self.heap)
        self._restored(cells)
        slots = self._state.upsert(keys, hashes)
        deleted = cells[:, 0] == 0
        if self.cold is not None and deleted.any():
            self.cold.forget(self.index.view(), slots[deleted], panes[deleted])
        self._hot.memory.put(slots, panes, cells, self.index.count)
        self._settle()

    @property
    def hot_bytes(self) -> int:
        """The bytes of index and pages; those of a table in a file include free cells."""
        if self._bounded:
            return self._hot.bytes_with(self.index.count - 1)
        return self._hot.memory_bytes

    def close(self) -> None:
        """Report the memory of frozen rows as free."""
        self._budget.work(f"{self._holder}/frozen", 0)
        self._evicted = None

    def _freeze_dirty(self) -> FrozenSegment | None:
        """Freeze the changed rows in memory, or all rows to replace saved ones; None if no row has changed."""
        whole, log, hot = self._worth_whole(), self.source.log, self._hot
        if whole:  # hide all rows that were saved before
            log.add_tombstone(log.hash_range, MIN_TIMESTAMP, MAX_TIMESTAMP)
        position = log.next_position()
        rows = hot.memory.freeze(position, hot.index.view(), whole=whole)
        if rows is None:
            return None
        # the memory of values that cells refer to is kept as long as the frozen rows
        frozen = FrozenPanes(self.spec, rows, hot.heap.pinned, self._limits.encoded_rows)
        return self.source.add(frozen, position=position)

    def _evicted_within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the changed rows evicted since the last freeze, as columns of a segment."""
        if self._evicted is not None:
            yield from FrozenCold(self.spec, self._evicted, self.source.hash_range).within(ranges)

    def _cells_of(self, keys: KeyColumns, hashes: I64, panes: I64) -> I64:
        """Return the cell of every row, created or loaded if it is not in memory."""
        slots = self._state.upsert(keys, hashes)
        cell = self._hot.memory.locate(slots, panes, self.index.count)
        if self.cold is not None and self.cold.panes:
            # load the cold rows of cells that are to be written for the first time
            cells, found = self._hot.memory.cells, np.empty(len(slots), np.int64)
            rows = found[: kernels.absent_rows(cells, cell, slots, self._state.stored.view(np.uint8), found)]
            if len(rows):
                self.cold.fetch(self.index.view(), (slots[rows], panes[rows]), (cells, cell[rows]), self.heap)
        return cell

    # --- memory -----------------------------------------------------------------------------------------------------

    def _report_frozen(self) -> None:
        if self.source.waiting:
            self._budget.work(f"{self._holder}/frozen", self.source.memory_bytes)

    def _settle(self) -> None:
        """Count memory after rows were added; slots may be renumbered by this call."""
        if self.heap.full:
            self.compact()
        if self._state.evicts:
            self._state.report()  # these rows count in the peak, also if they leave now
        self._state.settle()
        self._report_frozen()

    def _make_room(self, rows: int) -> None:
        """Evict keys if needed before `rows` rows are added, which may all be new keys."""
        count = self.index.count
        if self._bounded and (count >= self._policy.batch_rows or count > self._limits.hot_keys):
            held = self._hot.bytes_with(count + rows) + self._state.slot_bytes
            if self._policy.above_part(held, count):
                self._state.evict_keys()

    def _restored(self, cells: I64) -> None:
        """Handle restored cells (a hook of subclasses)."""

    def _worth_whole(self) -> bool:
        """Return whether there are changes, and all rows are to be saved with them, to replace older ones.

        This costs less than later merging segments with the same keys, and a restore reads each row once.
        """
        memory = self._hot.memory
        here = self._state.cold is None and not self.has_cold  # no row has left memory
        here = here and (self.source.restore is None or self.source.restore.complete)
        if not here or memory.frozen or not self.source.log.entries or not memory.has_changed:
            return False
        return self._most_changed() or self._hot.index.count * len(memory.panes) <= self._limits.whole_rows

    def _most_changed(self) -> bool:
        """Return whether most rows are known to have changed since the last freeze (a hook of subclasses)."""
        return False

    def compact(self) -> bool:
        """Drop the values that no cell refers to; return whether cells have such values.

        Frozen cells are copied first and pin the old memory.
        """
        memory, words = self._hot.memory, list(self.spec.value_words)
        if words:
            memory.copy_all_frozen()
            named = np.ix_(memory.cells_in_use(), np.array(words))
            memory.cells[named] = self.heap.compact(memory.cells[named])
        return bool(words)

    # --- keys -------------------------------------------------------------------------------------------------------

    def mark_used(self, used: np.ndarray) -> None:
        """Set the slots that have a row or an unsaved change."""
        used[self._hot.memory.present().slots] = True

    def renumber(self, numbers: I32) -> None:
        """Renumber slots: slot s becomes `numbers[s]`; numbers of unused and of evicted slots are negative.

        Frozen cells are copied first and have a view of the old keys.
        """
        self._hot.memory.copy_all_frozen()
        kept, most = np.flatnonzero(numbers >= 0).astype(np.int32), min(REBUILT_ROWS, self._policy.batch_rows)
        self._hot = self._hot.rebuilt(kept, most, index=self.index)
        self.source.copy_frozen = self._hot.memory.copy_frozen
        self.compact()
        self._budget.work(f"{self._holder}/evict", 0)

    def evict_keys(self, keys: KeyView, slots: I32) -> None:
        """Move the rows of slots, in hash order, to the cold store; changes become a segment, or go to their file."""
        if self.cold is None:
            return
        if self._evicted is not None:
            self._hot.memory.copy_all_frozen()
            self._evict_to_file(self.cold, self._evicted, keys, slots)
            return
        # not gathered: the rows of most windows leave memory once, and merging them would take longer
        segment = self._freeze_dirty()
        self._hot.memory.copy_all_frozen()
        if segment is not None:
            segment.spill()
        leaving = np.zeros(self.index.count, np.bool_)
        leaving[slots] = True
        rows = self._hot.memory.present()
        self.cold.put(keys, rows.chosen(leaving[rows.slots]))

    def _evict_to_file(self, cold: ColdPaneStore, changes: ColdFileStore, keys: KeyView, slots: I32) -> None:
        """Move the rows of slots to the cold file, and the changed ones also to `changes`.

        Cells go to the file as they are, a batch at a time: converted to rows of a segment first, they would take
        several times the memory. In hash order each batch is written to a separate stretch of the file.
        """
        hot, batch, words = self._hot, self._policy.batch_rows, self.spec.width + len(keys.columns) + 4
        beside = HotPanes(self.spec, small=True).bytes_with(self.index.count - len(slots)) + batch * words * 8 * 2
        working = max(beside, len(slots) * _LEAVING_BYTES + batch * words * 8 * 4)
        self._budget.work(f"{self._holder}/evict", working)
        for piece in pieces(slots, batch):
            rows = hot.rows_at(piece)
            changes.put(keys, rows.chosen((rows.cells[:, 0] & 1) == 1))
            cold.put(keys, rows)


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
        merged = merged_cells(self.rows.copied, self.spec.width)
        return rows_to_tables(self.spec, self.rows.keys, merged, self.batch_rows)

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """Yield the cells as columns of a segment, sorted by hash, `rows` at a time."""
        self._check_copied()
        parts = self.rows.copied
        slots = np.concatenate([np.empty(0, np.int32), *(p.slots for p in parts)])
        order = hash_order(self.rows.keys.hashes[slots])  # the array of hashes is freed again
        chosen = np.zeros(len(order), np.bool_)
        for piece in pieces(order, rows):
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
    return merged_cells(found, width)


def merged_cells(parts: list[PaneCells], width: int) -> PaneCells:
    """Return the rows of several parts, in order."""
    if len(parts) == 1:
        return parts[0]
    return PaneCells(
        np.concatenate([np.empty(0, np.int32), *(p.slots for p in parts)]),
        np.concatenate([np.empty(0, np.int64), *(p.panes for p in parts)]),
        np.concatenate([np.empty((0, width), np.int64), *(p.cells for p in parts)]),
    )


_WHOLE_ROWS = 65_536


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
        return self.tables(_WHOLE_ROWS)

    def within(self, ranges: Sequence[HashRange]) -> Iterator[pa.Table]:
        """Yield the rows in some hash ranges."""
        for wanted in ranges:
            part = wanted.intersect(self.owned)
            if part is not None:
                for pane in self.rows.panes:
                    yield from self._of(self.rows.scan(pane, part))

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """Yield the rows as columns of a segment, one hash range at a time."""
        for pane in self.rows.panes:
            for part in self.owned.split(-(-self.rows.rows_of(pane) // rows)):
                yield from self._of(self.rows.scan(pane, part, most=rows))

    def _of(self, chunks: Iterable[tuple[KeyColumns, I64, I64, I64]]) -> Iterator[pa.Table]:
        index = KeyIndex(self.spec.key_schema, small=True)
        parts = [PaneCells(index.upsert(keys, hashes).copy(), panes, cells) for keys, hashes, panes, cells in chunks]
        if parts:
            yield rows_to_table(self.spec, index.view(), merged_cells(parts, self.spec.width))
