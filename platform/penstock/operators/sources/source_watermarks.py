"""Event time and watermarks of a batch: the timestamp column, one class per strategy, and the `exact` mode.

Used by `source_operator` and `assign_watermarks`.
"""

from __future__ import annotations

from operator import methodcaller
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.elements import MIN_TIMESTAMP, Batch, Watermark
from penstock.core.errors import GraphError, PenstockError
from penstock.eventtime.strategy import (
    EARLIEST_US,
    LATEST_US,
    PLAUSIBLE_FROM_US,
    PLAUSIBLE_UNTIL_US,
    Unit,
    microseconds_per,
)
from penstock.kernels.rows.row_filter import filter_rows
from penstock.operators.rows.columns import without_ts
from penstock.operators.rows.project import deserialize_expressions
from penstock.operators.rows.row_text import batch_text
from penstock.operators.rows.user_functions import UserFunctionError, load_function, user_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.core.clock import Clock
    from penstock.eventtime.split_watermarks import SplitWatermarks
    from penstock.eventtime.strategy import WatermarkGenerator, WatermarkStrategy
    from penstock.operators.operator import Collector, OperatorContext

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

_US_PER_DAY = 86_400_000_000


class TimestampColumn:
    """Reads one column as event time."""

    def __init__(self, name: str, unit: Unit, schema: pa.Schema) -> None:
        """Resolve the column.

        Raises:
            GraphError: the column has no time type.
        """
        self.name = name
        self._type = schema.field(self.name).type
        #: Microseconds per raw unit; None = raw values are nanoseconds.
        self._scale = _scale_of(self._type, unit, name)
        if self._scale is None:
            self._low, self._high = EARLIEST_US * 1000, LATEST_US * 1000
            self._low = max(self._low, -(1 << 63))
            self._high = min(self._high, (1 << 63) - 1)
        else:
            self._low, self._high = -(-EARLIEST_US // self._scale), LATEST_US // self._scale

    def read(self, batch: pa.RecordBatch) -> tuple[Int64s, Bools | None]:
        """Return microseconds by row, and a mask of the rows without a time (None: every row has one)."""
        column = self.raw(batch)
        bad: Bools | None = None
        if column.null_count:
            bad = pc.is_null(column).to_numpy(zero_copy_only=False)
            column = pc.fill_null(column, 0)
        values: Int64s = column.to_numpy()
        if len(values) and (values.min() < self._low or values.max() > self._high):
            outside = (values < self._low) | (values > self._high)
            bad = outside if bad is None else bad | outside
            values = np.where(outside, 0, values)
        return self._microseconds(values), bad

    def raw(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the column as int64 in its own unit, nulls kept."""
        column = batch.column(self.name)
        if pa.types.is_timestamp(self._type):
            return column.view(pa.int64())
        if pa.types.is_date32(self._type):
            return column.view(pa.int32()).cast(pa.int64())
        return column if column.type == pa.int64() else column.cast(pa.int64())

    def unit_hint(self, value: int | None) -> str:
        """Return what to do about a value outside the years: set the unit in which it would be a time of today."""
        if value is None or not pa.types.is_integer(self._type):
            return ""
        for unit in get_args(Unit):
            scale = microseconds_per(unit)
            if PLAUSIBLE_FROM_US <= (value // 1000 if scale is None else value * scale) < PLAUSIBLE_UNTIL_US:
                return f"its numbers count {unit}: set unit={unit!r} on the watermark strategy, or "
        return "check the strategy's unit, or "

    def _microseconds(self, values: Int64s) -> Int64s:
        if self._scale is None:
            return values // 1000
        return values if self._scale == 1 else values * self._scale


def _scale_of(arrow_type: pa.DataType, unit: Unit, name: str) -> int | None:
    if pa.types.is_timestamp(arrow_type):
        return microseconds_per(arrow_type.unit)
    if pa.types.is_date32(arrow_type):
        return _US_PER_DAY
    if pa.types.is_integer(arrow_type) and arrow_type != pa.uint64():
        return microseconds_per(unit)
    msg = f"watermark strategy: column {name!r} is {arrow_type}, which is no event time"
    raise GraphError(msg, hint="use a datetime or date field, or an integer field with unit='ms'")


def largest_by_split(times: Int64s, split_index: np.ndarray[Any, Any] | None, splits: int) -> Int64s:
    """Return the largest time of each of `splits` splits; the smallest integer for a split without rows."""
    largest: Int64s = np.full(splits, np.iinfo(np.int64).min, dtype=np.int64)
    if split_index is None:
        largest[0] = times.max()
    else:
        np.maximum.at(largest, split_index, times)
    return largest


#: Splits of a batch, and for each row the index of its split (None: all from the first).
Origin = tuple[tuple[str, ...], Any]
_COLUMN = "watermark"


class SourceWatermarks(Protocol):
    """A strategy's watermarks for the splits of a source."""

    def after(self, rows: pa.RecordBatch, times: Int64s, origin: Origin) -> list[int]:
        """Return the watermark (us) of each split of `origin` after these rows; `MIN_TIMESTAMP`: no change."""

    def between(self, split_ids: Iterable[str]) -> list[tuple[str, int]]:
        """Return the watermarks (us) of splits that advance with time alone."""


class FutureLimit:
    """Finds times too far ahead of the clock, and counts them."""

    def __init__(self, limit_ms: int | None, clock: Clock, counts: dict[str, float]) -> None:
        self._limit_ms = limit_ms
        self._clock = clock
        self._counts = counts

    def latest(self) -> int:
        """Return the latest accepted time (us) at present."""
        if self._limit_ms is None:
            return np.iinfo(np.int64).max
        return (self._clock.now_ms() + self._limit_ms) * 1000

    def count(self, times: int) -> None:
        """Count rejected times."""
        self._counts["futureTimestamps"] = self._counts.get("futureTimestamps", 0.0) + times


class BoundedDisorder:
    """The watermark of a split is its largest timestamp less the bound."""

    def __init__(self, strategy: WatermarkStrategy, limit: FutureLimit) -> None:
        self._strategy = strategy
        self._limit = limit

    def after(self, rows: pa.RecordBatch, times: Int64s, origin: Origin) -> list[int]:
        del rows
        split_ids, index = origin
        largest = largest_by_split(times, index, len(split_ids))
        latest = self._limit.latest()
        if largest.max() > latest:
            beyond = times > latest
            self._limit.count(int(beyond.sum()))
            largest = largest_by_split(np.where(beyond, MIN_TIMESTAMP, times), index, len(split_ids))
        return [self._strategy.watermark_of(time) for time in largest.tolist()]

    def between(self, split_ids: Iterable[str]) -> list[tuple[str, int]]:
        del split_ids
        return []


class Punctuated:
    """The watermark of a split is the largest one that its rows carried."""

    def __init__(self, strategy: WatermarkStrategy, limit: FutureLimit, payload: bytes, where: str) -> None:
        self._strategy = strategy
        self._limit = limit
        (expression,) = deserialize_expressions(payload)
        self._expression = expression.alias(_COLUMN)
        self._names = expression.meta.root_names()
        self._where = where

    def after(self, rows: pa.RecordBatch, times: Int64s, origin: Origin) -> list[int]:
        del times
        split_ids, index = origin
        marks = self._marks(rows)
        latest = self._limit.latest()
        beyond = marks > latest
        if beyond.any():
            self._limit.count(int(beyond.sum()))
            marks = np.where(beyond, MIN_TIMESTAMP, marks)
        return [int(mark) for mark in largest_by_split(marks, index, len(split_ids))]

    def between(self, split_ids: Iterable[str]) -> list[tuple[str, int]]:
        del split_ids
        return []

    def _marks(self, rows: pa.RecordBatch) -> Int64s:
        """Return the watermark of each row (us), `MIN_TIMESTAMP` for rows without one."""
        frame: Any = pl.from_arrow(rows.select(self._names))
        batch = pa.record_batch([frame.select(self._expression).to_series().to_arrow()], names=[_COLUMN])
        marks, without = TimestampColumn(_COLUMN, self._strategy.unit, batch.schema).read(batch)
        if without is None:
            return marks
        if batch.column(0).null_count != without.sum():
            msg = f"{self._where}: a watermark is outside the years 1 to 9999"
            raise PenstockError(msg, hint="check the expression and the strategy's unit")
        return np.where(without, MIN_TIMESTAMP, marks)


class Generated:
    """The watermark of a split is its generator's."""

    def __init__(self, limit: FutureLimit, clock: Clock, payload: bytes, where: str) -> None:
        self._limit = limit
        self._clock = clock
        self._where = where
        self._make: Callable[[], WatermarkGenerator] = load_function(payload, f"{where}: watermark generator")
        self._generators: dict[str, WatermarkGenerator] = {}

    def after(self, rows: pa.RecordBatch, times: Int64s, origin: Origin) -> list[int]:
        split_ids, index = origin
        if index is None:
            return [self._call_generator(split_ids[0], lambda it: it.on_batch(times, rows), rows)]
        found = []
        for position, split_id in enumerate(split_ids):
            mask = index == position
            part, own = filter_rows(rows, mask), times[mask]
            on_batch = methodcaller("on_batch", own, part)
            found.append(self._call_generator(split_id, on_batch, part) if len(own) else MIN_TIMESTAMP)
        return found

    def between(self, split_ids: Iterable[str]) -> list[tuple[str, int]]:
        now = self._clock.now_ms() * 1000
        return [(split_id, self._call_generator(split_id, lambda it: it.on_periodic(now))) for split_id in split_ids]

    def _call_generator(
        self, split_id: str, call: Callable[[WatermarkGenerator], int | None], rows: pa.RecordBatch | None = None
    ) -> int:
        try:
            generator = self._generators.get(split_id)
            if generator is None:
                generator = self._generators[split_id] = self._make()
            watermark = call(generator)
        except Exception as error:
            shown = "" if rows is None else batch_text(rows, without_ts(rows.schema).names)
            raise user_error(f"{self._where}: watermark generator", error, shown) from error
        if watermark is None:
            return MIN_TIMESTAMP
        if type(watermark) is not int and not isinstance(watermark, np.integer):
            msg = f"{self._where}: the watermark generator returned {watermark!r}"
            raise UserFunctionError(msg, hint="return microseconds since the epoch, or None")
        if watermark > self._limit.latest():
            self._limit.count(1)
            return MIN_TIMESTAMP
        return int(watermark)


class NoWatermarks:
    """Splits never have a watermark."""

    def after(self, rows: pa.RecordBatch, times: Int64s, origin: Origin) -> list[int]:
        del rows, times
        return [MIN_TIMESTAMP] * len(origin[0])

    def between(self, split_ids: Iterable[str]) -> list[tuple[str, int]]:
        del split_ids
        return []


class IngestionTime:
    """The watermark of each split is the clock, and never decreases."""

    def __init__(self, clock: Clock, floor: int) -> None:
        self._clock = clock
        self._last = floor + 1 if floor > MIN_TIMESTAMP else MIN_TIMESTAMP

    def stamp(self, rows: int) -> Int64s:
        """Return the time of this number of rows that are emitted now."""
        return np.full(rows, self._now(), dtype=np.int64)

    def after(self, rows: pa.RecordBatch, times: Int64s, origin: Origin) -> list[int]:
        del rows, times
        return [self._last - 1] * len(origin[0])

    def between(self, split_ids: Iterable[str]) -> list[tuple[str, int]]:
        watermark = self._now() - 1
        return [(split_id, watermark) for split_id in split_ids]

    def _now(self) -> int:
        self._last = max(self._last, self._clock.now_ms() * 1000)
        return self._last


def source_watermarks(
    strategy: WatermarkStrategy, payload: bytes, context: OperatorContext, where: str, floor: int
) -> SourceWatermarks:
    """Return the watermark source of a strategy with event time; `floor`: the watermark emitted before a restore."""
    if strategy.kind == "ingestion":
        return IngestionTime(context.clock, floor)
    if strategy.kind == "unmarked":
        return NoWatermarks()
    limit = FutureLimit(strategy.future_limit_ms, context.clock, context.metrics.extra)
    if strategy.kind == "punctuated":
        return Punctuated(strategy, limit, payload, where)
    if strategy.kind == "generator":
        return Generated(limit, context.clock, payload, where)
    return BoundedDisorder(strategy, limit)


def advance(watermarks: SplitWatermarks, origin: Origin, marks: list[int]) -> None:
    """Apply a strategy's watermarks to the splits of a batch; `MIN_TIMESTAMP` changes nothing."""
    for split_id, mark in zip(origin[0], marks, strict=True):
        if mark != MIN_TIMESTAMP:
            watermarks.advance(split_id, mark)


def emit_exact(
    rows: tuple[pa.RecordBatch, Int64s],
    origin: Origin,
    progress: SourceWatermarks,
    watermarks: SplitWatermarks,
    out: Collector,
) -> None:
    """Emit rows (with their times) and, between them, the watermarks that result; one Python step per row."""
    data, times = rows
    split_ids, index = origin
    start = 0
    for row in range(data.num_rows):
        own = ((split_ids[0 if index is None else int(index[row])],), None)
        advance(watermarks, own, progress.after(data.slice(row, 1), times[row : row + 1], own))
        watermark = watermarks.take_advance()
        if watermark is not None:
            out.batch(Batch(data.slice(start, row + 1 - start)))
            out.watermark(Watermark(watermark))
            start = row + 1
    if start < data.num_rows:
        out.batch(Batch(data.slice(start)))
