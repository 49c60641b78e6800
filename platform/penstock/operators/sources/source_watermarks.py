"""The watermark of each split after a batch: the strategies of a source, one class each.

Timestamps and watermarks too far ahead of the clock (a wrong unit, a broken device) do not advance the watermark, or
one row would make all others late; they are counted. Used by `penstock.operators.sources.source_operator`, which keeps
the watermarks by split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.errors import PenstockError
from penstock.kernels.aggregates.kept_rows import keep_rows
from penstock.operators.rows.project import deserialize_expressions
from penstock.operators.rows.user_functions import UserFunctionError, load_function, user_error
from penstock.operators.sources.event_time import TimestampColumn, largest_by_split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.core.clock import Clock
    from penstock.eventtime.generator import WatermarkGenerator
    from penstock.eventtime.strategy import WatermarkStrategy
    from penstock.operators.operator import OperatorContext
    from penstock.operators.sources.event_time import Int64s

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
            return [self._ask(split_ids[0], lambda it: it.on_batch(times, rows))]
        found = []
        for position, split_id in enumerate(split_ids):
            mask = index == position
            part, own = keep_rows(rows, mask), times[mask]
            found.append(self._ask(split_id, lambda it: it.on_batch(own, part)) if len(own) else MIN_TIMESTAMP)  # noqa: B023 - called at once
        return found

    def between(self, split_ids: Iterable[str]) -> list[tuple[str, int]]:
        now = self._clock.now_ms() * 1000
        return [(split_id, self._ask(split_id, lambda it: it.on_periodic(now))) for split_id in split_ids]

    def _ask(self, split_id: str, call: Callable[[WatermarkGenerator], int | None]) -> int:
        try:
            generator = self._generators.get(split_id)
            if generator is None:
                generator = self._generators[split_id] = self._make()
            watermark = call(generator)
        except Exception as error:
            raise user_error(f"{self._where}: watermark generator", error) from error
        if watermark is None:
            return MIN_TIMESTAMP
        if type(watermark) is not int and not isinstance(watermark, np.integer):
            msg = f"{self._where}: the watermark generator returned {watermark!r}"
            raise UserFunctionError(msg, hint="return microseconds since the epoch, or None")
        if watermark > self._limit.latest():
            self._limit.count(1)
            return MIN_TIMESTAMP
        return int(watermark)


class Unmarked:
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
        return Unmarked()
    limit = FutureLimit(strategy.future_limit_ms, context.clock, context.metrics.extra)
    if strategy.kind == "punctuated":
        return Punctuated(strategy, limit, payload, where)
    if strategy.kind == "generator":
        return Generated(limit, context.clock, payload, where)
    return BoundedDisorder(strategy, limit)
