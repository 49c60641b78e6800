"""How a source derives event time and watermarks, as a frozen value: `ps.WatermarkStrategy`.

Written by users, carried in the config of a source operator as builtins, applied by
`penstock.operators.sources.source_operator`. Watermarks are microseconds, as everywhere inside: the watermark of a
split whose largest timestamp is m is `m - bound
- 1`, Flink's rule, because a row at exactly `m - bound` may still come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.config.settings import parse_duration_ms
from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from penstock.eventtime.generator import WatermarkGenerator

Unit = Literal["s", "ms", "us", "ns"]
Kind = Literal["bounded", "punctuated", "generator", "ingestion", "unmarked", "none"]

#: Timestamps outside the years 1 to 9999 are bad records: mostly a wrong unit, and one of them would end event time
#: for good.
EARLIEST_US = -62_135_596_800_000_000
LATEST_US = 253_402_300_799_999_999
#: Under this name a source subtask reports its watermark (us), and the end of time when idle, for its alignment group.
ALIGNMENT_METRIC = "alignmentWatermark"
_FUTURE_LIMIT_MS = 365 * 86_400_000
_PER_UNIT_US: dict[str, int] = {"s": 1_000_000, "ms": 1_000, "us": 1}


class WatermarkStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """Which column is event time, and how far behind the largest timestamp the watermark stays."""

    kind: Kind
    #: Column that holds the event time; a timestamp column, or integers counted in `unit`.
    timestamp: str = ""
    unit: Unit = "ms"
    #: How much older than the largest timestamp a row may be without being late.
    bound_ms: int = 0
    #: A split without rows for this long no longer holds the others up; None = never.
    idle_timeout_ms: int | None = None
    #: Emit a watermark behind every row that advances it, cutting batches there: for comparisons, slow. With a buffer
    #: time-out of 0 only: else a channel sends rows before the watermark that waits in it.
    exact: bool = False
    #: Timestamps further ahead of the clock than this do not move the watermark; None = all do.
    future_limit_ms: int | None = _FUTURE_LIMIT_MS
    #: Sources of one group wait for each other: none is further ahead of the last than its `max_drift_ms`.
    alignment_group: str = ""
    max_drift_ms: int = 0
    #: What was given to `punctuated` and `for_generator`: travels as the operator's payload, not in its config.
    code: Any = None

    @classmethod
    def bounded_out_of_orderness(
        cls, bound: str | float, *, timestamp: str, unit: Unit = "ms", exact: bool = False
    ) -> WatermarkStrategy:
        """Rows may be out of order by up to `bound` (`"5s"`, or seconds); `unit` counts only for an integer column."""
        bound_ms = parse_duration_ms(bound, "bound of disorder")
        return cls(kind="bounded", timestamp=timestamp, unit=unit, bound_ms=bound_ms, exact=exact)

    @classmethod
    def monotonic(cls, *, timestamp: str, unit: Unit = "ms", exact: bool = False) -> WatermarkStrategy:
        """Timestamps never go back within a split."""
        return cls(kind="bounded", timestamp=timestamp, unit=unit, exact=exact)

    @classmethod
    def punctuated(
        cls, *, timestamp: str, watermark: str | pl.Expr, unit: Unit = "ms", exact: bool = False
    ) -> WatermarkStrategy:
        """Rows themselves carry watermarks: the column or expression `watermark`, null in rows that carry none.

        A watermark says that no row with its time or an earlier one comes after it in the same split. It is a
        time, or an integer counted in `unit`; so `pl.when(pl.col("last")).then(pl.col("ts"))` takes the time of
        marked rows.
        """
        return cls(kind="punctuated", timestamp=timestamp, unit=unit, exact=exact, code=watermark)

    @classmethod
    def for_generator(
        cls, generator: Callable[[], WatermarkGenerator], *, timestamp: str, unit: Unit = "ms", exact: bool = False
    ) -> WatermarkStrategy:
        """Let code of one's own say how far event time is: `generator()` is called for every split."""
        return cls(kind="generator", timestamp=timestamp, unit=unit, exact=exact, code=generator)

    @classmethod
    def ingestion_time(cls) -> WatermarkStrategy:
        """Rows have the time at which the source hands them on; no row is late, and a quiet split holds nobody up.

        A row that is read again after a failure has another time then.
        """
        return cls(kind="ingestion")

    @classmethod
    def no_watermarks(cls, *, timestamp: str, unit: Unit = "ms") -> WatermarkStrategy:
        """Rows have event time, and no watermark comes before the end of the input: no row is late.

        For functions and count windows that go by the times of rows. A window or join of event time keeps everything
        until the end; so does one that takes other streams beside this one, unless it has an idle time-out.
        """
        return cls(kind="unmarked", timestamp=timestamp, unit=unit)

    @classmethod
    def none(cls) -> WatermarkStrategy:
        """No event time: rows carry no `__ts` and no watermark is emitted before the end of the input."""
        return cls(kind="none")

    def with_idleness(self, timeout: str | float) -> WatermarkStrategy:
        """Let a split that is read to its end and brings no row for `timeout` no longer hold the watermark back."""
        return msgspec.structs.replace(self, idle_timeout_ms=parse_duration_ms(timeout, "idle time-out"))

    def with_future_limit(self, limit: str | float | None) -> WatermarkStrategy:
        """Let no timestamp further ahead of the clock than `limit` move the watermark (default a year; None: all do).

        Such rows pass with the time they have. They are counted as `futureTimestamps`.
        """
        limit_ms = None if limit is None else parse_duration_ms(limit, "limit of future timestamps")
        return msgspec.structs.replace(self, future_limit_ms=limit_ms)

    def with_watermark_alignment(self, group: str, max_drift: str | float) -> WatermarkStrategy:
        """Let the source wait while its watermark is more than `max_drift` ahead of the group's last.

        Compared about once a second, between the subtasks of all sources that name the group. A quiet one holds the
        others up unless it has an idle time-out.
        """
        max_drift_ms = parse_duration_ms(max_drift, "drift of aligned watermarks")
        return msgspec.structs.replace(self, alignment_group=group, max_drift_ms=max_drift_ms)

    @property
    def has_event_time(self) -> bool:
        """Whether rows get a `__ts` column."""
        return self.kind != "none"

    @property
    def bound_us(self) -> int:
        """The bound of disorder in microseconds."""
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
            msg = f"watermark strategy: timestamp={given!r} is not a column's name"
            way = "compute it behind the source: .with_columns(at=...).assign_timestamps_and_watermarks(...)"
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


def strategy_to_builtins(strategy: WatermarkStrategy | None) -> dict[str, Any] | None:
    """Return the JSON-able form, as it lies in a source operator's config: all but its code."""
    return None if strategy is None else msgspec.to_builtins(msgspec.structs.replace(strategy, code=None))


def strategy_from_builtins(value: dict[str, Any] | None) -> WatermarkStrategy:
    """Inverse of `strategy_to_builtins`; None is the strategy without event time."""
    return WatermarkStrategy.none() if value is None else msgspec.convert(value, WatermarkStrategy)


def microseconds_per(unit: Unit) -> int | None:
    """Return how many microseconds one `unit` has; None for nanoseconds, of which a thousand make one."""
    return _PER_UNIT_US.get(unit)
