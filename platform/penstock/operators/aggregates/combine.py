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

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.elements import TS_COLUMN
from penstock.kernels.keys.key_columns import key_columns
from penstock.operators.aggregates.aggregate_plan import AggregatePlan
from penstock.operators.aggregates.aggregate_schema import WindowConfig, parse
from penstock.operators.aggregates.partials import Partials
from penstock.operators.rows.columns import TS_FIELD
from penstock.state.cells.value_heap import ValueHeap, take_values

if TYPE_CHECKING:
    from penstock.config.settings import JobSettings
    from penstock.kernels.compiler.compile import I64
    from penstock.state.cells.accumulators import PaneTableSpec

#: Column of the accumulators: as many words as a cell of the window's table.
CELLS_COLUMN = "__cells"
#: Rows sent uncombined before the next attempt, and their maximum: each attempt without effect doubles the number.
_FIRST_PAUSE, _LONGEST_PAUSE = 1 << 19, 1 << 24


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
