"""Combining before the shuffle: a batch on its way to a window becomes one row per key and pane.

Defines the sender (`Combiner`, placed in the outgoing edge by `penstock.task.chain.chain`) and the layout of
combined rows, which `operators.windows.window_aggregate` reads. Combining works on single batches: no state needs a
snapshot, and no row waits, so a watermark or barrier cannot overtake one. The window decides on lateness, for which the
start of the pane is as good as the time of each row. For a window of processing time there is one row per key: all rows
of a batch have the time of its arrival, so the receiver chooses the pane.

A combined row gives the same result as its rows: sums and counts of integers, minima and maxima, first and last. Sums
of floats depend on their order, so they are combined only if the job sets `combine=all`. Values of variable size, such
as strings, have separate columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.elements import TS_COLUMN
from penstock.kernels.aggregates import pane_assignment
from penstock.kernels.aggregates.pane_assignment import TIME_LIMIT
from penstock.kernels.keys.key_columns import FixedColumn, key_columns
from penstock.operators.aggregates.aggregate_plan import AggregatePlan
from penstock.operators.aggregates.aggregate_schema import WindowConfig, parse
from penstock.operators.rows.columns import TS_FIELD
from penstock.state.cells.pane_memory import add_rows
from penstock.state.cells.value_heap import ValueHeap, take_values
from penstock.state.keys.key_index import KeyIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.config.settings import JobSettings
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import AccumulatorInput, PaneTableSpec

#: Column of the accumulators: as many words as a cell of the window's table.
CELLS_COLUMN = "__cells"
#: Rows sent uncombined before the next attempt, and their maximum: each attempt without effect doubles the number.
_FIRST_PAUSE, _LONGEST_PAUSE = 1 << 19, 1 << 24
#: Most keys that are kept between batches; one batch may exceed it before they are dropped.
_MOST_KEYS = 1 << 15
#: Most panes of a batch, and most numbers for (key, pane).
_MOST_PANES, _MOST_PLACES = 64, 1 << 20
#: Integer keys with a span of at most this are their own numbers; the array fits the second-level cache.
_DENSE_PLACES = 1 << 16


def combined_schema(keys: tuple[str, ...], schema: pa.Schema, spec: PaneTableSpec) -> pa.Schema:
    """Return the schema of combined rows on an edge of `schema`.

    The keys, the pane's start, the accumulators, and the values that these refer to.
    """
    cells = pa.field(CELLS_COLUMN, pa.binary(8 * spec.width), nullable=False)
    values = [pa.field(_value_column(word), kind) for word, kind in spec.value_words.items()]
    return pa.schema([*(schema.field(name) for name in keys), TS_FIELD, cells, *values])


def combined_rows(schema: pa.Schema, spec: PaneTableSpec, columns: list[pa.Array], cells: I64) -> pa.RecordBatch:
    """Return rows of `combined_schema` of the keys and times in `columns`, and of cells, which it overwrites."""
    values = [take_values(cells[:, word], kind) for word, kind in spec.value_words.items()]
    cells[:, list(spec.value_words)] = 0  # an address has no meaning in another process
    kept = pa.Array.from_buffers(schema.field(CELLS_COLUMN).type, len(cells), [None, pa.py_buffer(cells)], 0)
    return pa.RecordBatch.from_arrays([*columns, kept, *values], schema=schema)


def _value_column(word: int) -> str:
    return f"{CELLS_COLUMN}_{word}"


def cells_of(batch: pa.RecordBatch) -> I64:
    """Return the accumulators of combined rows, one row each, without a copy."""
    column = batch.column(CELLS_COLUMN)
    width = column.type.byte_width // 8
    words = np.frombuffer(column.buffers()[1], np.int64)
    return words[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


def read_cells(batch: pa.RecordBatch, spec: PaneTableSpec, heap: ValueHeap) -> I64:
    """Return the accumulators of combined rows; values that they refer to are put into `heap`."""
    cells = cells_of(batch)
    if spec.value_words:
        cells = cells.copy()
        for word in spec.value_words:
            cells[:, word] = heap.put(batch.column(_value_column(word)))
    return cells


def combiner_for(config: dict[str, Any], schema: pa.Schema, settings: JobSettings) -> Combiner | None:
    """Return the combiner for a window of that configuration, or None if its rows cannot be combined.

    An edge without event time leads to a window of processing time. First and last of these are decided by the moments
    at which rows arrive, which the sender does not know.
    """
    parsed = parse(config)
    plan = AggregatePlan(parsed, schema)
    wanted = settings.combine == "all" or (settings.combine == "exact" and plan.spec.exact)
    timed = TS_COLUMN in schema.names or not plan.spec.timed
    return Combiner(parsed, plan, schema, settings) if wanted and timed and parsed.combines else None


class Combiner:
    """Combines batches; each decision depends on the batches alone, so a replay decides in the same way."""

    def __init__(self, config: WindowConfig, plan: AggregatePlan, schema: pa.Schema, settings: JobSettings) -> None:
        """Made by `combiner_for`."""
        self._key = config.key
        self._plan = plan
        self._timed = TS_COLUMN in schema.names
        self._ratio = settings.combine_ratio
        self._least_rows = max(1, settings.combine_min_rows)
        self._partials = Partials(plan.spec, config.pane, config.offset)
        self._pause = _FIRST_PAUSE
        #: Rows still to be sent without an attempt to combine them.
        self._left = 0
        self.schema = combined_schema(config.key, schema, plan.spec)

    @property
    def depends_on_order(self) -> bool:
        """Whether rows of one time give another result in another order: a first or last value."""
        return self._plan.spec.timed

    def combine(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the combined batch, or None if its rows are to be sent as they are."""
        rows = batch.num_rows
        if rows < self._least_rows:
            return None
        if self._left > 0:
            self._left -= rows
            return None
        times = batch.column(TS_COLUMN).to_numpy() if self._timed else np.zeros(rows, np.int64)
        limit = max(1, int(rows * self._ratio))
        self._plan.heap = ValueHeap()  # the combiner keeps no values across batches
        found = self._partials.reduce(key_columns(batch, self._key), times, self._plan.inputs(batch), limit)
        if found is None:
            self._left, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            return None
        self._pause = _FIRST_PAUSE
        order = pa.array(found.first_rows)
        columns = [*(batch.column(name).take(order) for name in self._key), pa.array(found.panes)]
        return combined_rows(self.schema, self._plan.spec, columns, found.cells)


@dataclass(frozen=True, slots=True)
class PartialRows:
    """One row per group, in order of the groups' first rows."""

    #: The group's first row in the batch, which supplies its key.
    first_rows: I64
    panes: I64
    cells: I64


class Partials:
    """Combines the rows of each key and pane of a batch into one cell.

    Only key numbers are kept between batches, to be faster.
    """

    def __init__(self, spec: PaneTableSpec, pane: int, offset: int) -> None:
        """Combine by panes of length `pane` that start at multiples of it plus `offset` (microseconds)."""
        self._spec = spec
        self._pane = pane
        self._offset = offset
        self._index = KeyIndex(spec.key_schema)
        self._known = np.zeros(0, np.int64)
        self._group_of = np.zeros(0, np.int64)
        self._floor = 1

    def reduce(
        self, keys: KeyColumns, times: I64, inputs: Sequence[AccumulatorInput | None], limit: int
    ) -> PartialRows | None:
        """Return the groups of a batch (with at least one row).

        None if there are more than `limit`, if times are too far apart or impossible, or if a sum overflows. Then the
        rows are sent uncombined.
        """
        first, last = int(times.min()), int(times.max())
        if first <= -TIME_LIMIT or last >= TIME_LIMIT:
            return None
        base = first - (first - self._offset) % self._pane
        panes = (last - base) // self._pane + 1
        if panes > _MOST_PANES:
            return None
        slots, count = self._numbered(keys, len(times), panes)
        if count * panes > _MOST_PLACES:
            return None
        self._make_room(count * panes, len(times))
        first_rows, starts = np.empty(limit, np.int64), np.empty(limit, np.int64)
        window = np.array([self._pane, base, panes], np.int64)
        group_of = self._group_of[: len(times)]
        groups = pane_assignment.group_rows(
            slots, times, window, (self._known, group_of, first_rows, starts), self._floor
        )
        self._floor += len(times)
        if groups < 0:
            return None
        cells = np.empty((groups, self._spec.width), np.int64)
        cells[:] = self._spec.initial
        if add_rows(self._spec, (cells, cells.view(np.float64)), group_of, inputs) is not None:
            return None
        return PartialRows(first_rows[:groups], starts[:groups], cells)

    def _numbered(self, keys: KeyColumns, rows: int, panes: int) -> tuple[I32, int]:
        """Return a number for the key of each row, and the exclusive upper bound of the numbers."""
        column = keys[0]
        if len(keys) == 1 and isinstance(column, FixedColumn) and not column.nullable:
            low = int(column.values.min())
            span = int(column.values.max()) - low + 1
            if span <= _DENSE_PLACES // panes:
                return (column.values - low).astype(np.int32), span
        if self._index.count > _MOST_KEYS:
            self._index = KeyIndex(self._spec.key_schema)
        remembered = self._index.count
        slots = self._index.slots_of(keys, rows)
        if remembered and self._index.count * panes > _MOST_PLACES:  # retry without the keys of earlier batches
            self._index = KeyIndex(self._spec.key_schema)
            slots = self._index.slots_of(keys, rows)
        return slots, self._index.count

    def _make_room(self, places: int, rows: int) -> None:
        if places > len(self._known):
            self._known = np.zeros(max(places, 2 * len(self._known)), np.int64)
        if rows > len(self._group_of):
            self._group_of = np.empty(rows, np.int64)
