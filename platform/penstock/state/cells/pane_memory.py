"""The part of a pane table in memory: its key index, its values, and pages of cells per (pane, 4096 slots).

Pages have copy-on-write freezing. Loops add rows to cells; cells become columns of a segment, and come from them. Used
by pane tables, freezes, restores and remote state. Owned by one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.core.errors import PenstockError, StateMismatchError
from penstock.kernels.aggregates import accumulate as one_pass
from penstock.kernels.aggregates import aggregate, merge
from penstock.kernels.aggregates import pages as kernels
from penstock.kernels.aggregates import running_kernels as running
from penstock.kernels.compiler.compile import F64, I32, I64
from penstock.kernels.rows.row_order import hash_order
from penstock.state.cells.accumulators import TIMED
from penstock.state.cells.value_heap import ValueHeap, take_values
from penstock.state.keys.key_index import KeyIndex
from penstock.state.log.segment_columns import DELETED, NAMESPACE, keyed_batch
from penstock.state.memory.slot_arrays import pieces, renumbering

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.kernels.compiler.compile import U8
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import AccumulatorInput, AccumulatorSpec, PaneTableSpec
    from penstock.state.keys.key_index import KeyView

_FIRST_PAGES = 8


@dataclass(frozen=True, slots=True)
class PaneCells:
    """Cells with their slots and panes."""

    slots: I32
    panes: I64
    cells: I64

    @property
    def memory_bytes(self) -> int:
        """The bytes of the arrays."""
        return int(self.slots.nbytes + self.panes.nbytes + self.cells.nbytes)

    def chosen(self, at: NDArray[np.bool_] | I64) -> PaneCells:
        """Return a copy of the rows that a mask or an array of row numbers selects."""
        return PaneCells(self.slots[at], self.panes[at], self.cells[at])


@dataclass(slots=True)
class FrozenCells:
    """The changed cells of one freeze: pages to copy, and the copies so far; `keys` has the keys of slots."""

    number: int
    keys: KeyView
    pages: I64
    #: Whether it has all cells with rows, not only the changed ones.
    whole: bool = False
    #: `copy_frozen` has not visited pages from this one on; writes may have copied some already.
    cursor: int = 0
    left: int = 0
    copied: list[PaneCells] = field(default_factory=list)
    #: Bytes of the copies.
    memory_bytes: int = 0


class PaneMemory:
    """Cells by (slot, pane)."""

    def __init__(self, spec: PaneTableSpec) -> None:
        """Start empty."""
        self.spec = spec
        self._width = spec.width
        pages = 1 if spec.single_pane else _FIRST_PAGES
        #: The cells; replaced when memory grows.
        self.cells = np.empty((pages * kernels.PAGE_ROWS, self._width), np.int64)
        self._meta = np.zeros((pages, kernels.META_COLUMNS), np.int64)
        self._free = np.arange(pages - 1, -1, -1, dtype=np.int64)
        self._free_count = pages
        self._capture = np.empty(pages, np.int64)
        self._page_table = np.full((4, 1), -1, np.int32)
        self._pane_index = np.zeros(2 * 16, np.int64)
        self._pane_rows: dict[int, int] = {}
        self._free_rows = [3, 2, 1, 0]
        self._cell = np.empty(0, np.int64)
        self._frozen: dict[int, FrozenCells] = {}

    @property
    def float_cells(self) -> F64:
        """The same memory as floats."""
        return self.cells.view(np.float64)

    @property
    def panes(self) -> list[int]:
        """The pane starts that have a page, ascending."""
        return sorted(self._pane_rows)

    @property
    def memory_bytes(self) -> int:
        """The bytes of the pages in use, and of the tables that find them."""
        used = len(self._free) - self._free_count
        return used * kernels.PAGE_ROWS * self._width * 8 + int(self._page_table.nbytes + self._meta.nbytes)

    def bytes_with(self, count: int) -> int:
        """Return the bytes of cells with `count` slots in the table's one pane, not fewer than now."""
        return self._pages_of(count) * kernels.PAGE_ROWS * self._width * 8

    def make_room(self, count: int) -> None:
        """Make room for `count` slots in one pane at once."""
        pages = self._pages_of(count)
        if pages > len(self._free):
            self._grow_pages(pages)
        self._fit_slots(count)

    def locate(self, slots: I32, panes: I64, slot_count: int) -> I64:
        """Return the cell of every row, created where missing, ready for writing; the next call reuses the array."""
        if len(slots) > len(self._cell):
            self._cell = np.empty(max(len(slots), 2 * len(self._cell)), np.int64)
        self._fit_slots(slot_count)
        cell = self._cell[: len(slots)]
        state = np.array([0, 0, self._free_count, 0, 0, kernels.DONE], np.int64)
        while True:
            tables = (self._pane_index, self._page_table, self._meta, self._free, self._capture)
            kernels.locate((slots, panes), cell, tables, self.cells, self.spec.initial, state)
            if not self._added(state):
                break
        if state[3]:
            self._copy_listed(self._capture[: int(state[3])])
        return cell

    @property
    def frozen(self) -> bool:
        """Whether any page waits to be copied for a freeze."""
        return bool(self._frozen)

    def accumulate(
        self, rows: tuple[I32, I64], window: I64, inputs: Sequence[AccumulatorInput | None], slot_count: int
    ) -> tuple[int, int]:
        """Add rows (slots, event times) in one pass; no page may be frozen. `window`: see the kernel.

        Return the numbers of rows that were not added: late ones, and those with an impossible event time.

        Raises:
            PenstockError: an integer sum overflows.
        """
        self._fit_slots(slot_count)
        work = (self.spec.initial, self.spec.row_inputs(inputs))  # addresses: `inputs` must outlive the calls
        state = np.array([0, 0, self._free_count, 0, 0, kernels.DONE, 0], np.int64)
        while True:
            tables = (self._pane_index, self._page_table, self._meta, self._free)
            cells = (self.cells, self.float_cells)
            one_pass.accumulate(rows, window, tables, cells, work, state)
            if not self._added(state):
                if state[6]:
                    raise overflow("a sum of a window")
                return int(state[1]), int(state[3])

    def put(self, slots: I32, panes: I64, cells: I64, slot_count: int) -> None:
        """Overwrite cells with whole rows, in order; pages count as changed only where a row's dirty bit is set."""
        before = self._meta[:, kernels.DIRTY].copy()
        cell = self.locate(slots, panes, slot_count)
        kernels.put_cells(self.cells, cell, np.ascontiguousarray(cells))
        self._meta[: len(before), kernels.DIRTY] = before
        self._meta[len(before) :, kernels.DIRTY] = 0
        dirty = cell[(cells[:, 0] & 1).astype(bool)]
        self._meta[np.unique(dirty >> kernels.PAGE_BITS), kernels.DIRTY] = 1

    def rewrite(self, cell: I64, cells: I64) -> None:
        """Overwrite existing cells; pages that a freeze still needs are copied first."""
        if len(cell) == 0:
            return
        pages = np.unique(cell >> kernels.PAGE_BITS)
        waiting = pages[self._meta[pages, kernels.FROZEN] > 0]
        if len(waiting):
            self._meta[waiting, kernels.FROZEN] *= -1
            self._copy_listed(waiting)
        kernels.put_cells(self.cells, cell, cells)
        self._meta[pages, kernels.DIRTY] = 1

    def empty(self, cell: I64) -> None:
        """Clear existing cells; the next segment has their deletions."""
        blank = np.repeat(self.spec.initial[np.newaxis], len(cell), axis=0)
        blank[:, 0] = 1
        self.rewrite(cell, blank)

    def find(self, slots: I32, pane: int) -> I64:
        """Return the cell of every slot in a pane, -1 where there is none."""
        row = self._pane_rows.get(pane)
        blocks = slots >> kernels.PAGE_BITS
        if row is None:
            return np.full(len(slots), -1, np.int64)
        known = blocks < self._page_table.shape[1]
        pages = np.where(known, self._page_table[row, np.where(known, blocks, 0)], -1).astype(np.int64)
        return np.where(pages < 0, -1, (pages << kernels.PAGE_BITS) + (slots & (kernels.PAGE_ROWS - 1)))

    def rows_of(self, slots: I32) -> Iterator[tuple[int, I64, I64]]:
        """Yield the panes, newest first, with the positions of the slots that have a row there, and their cells."""
        for pane in reversed(self.panes):
            cell = self.find(slots, pane)
            there = np.flatnonzero((cell >= 0) & (self.cells[cell, 0] > 1))
            yield pane, there, self.cells[cell[there]]

    def drop(self, panes: list[int]) -> None:
        """Drop panes; their pages become free immediately, or after they were copied for a freeze."""
        for pane in panes:
            row = self._pane_rows.pop(pane)
            pages = self._page_table[row][self._page_table[row] >= 0].astype(np.int64)
            self._page_table[row] = -1
            self._free_rows.append(row)
            self._meta[pages, kernels.DIRTY] = 0
            waiting = self._meta[pages, kernels.FROZEN] != 0
            self._meta[pages[waiting], kernels.ORPHAN] = 1
            self._release(pages[~waiting])
        if panes:
            self._index_panes()

    def window_pages(self, panes: list[int]) -> I32:
        """Return the pages of these panes, one row per existing pane."""
        rows = [self._pane_rows[p] for p in panes if p in self._pane_rows]
        return np.ascontiguousarray(self._page_table[rows])

    def cells_in_use(self) -> I64:
        """Return the numbers of all cells in used pages."""
        pages = self._pages_in_use()
        every = (pages[:, np.newaxis] << kernels.PAGE_BITS) + np.arange(kernels.PAGE_ROWS)
        return np.ascontiguousarray(every.reshape(-1))

    def present(self) -> PaneCells:
        """Return copies of all used cells, with their dirty bits."""
        return next(self.presents(1 << 62))

    def presents(self, most: int) -> Iterator[PaneCells]:
        """Yield copies of all used cells as `present` does, those of a page or of about `most` rows at a time."""
        pages, step = self._pages_in_use(), max(1, most // kernels.PAGE_ROWS)
        for first in range(0, max(1, len(pages)), step):
            some = pages[first : first + step]
            out = self._room(int(kernels.count_present(self.cells, some)))
            kernels.take_present(self.cells, some, self._meta, (out.slots, out.panes, out.cells))
            yield out

    def counts(self, slots: int) -> I64:
        """Return the number of panes in which each of the first slots has a row."""
        found = np.zeros((-(-slots // kernels.PAGE_ROWS), kernels.PAGE_ROWS), np.int64)
        rows = self.cells[:, 0].reshape(-1, kernels.PAGE_ROWS)
        for row in self._pane_rows.values():
            pages = self._page_table[row, : len(found)]
            blocks = np.flatnonzero(pages >= 0)
            found[blocks] += rows[pages[blocks]] > 1
        return found.reshape(-1)[:slots]

    # --- freezing ---------------------------------------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        """Whether a cell has changed since the last freeze."""
        return bool(self._meta[:, kernels.DIRTY].any())

    def freeze(self, number: int, keys: KeyView, *, whole: bool = False) -> FrozenCells | None:
        """Mark all changed pages as belonging to freeze `number` (> 0); None when nothing changed.

        `whole`: all pages, changed or not; only when nothing is `frozen`.
        """
        pages = np.nonzero(self._meta[:, kernels.DIRTY])[0].astype(np.int64)
        if len(pages) == 0:
            return None
        if whole:
            pages = self._pages_in_use()
        # a page that an earlier freeze still needs was not written since, or it would have been copied
        self._meta[pages, kernels.FROZEN] = number
        self._meta[pages, kernels.DIRTY] = 0
        frozen = FrozenCells(number, keys, pages, whole, 0, len(pages))
        self._frozen[number] = frozen
        return frozen

    def copy_frozen(self, limit: int, up_to: int) -> bool:
        """Copy up to `limit` pages of the freezes numbered at most `up_to`; True when none is left."""
        for frozen in [f for n, f in sorted(self._frozen.items()) if n <= up_to]:
            while frozen.left and limit > 0:
                piece = frozen.pages[frozen.cursor : frozen.cursor + limit]
                frozen.cursor += len(piece)
                pages = piece[self._meta[piece, kernels.FROZEN] == frozen.number]
                limit -= len(pages)
                self._copy(frozen, pages)
            if frozen.left:
                return False
        return True

    def copy_all_frozen(self) -> None:
        """Copy all frozen pages, before pages are moved."""
        if self._frozen:
            self.copy_frozen(len(self._free), max(self._frozen))

    def _copy_listed(self, pages: I64) -> None:
        numbers = -self._meta[pages, kernels.FROZEN]
        for number in np.unique(numbers).tolist():
            self._copy(self._frozen[number], pages[numbers == number])

    def _copy(self, frozen: FrozenCells, pages: I64) -> None:
        if len(pages) == 0:
            return
        count, take = (
            (kernels.count_present, kernels.take_rows) if frozen.whole else (kernels.count_dirty, kernels.take_dirty)
        )
        out = self._room(int(count(self.cells, pages)))
        taken = take(self.cells, pages, self._meta, (out.slots, out.panes, out.cells))
        if taken < len(out.slots):  # a whole freeze leaves deletions out
            out = PaneCells(out.slots[:taken], out.panes[:taken], out.cells[:taken])
        frozen.copied.append(out)
        frozen.memory_bytes += out.memory_bytes
        self._meta[pages, kernels.FROZEN] = 0
        self._release(pages[self._meta[pages, kernels.ORPHAN] == 1])
        frozen.left -= len(pages)
        if frozen.left == 0:
            del self._frozen[frozen.number]

    # --- pages ------------------------------------------------------------------------------------------------------

    def _pages_in_use(self) -> I64:
        return np.sort(self._page_table[self._page_table >= 0]).astype(np.int64)

    def _room(self, rows: int) -> PaneCells:
        return PaneCells(np.empty(rows, np.int32), np.empty(rows, np.int64), np.empty((rows, self._width), np.int64))

    def _release(self, pages: I64) -> None:
        self._free[self._free_count : self._free_count + len(pages)] = pages
        self._free_count += len(pages)

    def _added(self, state: I64) -> bool:
        """Add the pane or the pages without which a kernel stopped; return False if it was done."""
        self._free_count = int(state[2])
        if state[5] == kernels.NEED_PANES:
            self._add_pane(int(state[4]))
        elif state[5] == kernels.NEED_PAGES:
            self._grow_pages(2 * len(self._free))
            state[2] = self._free_count
        return bool(state[5] != kernels.DONE)

    def _pages_of(self, count: int) -> int:
        pages = len(self._free)
        while pages * kernels.PAGE_ROWS < count:
            pages *= 2
        return pages

    def _grow_pages(self, pages: int) -> None:
        old = len(self._free)
        cells = np.empty((pages * kernels.PAGE_ROWS, self._width), np.int64)
        cells[: len(self.cells)] = self.cells
        self.cells = cells
        self._meta = np.concatenate([self._meta, np.zeros((pages - old, kernels.META_COLUMNS), np.int64)])
        self._free = np.concatenate([self._free, np.empty(pages - old, np.int64)])
        self._capture = np.concatenate([self._capture, np.empty(pages - old, np.int64)])
        self._release(np.arange(pages - 1, old - 1, -1, dtype=np.int64))

    def _fit_slots(self, slot_count: int) -> None:
        need = (slot_count + kernels.PAGE_ROWS - 1) >> kernels.PAGE_BITS
        rows, have = self._page_table.shape
        if need > have:
            wider = np.full((rows, max(need, 2 * have)), -1, np.int32)
            wider[:, :have] = self._page_table
            self._page_table = wider

    def _add_pane(self, pane: int) -> None:
        if not self._free_rows:
            rows = len(self._page_table)
            self._page_table = np.concatenate([self._page_table, np.full_like(self._page_table, -1)])
            self._free_rows = list(range(2 * rows - 1, rows - 1, -1))
        row = self._free_rows.pop()
        self._pane_rows[pane] = row
        if 4 * len(self._pane_rows) > len(self._pane_index):
            self._index_panes()
        else:
            kernels.enter_pane(self._pane_index, pane, row)

    def _index_panes(self) -> None:
        size = 32
        while size < 8 * len(self._pane_rows):
            size *= 2
        self._pane_index = np.zeros(size, np.int64)
        for pane, row in self._pane_rows.items():
            kernels.enter_pane(self._pane_index, pane, row)


_NO_VALUES = np.zeros(0, np.int64)
_NOT_WANTED = np.zeros((0, 0), np.int64)
_SUMS = {
    ("sum", "int64"): aggregate.sum_i64,
    ("min", "int64"): aggregate.min_i64,
    ("max", "int64"): aggregate.max_i64,
    ("sum", "float64"): aggregate.sum_f64,
    ("min", "float64"): aggregate.min_f64,
    ("max", "float64"): aggregate.max_f64,
    ("moments", "float64"): aggregate.moments_f64,
}


def add_rows(
    spec: PaneTableSpec, cells: tuple[I64, F64], cell: I64, inputs: Sequence[AccumulatorInput | None]
) -> str | None:
    """Add row i to cell `cell[i]` (`cells` as integers and as floats); return the name of a sum that overflowed."""
    integers, floats = cells
    aggregate.add_rows(integers, cell)
    for accumulator, word, values in zip(spec.accumulators, spec.words, inputs, strict=True):
        if values is not None:
            table = floats if accumulator.dtype == "float64" and accumulator.combine not in TIMED else integers
            if _add(accumulator, table, word, cell, values):
                return accumulator.name
    return None


def run_input(
    spec: AccumulatorSpec, target: tuple[PaneMemory, I64], word: int, cell: I64, values: AccumulatorInput
) -> int:
    """Add one input and write the accumulator's words after each row; return the number of overflows."""
    memory, words = target
    bitmap, offset = values.bitmap, values.bit_offset
    if spec.combine in TIMED:
        column = (values.times, values.values, bitmap)
        return int(running.run_timed(memory.cells, (spec.op, word), cell, column, offset, words))
    if spec.combine == "registers":
        return int(aggregate.add_registers(memory.cells, word, cell, (values.values, bitmap), offset, words))
    if spec.dtype == "value":
        return int(merge.keep_extremes(memory.cells, (spec.op, word), cell, values.values, words))
    if values.values is None:
        at = (running.COUNT_VALID, word)
        return int(running.run_i64(memory.cells, at, cell, (_NO_VALUES, bitmap), offset, words))
    if spec.dtype == "int64":
        return int(running.run_i64(memory.cells, (spec.op, word), cell, (values.values, bitmap), offset, words))
    kernel = running.run_moments if spec.combine == "moments" else running.run_f64
    floats = words.view(np.float64)
    return int(kernel(memory.float_cells, (spec.op, word), cell, (values.values, bitmap), offset, floats))


def _add(spec: AccumulatorSpec, cells: I64 | F64, word: int, cell: I64, values: AccumulatorInput) -> int:
    """Add one input; return the number of additions that overflowed."""
    bitmap: U8 = values.bitmap
    if spec.combine in TIMED:
        kernel = aggregate.first_i64 if spec.combine == "first" else aggregate.last_i64
        return int(kernel(cells, word, cell, (values.times, values.values), bitmap, values.bit_offset))
    if spec.combine == "registers":
        hashed = (values.values, bitmap)
        return int(aggregate.add_registers(cells, word, cell, hashed, values.bit_offset, _NOT_WANTED))
    if spec.dtype == "value":
        return int(merge.keep_extremes(cells, (spec.op, word), cell, values.values, _NOT_WANTED))
    if values.values is None:
        aggregate.add_valid(cells, word, cell, bitmap, values.bit_offset)
        return 0
    return int(_SUMS[spec.combine, spec.dtype](cells, word, cell, values.values, bitmap, values.bit_offset))


#: Rows that are copied at a time when keys are dropped.
REBUILT_ROWS = 1 << 20
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

    def make_room(self, count: int) -> None:
        """Make room for `count` keys in one pane at once."""
        self.index.make_room(count)
        self.memory.make_room(count)

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

    def rebuilt(self, kept: I32, most: int = REBUILT_ROWS, index: KeyIndex | None = None) -> HotPanes:
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
