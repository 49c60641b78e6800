"""The results of windows that keep their rows: by aggregates, by reducing, or by a function of the whole window.

One of these classes is the `WindowSink` of `operators.windows.window_engine`; `operators.windows.window_rows` makes it
and calls `emit`.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.core.elements import TS_COLUMN, Batch
from penstock.operators.aggregates.aggregates import AggregatePlan
from penstock.operators.aggregates.kept_aggregates import aggregated, kept_output
from penstock.operators.aggregates.window_schema import WINDOW_START
from penstock.operators.rows.columns import assemble, without_ts
from penstock.operators.rows.rows import RowEncoder
from penstock.operators.rows.user_functions import user_error
from penstock.operators.windows.window_engine import WindowSink
from penstock.state.cells.adding import add_rows
from penstock.state.cells.hot_panes import overflow
from penstock.state.cells.value_heap import ValueHeap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.eventtime.windows import TimeWindow
    from penstock.functions.evictors import WindowElement
    from penstock.functions.folding_states import Aggregator
    from penstock.functions.window_functions import ProcessWindowFunction, WindowContext
    from penstock.kernels.compiler.compile import I64
    from penstock.operators.operator import Collector
    from penstock.operators.process.process_output import ProcessOutput
    from penstock.operators.windows.window_buffer import KeyWindows
    from penstock.operators.windows.window_index import BufferedWindow
    from penstock.operators.windows.window_rows_schema import WindowRowsConfig


class WindowOutput(WindowSink, Protocol):
    """Computes windows, and emits the results after each batch."""

    #: Event time of the row or timer that fires a global window, set by the operator.
    time_of: Callable[[TimeWindow], int]

    def emit(self, keys: list[pa.Array], out: Collector) -> None:
        """Emit the results since the last call, for keys of these columns."""


class AggregatedWindows:
    """Computes aggregates, of all windows of a batch at once."""

    def __init__(
        self,
        config: WindowRowsConfig,
        schemas: tuple[pa.Schema, pa.Schema, pa.Schema],
        aggregators: dict[str, Aggregator[Any, Any, Any]],
        where: str,
    ) -> None:
        """Make a sink.

        `schemas` are those of the rows, the key and the output; `aggregators` are user-defined aggregates by output
        column.
        """
        rows, key, output = schemas
        self._where = where
        self._aggregates = config.aggregates
        # a computed key is not a column of the rows
        known = pa.schema([*rows, *(field for field in key if field.name not in rows.names)])
        self._plan = AggregatePlan(replace(config, aggregates=tuple(a for a in self._aggregates if not a.kept)), known)
        self._aggregators = aggregators
        self._encoder = RowEncoder(rows, where)
        self._rows, self._output = rows, output
        self._fired: list[tuple[int, TimeWindow, int, list[WindowElement]]] = []
        self.time_of: Callable[[TimeWindow], int] = lambda window: window.max_timestamp

    def fire(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow, elements: list[WindowElement]) -> None:
        """Record a window to be computed."""
        del known
        if elements:
            self._fired.append((key.at, window, self.time_of(window), elements))

    def clear(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow) -> None:
        """Do nothing: no state is kept for a window."""

    def emit(self, keys: list[pa.Array], out: Collector) -> None:
        """Compute and emit."""
        if not self._fired:
            return
        fired, self._fired = self._fired, []
        elements = [element for *_, found in fired for element in found]
        columns = self._encoder.columns([element.value for element in elements])
        times = pa.array([element.timestamp for element in elements], pa.int64())
        has_time = TS_COLUMN in self._rows.names
        data = assemble(columns, without_ts(self._rows), times if has_time else None)
        spec = self._plan.spec
        self._plan.heap = ValueHeap()
        cells = np.repeat(spec.initial[np.newaxis], len(fired), axis=0)
        cell = np.repeat(np.arange(len(fired)), [len(found) for *_, found in fired])
        name = add_rows(spec, (cells, cells.view(np.float64)), cell, self._plan.inputs(data))
        if name is not None:
            raise overflow(name)
        cells[:, 0] >>= 1
        places = pa.array([place for place, *_ in fired])
        made = [column.take(places) for column in keys]
        if WINDOW_START in self._output.names:
            kind = self._output.field(WINDOW_START).type
            made += [pa.array([window[edge] for _, window, *_ in fired], pa.int64()).view(kind) for edge in (0, 1)]
        made += self._columns(data, cells, cell, [[e.value for e in found] for *_, found in fired])
        if TS_COLUMN in self._output.names:
            made.append(pa.array([time for _, _, time, _ in fired], pa.int64()))
        out.batch(Batch(pa.RecordBatch.from_arrays(made, schema=self._output)))

    def _columns(self, data: pa.RecordBatch, cells: I64, cell: I64, rows: list[list[Any]]) -> list[pa.Array]:
        """Return one column per aggregate.

        The windows' rows are `rows`, and the rows of `data` by `cell`.
        """
        simple = iter(self._plan.outputs(cells))
        made: list[pa.Array] = []
        for aggregate in self._aggregates:
            if aggregate.fn == "aggregator":
                try:
                    found = aggregated(self._aggregators[aggregate.alias], rows, aggregate.column)
                except Exception as error:
                    raise user_error(self._where, error) from error
                made.append(self._encoder.array(self._output.field(aggregate.alias), found))
            elif aggregate.kept and aggregate.column is not None:
                made.append(kept_output(aggregate, data.column(aggregate.column), cell, len(cells)))
            else:
                made.append(next(simple))
        return made


class ReducedWindows:
    """Reduces the rows of a window to one, two at a time."""

    def __init__(self, function: Callable[[Any, Any], Any], output: ProcessOutput) -> None:
        """Make a sink; `function` takes the result so far and the next row."""
        self._function = function
        self._output = output
        self.time_of: Callable[[TimeWindow], int] = lambda window: window.max_timestamp

    def fire(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow, elements: list[WindowElement]) -> None:
        """Reduce."""
        del key, known
        if elements:
            row = functools.reduce(self._function, [element.value for element in elements])
            _keep(self._output, [row], self.time_of(window))

    def clear(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow) -> None:
        """Do nothing: no state is kept for a window."""

    def emit(self, keys: list[pa.Array], out: Collector) -> None:
        """Emit."""
        del keys
        self._output.emit(out)


class ProcessedWindows:
    """Emits all rows that a function yields for a window's rows."""

    def __init__(
        self,
        function: ProcessWindowFunction,
        context: WindowContext,
        output: ProcessOutput,
        key_of: Callable[[int], Any],
    ) -> None:
        """Make a sink; `key_of` returns the key at an index of the batch."""
        self._function = function
        self._context = context
        self._output = output
        self._key_of = key_of
        self.time_of: Callable[[TimeWindow], int] = lambda window: window.max_timestamp

    def fire(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow, elements: list[WindowElement]) -> None:
        """Call the function."""
        name, time = self._key_of(key.at), self.time_of(window)
        self._context.watermark = key.watermark
        self._context.bind(name, window, known.function, time)
        found = self._function.process(name, self._context, [element.value for element in elements])
        if found is not None:
            _keep(self._output, found, time)

    def clear(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow) -> None:
        """Call the function's hook."""
        self._context.watermark = key.watermark
        self._context.bind(self._key_of(key.at), window, known.function, self.time_of(window))
        self._function.clear(self._context)

    def emit(self, keys: list[pa.Array], out: Collector) -> None:
        """Emit."""
        del keys
        self._output.emit(out)


def _keep(output: ProcessOutput, rows: Sequence[Any], time: int) -> None:
    before = len(output.rows)
    output.rows.extend(rows)
    if len(output.rows) > before:
        output.ends.append(len(output.rows))
        output.times.append(time)
