"""The watermark strategy of a source as a frozen value, and the protocol of user-written watermark generators.

Written by users; applied by `operators.sources.source_operator`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from penstock.config.settings import parse_duration_ms
from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.errors import GraphError, argument_text
from penstock.core.structs import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import polars as pl
    import pyarrow as pa


class WatermarkGenerator(Protocol):
    """Returns a watermark after every batch, and between batches.

    A watermark (microseconds since the epoch) promises that no row with its time or an earlier one follows; such rows
    are late. A watermark that goes back is ignored. After a restore the split has its old watermark, while the
    generator is a new object.
    """

    def on_batch(self, times: np.ndarray[Any, np.dtype[np.int64]], rows: pa.RecordBatch) -> int | None:
        """Take the split's next batch and return its watermark, or None to keep the present one.

        `times` are the event times (microseconds), `rows` have a column `__ts`.
        """

    def on_periodic(self, now: int) -> int | None:
        """Take the clock's time (microseconds), between polls of the source; return None to keep the watermark."""


Unit = Literal["s", "ms", "us", "ns"]
Kind = Literal["bounded", "punctuated", "generator", "ingestion", "unmarked", "none"]

#: Timestamps outside the years 1 to 9999 are bad records, mostly of a wrong unit; one of them would end event time.
EARLIEST_US = -62_135_596_800_000_000
LATEST_US = 253_402_300_799_999_999
#: Times before the year 1990 or after the year 2100 usually mean a wrong unit.
PLAUSIBLE_FROM_US = 631_152_000_000_000
PLAUSIBLE_UNTIL_US = 4_133_980_800_000_000
#: Metric by which a source subtask reports its watermark (us) to its alignment group; the end of time when idle.
ALIGNMENT_METRIC = "alignmentWatermark"
_FUTURE_LIMIT_MS = 365 * 86_400_000
_PER_UNIT_US: dict[str, int] = {"s": 1_000_000, "ms": 1_000, "us": 1}


class WatermarkStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """The event time column, and the distance of the watermark from the largest timestamp."""

    kind: Kind
    #: Column with the event time: a timestamp column, or integers counted in `unit`.
    timestamp: str = ""
    unit: Unit = "ms"
    #: A row may be this much older than the largest timestamp without being late.
    bound_ms: int = 0
    #: A split without rows for this long no longer holds back the watermark; None = never.
    idle_timeout_ms: int | None = None
    #: Emit a watermark after every row that advances it, splitting batches there: slow, for comparisons. Only with a
    #: buffer time-out of 0, as a channel otherwise sends rows before a watermark that waits in it.
    exact: bool = False
    #: Timestamps further ahead of the clock than this do not advance the watermark; None = all do.
    future_limit_ms: int | None = _FUTURE_LIMIT_MS
    #: Sources of one group wait for each other: none is more than its `max_drift_ms` ahead of the slowest.
    alignment_group: str = ""
    max_drift_ms: int = 0
    #: The argument of `punctuated` or `for_generator`; it travels as the operator's payload, not in its config.
    code: Any = None

    @classmethod
    def bounded_out_of_orderness(
        cls, bound: str | float, *, timestamp: str, unit: Unit = "ms", exact: bool = False
    ) -> WatermarkStrategy:
        """Let rows be out of order by up to `bound` (`"5s"`, or seconds); `unit` counts only for an integer column."""
        bound_ms = parse_duration_ms(bound, "bound of disorder")
        return cls(kind="bounded", timestamp=timestamp, unit=unit, bound_ms=bound_ms, exact=exact)

    @classmethod
    def monotonic(cls, *, timestamp: str, unit: Unit = "ms", exact: bool = False) -> WatermarkStrategy:
        """Expect timestamps that never go back within a split."""
        return cls(kind="bounded", timestamp=timestamp, unit=unit, exact=exact)

    @classmethod
    def punctuated(
        cls, *, timestamp: str, watermark: str | pl.Expr, unit: Unit = "ms", exact: bool = False
    ) -> WatermarkStrategy:
        """Take watermarks from rows: the column or expression `watermark`, null in rows without one.

        A watermark promises that no row with its time or an earlier one follows in the same split. It is a time, or an
        integer counted in `unit`; so `pl.when(pl.col("last")).then(pl.col("ts"))` takes the time of marked rows.
        """
        return cls(kind="punctuated", timestamp=timestamp, unit=unit, exact=exact, code=watermark)

    @classmethod
    def for_generator(
        cls, generator: Callable[[], WatermarkGenerator], *, timestamp: str, unit: Unit = "ms", exact: bool = False
    ) -> WatermarkStrategy:
        """Compute watermarks with user code: `generator()` is called for every split."""
        return cls(kind="generator", timestamp=timestamp, unit=unit, exact=exact, code=generator)

    @classmethod
    def ingestion_time(cls) -> WatermarkStrategy:
        """Set event time to the time at which the source emits a row; no row is late.

        A quiet split does not hold back the watermark. A row that is read again after a failure gets a new time.
        """
        return cls(kind="ingestion")

    @classmethod
    def no_watermarks(cls, *, timestamp: str, unit: Unit = "ms") -> WatermarkStrategy:
        """Use event time without watermarks before the end of the input: no row is late.

        For functions and count windows that use the times of rows. A window or join of event time keeps all rows until
        the end. So does one that combines this stream with others, unless this stream has an idle time-out.
        """
        return cls(kind="unmarked", timestamp=timestamp, unit=unit)

    @classmethod
    def none(cls) -> WatermarkStrategy:
        """Use no event time: rows carry no `__ts`, and no watermark is emitted before the end of the input."""
        return cls(kind="none")

    def with_idleness(self, timeout: str | float) -> WatermarkStrategy:
        """Mark a split idle that is caught up and has no row for `timeout`.

        An idle split does not hold back the watermark.
        """
        return msgspec.structs.replace(self, idle_timeout_ms=parse_duration_ms(timeout, "idle time-out"))

    def with_future_limit(self, limit: str | float | None) -> WatermarkStrategy:
        """Ignore timestamps further ahead of the clock than `limit` for the watermark (default a year; None: no limit).

        Such rows keep their time and are counted as `futureTimestamps`.
        """
        limit_ms = None if limit is None else parse_duration_ms(limit, "limit of future timestamps")
        return msgspec.structs.replace(self, future_limit_ms=limit_ms)

    def with_watermark_alignment(self, group: str, max_drift: str | float) -> WatermarkStrategy:
        """Pause the source while its watermark is more than `max_drift` ahead of the group's slowest.

        The subtasks of all sources in the group are compared about once a second. A quiet one holds up the others
        unless it has an idle time-out.
        """
        max_drift_ms = parse_duration_ms(max_drift, "drift of aligned watermarks")
        return msgspec.structs.replace(self, alignment_group=group, max_drift_ms=max_drift_ms)

    @property
    def has_event_time(self) -> bool:
        """Return whether rows get a `__ts` column."""
        return self.kind != "none"

    @property
    def bound_us(self) -> int:
        """Return the bound of disorder in microseconds."""
        return self.bound_ms * 1000

    def watermark_of(self, max_timestamp: int) -> int:
        """Return the watermark (us) of a split whose largest timestamp so far is `max_timestamp` (us)."""
        if max_timestamp == MIN_TIMESTAMP:
            return MIN_TIMESTAMP
        return max_timestamp - self.bound_us - 1

    def validate(self, columns: tuple[str, ...]) -> None:
        """Check the strategy against a source's columns.

        Raises:
            GraphError: unknown timestamp column, negative bound or time-out.
        """
        if self.alignment_group and (self.kind == "none" or self.max_drift_ms < 0):
            msg = f"watermark strategy: alignment ({self.alignment_group!r}) needs event time and a drift of 0 or more"
            raise GraphError(msg, hint="write for example monotonic(...).with_watermark_alignment('orders', '1m')")
        if self.kind in ("none", "ingestion"):
            return
        given: object = self.timestamp
        if not isinstance(given, str):
            msg = f"watermark strategy: timestamp={argument_text(given)} is not a column's name"
            way = "compute it after the source: .with_columns(at=...).assign_timestamps_and_watermarks(...)"
            raise GraphError(msg, hint=f'{way}, with timestamp="at"')
        if self.timestamp not in columns:
            msg = f"watermark strategy: the source has no column {self.timestamp!r}"
            raise GraphError(msg, hint=f"columns: {', '.join(columns)}")
        if self.future_limit_ms is not None and self.future_limit_ms < 0:
            msg = "watermark strategy: the limit of future timestamps must not be negative"
            raise GraphError(msg, hint="write for example .with_future_limit('1d'); None is no limit")
        if self.bound_ms < 0 or (self.idle_timeout_ms is not None and self.idle_timeout_ms <= 0):
            msg = "watermark strategy: the bound must not be negative and the idle time-out must be positive"
            raise GraphError(msg, hint="write for example bounded_out_of_orderness('5s', ...).with_idleness('30s')")


prepare(WatermarkStrategy)


def strategy_to_builtins(strategy: WatermarkStrategy | None) -> dict[str, Any] | None:
    """Return the JSON-able form for a source operator's config: all but the user code."""
    return None if strategy is None else msgspec.to_builtins(msgspec.structs.replace(strategy, code=None))


def strategy_from_builtins(value: dict[str, Any] | None) -> WatermarkStrategy:
    """Invert `strategy_to_builtins`; None is the strategy without event time."""
    return WatermarkStrategy.none() if value is None else msgspec.convert(value, WatermarkStrategy)


def microseconds_per(unit: Unit) -> int | None:
    """Return the number of microseconds in a `unit`; None for nanoseconds, which are smaller."""
    return _PER_UNIT_US.get(unit)
