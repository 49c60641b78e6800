"""How a source derives event time and watermarks, as a frozen value: `ps.WatermarkStrategy`.

Written by users, carried in the config of a source operator as builtins, applied by `penstock.operators.source`.
Watermarks are microseconds, as everywhere inside: the watermark of a split whose largest timestamp is m is `m - bound
- 1`, Flink's rule, because a row at exactly `m - bound` may still come.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.config.settings import parse_duration_ms
from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.errors import GraphError

Unit = Literal["s", "ms", "us", "ns"]
Kind = Literal["bounded", "none"]

#: Timestamps outside the years 1 to 9999 are bad records: mostly a wrong unit, and one of them would end event time
#: for good.
EARLIEST_US = -62_135_596_800_000_000
LATEST_US = 253_402_300_799_999_999
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
    def none(cls) -> WatermarkStrategy:
        """No event time: rows carry no `__ts` and no watermark is emitted before the end of the input."""
        return cls(kind="none")

    def with_idleness(self, timeout: str | float) -> WatermarkStrategy:
        """Let a split that is read to its end and brings no row for `timeout` no longer hold the watermark back."""
        return msgspec.structs.replace(self, idle_timeout_ms=parse_duration_ms(timeout, "idle time-out"))

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
        if self.kind == "none":
            return
        if self.timestamp not in columns:
            msg = f"watermark strategy: the source has no column {self.timestamp!r}"
            raise GraphError(msg, hint=f"columns: {', '.join(columns)}")
        if self.bound_ms < 0 or (self.idle_timeout_ms is not None and self.idle_timeout_ms <= 0):
            msg = "watermark strategy: the bound must not be negative and the idle time-out must be positive"
            raise GraphError(msg, hint="write for example bounded_out_of_orderness('5s', ...).with_idleness('30s')")


def strategy_to_builtins(strategy: WatermarkStrategy | None) -> dict[str, Any] | None:
    """Return the JSON-able form, as it lies in a source operator's config."""
    return None if strategy is None else msgspec.to_builtins(strategy)


def strategy_from_builtins(value: dict[str, Any] | None) -> WatermarkStrategy:
    """Inverse of `strategy_to_builtins`; None is the strategy without event time."""
    return WatermarkStrategy.none() if value is None else msgspec.convert(value, WatermarkStrategy)


def microseconds_per(unit: Unit) -> int | None:
    """Return how many microseconds one `unit` has; None for nanoseconds, of which a thousand make one."""
    return _PER_UNIT_US.get(unit)
