"""The results of windows that keep their rows: by aggregates, by reducing, or by a function of the whole window.

One of the classes is the `WindowSink` of `operators.windows.window_engine`.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import TS_COLUMN, Batch
from penstock.kernels.keys.key_columns import fixed_column, fixed_to_arrow
from penstock.kernels.keys.key_types import is_fixed
from penstock.operators.aggregates.aggregate_plan import AggregatePlan
from penstock.operators.aggregates.aggregate_schema import WINDOW_START
from penstock.operators.rows.columns import assemble, without_ts
from penstock.operators.rows.row_codec import RowEncoder
from penstock.operators.rows.row_text import value_text, window_text
from penstock.operators.rows.user_functions import user_error
from penstock.operators.windows.window_engine import WindowSink
from penstock.state.cells.hot_panes import overflow
from penstock.state.cells.pane_memory import add_rows
from penstock.state.cells.value_heap import ValueHeap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.eventtime.windows import TimeWindow
    from penstock.functions.evictors import WindowElement
    from penstock.functions.folding_states import Aggregator
    from penstock.functions.window_functions import ProcessWindowFunction, WindowContext
    from penstock.kernels.compiler.compile import F64, I64
    from penstock.operators.aggregates.aggregate_schema import Aggregate
    from penstock.operators.operator import Collector
    from penstock.operators.rows.row_codec import ProcessOutput
    from penstock.operators.windows.window_buffer import BufferedWindow, KeyWindows
    from penstock.operators.windows.window_schemas import WindowRowsConfig


def row_aggregate(aggregate: Aggregate, values: pa.Array, window: I64, windows: int) -> pa.Array:
    """Return an aggregate of each window; value i belongs to `window[i]`, which is sorted. Null means no value."""
    if pt.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        valid = values.is_valid()
        values, window = values.filter(valid), window[valid.to_numpy(zero_copy_only=False)]
    if aggregate.fn == "collect":
        ends = np.cumsum(np.bincount(window, minlength=windows))
        return pa.ListArray.from_arrays(pa.array(np.append(0, ends), pa.int32()), values)
    if aggregate.fn == "count_distinct":
        return pa.array(_distinct(values, window, windows))
    return _quantiles(_floats(values), window, windows, aggregate.quantile)


def apply_aggregator(
    aggregator: Aggregator[Any, Any, Any], windows: Sequence[Sequence[Any]], column: str | None, where: str
) -> list[Any]:
    """Return a user-defined aggregate of each window's rows, or of the non-null values of `column`.

    Raises:
        UserFunctionError: the aggregator raised; with its method and the number of rows, and the row for `add`.
    """
    results = []
    method = ""
    rows: Sequence[Any] = ()
    unread: Iterator[Any] = iter(())
    try:
        for rows in windows:
            unread = iter(rows)
            method = "create_accumulator"
            held = aggregator.create_accumulator()
            method = "add"
            for row in unread:
                value = row if column is None else getattr(row, column)
                if value is not None:
                    held = aggregator.add(value, held)
            method = "get_result"
            results.append(aggregator.get_result(held))
    except Exception as error:
        place = f"{_newest(rows, unread)} of a window" if method == "add" else f"a window of {len(rows):,} rows"
        raise user_error(where, error, f"{method} of {place}") from error
    return results


def _newest(rows: Sequence[Any], unread: Iterator[Any]) -> str:
    """Return the newest row that an iterator of `rows` has returned, as text for an error."""
    done = len(rows) - operator.length_hint(unread)
    return f"row {done:,} of {len(rows):,}, {value_text(rows[done - 1])},"


def _distinct(values: pa.Array, window: I64, windows: int) -> I64:
    if is_fixed(values.type):
        _, codes = np.unique(fixed_column(values).values, return_inverse=True)
    else:
        codes = values.dictionary_encode().indices.to_numpy()
    distinct_codes = int(codes.max(initial=0)) + 1
    pairs = np.unique(window * distinct_codes + codes)
    return np.bincount(pairs // distinct_codes, minlength=windows)


def _floats(values: pa.Array) -> F64:
    kind = values.type
    found: F64 = (values.cast(pa.float64(), safe=False) if not pt.is_float64(kind) else values).to_numpy(
        zero_copy_only=False
    )
    return found


def _quantiles(values: F64, window: I64, windows: int, quantile: float) -> pa.Array:
    """Interpolate between the two nearest values, as SQL's `PERCENTILE_CONT`; NaN is the greatest."""
    order = np.lexsort((values, window))
    values = np.append(values[order], 0.0)
    count = np.bincount(window, minlength=windows)
    first = np.cumsum(count) - count
    place = quantile * np.maximum(count - 1, 0)
    low = np.floor(place).astype(np.int64)
    high = np.ceil(place).astype(np.int64)
    below, above = values[first + low], values[first + high]
    part = place - low
    with np.errstate(invalid="ignore"):  # the mean of the two infinities is undefined
        found = np.where(below == above, below, below * (1 - part) + above * part)
    found = np.where(low == high, below, found)
    valid = (count > 0).astype(np.uint8)
    return fixed_to_arrow(np.where(valid == 1, found, 0.0).view(np.int64), valid, pa.float64())


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
                found = apply_aggregator(self._aggregators[aggregate.alias], rows, aggregate.column, self._where)
                made.append(self._encoder.array(self._output.field(aggregate.alias), found))
            elif aggregate.kept and aggregate.column is not None:
                made.append(row_aggregate(aggregate, data.column(aggregate.column), cell, len(cells)))
            else:
                made.append(next(simple))
        return made


class ReducedWindows:
    """Reduces the rows of a window to one, two at a time."""

    def __init__(self, function: Callable[[Any, Any], Any], output: ProcessOutput, where: str) -> None:
        """Make a sink; `function` takes the result so far and the next row, `where` begins each error."""
        self._function = function
        self._output = output
        self._where = where
        self.time_of: Callable[[TimeWindow], int] = lambda window: window.max_timestamp

    def fire(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow, elements: list[WindowElement]) -> None:
        """Reduce."""
        del key, known
        if elements:
            rows = [element.value for element in elements]
            unread = iter(rows)
            try:
                row = functools.reduce(self._function, unread)
            except Exception as error:
                shown = f"{_newest(rows, unread)} of {window_text(window)}"
                raise user_error(self._where, error, shown) from error
            _append_rows(self._output, [row], self.time_of(window))

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
        where: str,
    ) -> None:
        """Make a sink; `key_of` returns the key at an index of the batch, `where` begins each error."""
        self._where = where
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
        rows = [element.value for element in elements]
        try:
            found = self._function.process(name, self._context, rows)
            if found is not None:
                _append_rows(self._output, found, time)
        except Exception as error:
            first = f", the first row: {value_text(rows[0])}" if rows else ""
            shown = f"{window_text(window)} of key {value_text(name, 100)}, rows: {len(rows):,}{first}"
            raise user_error(self._where, error, shown) from error

    def clear(self, key: KeyWindows, window: TimeWindow, known: BufferedWindow) -> None:
        """Call the function's hook."""
        self._context.watermark = key.watermark
        self._context.bind(self._key_of(key.at), window, known.function, self.time_of(window))
        self._function.clear(self._context)

    def emit(self, keys: list[pa.Array], out: Collector) -> None:
        """Emit."""
        del keys
        self._output.emit(out)


def _append_rows(output: ProcessOutput, rows: Sequence[Any], time: int) -> None:
    before = len(output.rows)
    output.rows.extend(rows)
    if len(output.rows) > before:
        output.ends.append(len(output.rows))
        output.times.append(time)
