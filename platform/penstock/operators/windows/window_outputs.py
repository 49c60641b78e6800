"""The results of windows that keep their rows: by aggregates, by reducing, or by a function of the whole window.

One of the classes is the `WindowSink` of `operators.windows.window_engine`.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, replace
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
from penstock.state.cells.pane_memory import add_rows, overflow
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
    values, window = plain_values(values, window)
    if aggregate.fn == "collect":
        ends = np.cumsum(np.bincount(window, minlength=windows))
        return pa.ListArray.from_arrays(pa.array(np.append(0, ends), pa.int32()), values)
    if aggregate.fn == "count_distinct":
        return pa.array(_distinct(values, window, windows))
    return quantiles(floats(values), window, windows, aggregate.quantile)


def plain_values(values: pa.Array, window: I64) -> tuple[pa.Array, I64]:
    """Return the values that are not null, without a dictionary, and their windows."""
    if pt.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not values.null_count:
        return values, window
    valid = values.is_valid()
    return values.filter(valid), window[valid.to_numpy(zero_copy_only=False)]


def accumulated(
    aggregator: Aggregator[Any, Any, Any], windows: Sequence[Sequence[Any]], column: str | None, where: str
) -> list[Any]:
    """Return the accumulator of each window's rows, or of the non-null values of `column`.

    Raises:
        UserFunctionError: the aggregator raised; with its method and the number of rows, and the row for `add`.
    """
    found = []
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
            found.append(held)
    except Exception as error:
        place = f"{_newest(rows, unread)} of a window" if method == "add" else f"a window of {len(rows):,} rows"
        raise user_error(where, error, f"{method} of {place}") from error
    return found


def results_of(
    aggregator: Aggregator[Any, Any, Any], accumulators: Sequence[Any], sizes: Sequence[str], where: str
) -> list[Any]:
    """Return the result of each window's accumulator; `sizes`, such as "3 rows", are for errors.

    Raises:
        UserFunctionError: the aggregator raised.
    """
    found: list[Any] = []
    try:
        found.extend(map(aggregator.get_result, accumulators))
    except Exception as error:
        raise user_error(where, error, f"get_result of a window of {sizes[len(found)]}") from error
    return found


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


def floats(values: pa.Array) -> F64:
    """Return numbers as floats."""
    kind = values.type
    found: F64 = (values.cast(pa.float64(), safe=False) if not pt.is_float64(kind) else values).to_numpy(
        zero_copy_only=False
    )
    return found


def quantiles(values: F64, window: I64, windows: int, quantile: float) -> pa.Array:
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


@dataclass(frozen=True, slots=True)
class FiredRows:
    """The windows of a batch that have fired, with their rows."""

    #: The index of each window's key in the batch, its bounds and the event time of its result.
    places: list[int]
    windows: list[TimeWindow]
    times: list[int]
    elements: list[list[WindowElement]]

    @property
    def rows(self) -> list[list[Any]]:
        """The rows of each window."""
        return [[element.value for element in found] for found in self.elements]

    def keys_of(self, keys: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the key columns of the windows, given those of the batch's keys."""
        places = pa.array(self.places)
        return [column.take(places) for column in keys]

    @property
    def window_of_row(self) -> I64:
        """The index of each row's window."""
        return np.repeat(np.arange(len(self.elements)), [len(found) for found in self.elements])


class WindowResults(Protocol):
    """Computes the output of windows from their rows."""

    def rows_of(self, fired: FiredRows, keys: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return the output, given the key columns of the batch's keys."""


class ComputedWindows:
    """Computes all windows of a batch at once."""

    def __init__(self, results: WindowResults) -> None:
        """Make a sink."""
        self._results = results
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
        places, windows, times, elements = map(list, zip(*fired, strict=True))
        out.batch(Batch(self._results.rows_of(FiredRows(places, windows, times, elements), keys)))


class RowAccumulators:
    """The accumulators of the aggregates that have any, over rows of windows."""

    def __init__(self, config: WindowRowsConfig, rows: pa.Schema, key: pa.Schema, where: str) -> None:
        """`rows` and `key` are the columns of the rows and of the key."""
        self._encoder = RowEncoder(rows, where)
        self._rows = rows
        self.plan = plan_of(config, rows, key)

    def of(self, fired: FiredRows) -> tuple[pa.RecordBatch, I64]:
        """Return the rows as a batch, and a cell per window, whose word 0 is twice the number of rows.

        Raises:
            PenstockError: an integer sum does not fit 64 bits.
        """
        elements = [element for found in fired.elements for element in found]
        columns = self._encoder.columns([element.value for element in elements])
        times = pa.array([element.timestamp for element in elements], pa.int64())
        has_time = TS_COLUMN in self._rows.names
        data = assemble(columns, without_ts(self._rows), times if has_time else None)
        spec = self.plan.spec
        self.plan.heap = ValueHeap()
        cells = np.repeat(spec.initial[np.newaxis], len(fired.windows), axis=0)
        name = add_rows(spec, (cells, cells.view(np.float64)), fired.window_of_row, self.plan.inputs(data))
        if name is not None:
            raise overflow(name)
        return data, cells


def plan_of(config: WindowRowsConfig, rows: pa.Schema, key: pa.Schema) -> AggregatePlan:
    """Return the accumulators of the aggregates that have any."""
    # a computed key is not a column of the rows
    known = pa.schema([*rows, *(field for field in key if field.name not in rows.names)])
    return AggregatePlan(replace(config, aggregates=tuple(a for a in config.aggregates if not a.kept)), known)


class AggregatedRows:
    """The aggregates of windows."""

    def __init__(
        self,
        config: WindowRowsConfig,
        schemas: tuple[pa.Schema, pa.Schema, pa.Schema],
        aggregators: dict[str, Aggregator[Any, Any, Any]],
        where: str,
    ) -> None:
        """Take the aggregates.

        `schemas` are those of the rows, the key and the output; `aggregators` are user-defined aggregates by output
        column.
        """
        rows, key, output = schemas
        self._where = where
        self._aggregates = config.aggregates
        self._aggregators = aggregators
        self._accumulators = RowAccumulators(config, rows, key, where)
        self._encoder = RowEncoder(output, where)
        self._output = output

    def rows_of(self, fired: FiredRows, keys: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return keys, bounds, aggregates and event time."""
        data, cells = self._accumulators.of(fired)
        cells[:, 0] >>= 1
        bounds = [(*window, time) for window, time in zip(fired.windows, fired.times, strict=True)]
        return result_rows(self._output, fired.keys_of(keys), bounds, self._columns(data, cells, fired))

    def _columns(self, data: pa.RecordBatch, cells: I64, fired: FiredRows) -> list[pa.Array]:
        """Return one column per aggregate."""
        simple, rows, window = iter(self._accumulators.plan.outputs(cells)), fired.rows, fired.window_of_row
        sizes = [f"{len(found):,} rows" for found in rows]
        made: list[pa.Array] = []
        for aggregate in self._aggregates:
            if aggregate.fn == "aggregator":
                own = self._aggregators[aggregate.alias]
                found = results_of(own, accumulated(own, rows, aggregate.column, self._where), sizes, self._where)
                made.append(self._encoder.array(self._output.field(aggregate.alias), found))
            elif aggregate.kept and aggregate.column is not None:
                made.append(row_aggregate(aggregate, data.column(aggregate.column), window, len(cells)))
            else:
                made.append(next(simple))
        return made


def result_rows(
    output: pa.Schema, keys: list[pa.Array], bounds: Sequence[tuple[int, int, int]], columns: list[pa.Array]
) -> pa.RecordBatch:
    """Return rows of keys, bounds, aggregates and event time; `bounds` has start, end and event time."""
    made = keys
    starts, ends, times = (pa.array(column, pa.int64()) for column in zip(*bounds, strict=True))
    if WINDOW_START in output.names:
        kind = output.field(WINDOW_START).type
        made = [*made, starts.view(kind), ends.view(kind)]
    made = [*made, *columns, *([times] if TS_COLUMN in output.names else [])]
    return pa.RecordBatch.from_arrays(made, schema=output)


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
