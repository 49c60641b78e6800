"""The time that windows count in: instants, or the wall clock of a zone.

A member of `operators.windows.window_aggregate.WindowAggregateOperator`, chosen by its configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock.operators.windows.window_assigners import TimeZone

if TYPE_CHECKING:
    from penstock.eventtime.windows import TimeWindow
    from penstock.kernels.compiler.compile import I64


class WindowTime(Protocol):
    """Converts event time to the time in which a window's size and start are given, and back; microseconds."""

    def of_rows(self, times: I64) -> I64:
        """Return the times that determine the rows' windows."""

    def of_watermark(self, watermark: int) -> int:
        """Return the time up to which windows are over at this watermark."""

    def bounds(self, window: TimeWindow) -> tuple[int, int, int]:
        """Return the instants of a window's start and end, and the event time of its output."""


class InstantTime:
    """Windows of event time itself."""

    def of_rows(self, times: I64) -> I64:
        return times

    def of_watermark(self, watermark: int) -> int:
        return watermark

    def bounds(self, window: TimeWindow) -> tuple[int, int, int]:
        return window.start, window.end, window.max_timestamp


class WallClockTime:
    """Windows of a zone's wall clock; those that its clock passes twice end after the second time."""

    def __init__(self, zone: str) -> None:
        """Take the name of the zone."""
        self._zone = TimeZone(zone)

    def of_rows(self, times: I64) -> I64:
        return self._zone.local(times)

    def of_watermark(self, watermark: int) -> int:
        return self._zone.local_watermark(watermark)

    def bounds(self, window: TimeWindow) -> tuple[int, int, int]:
        zone = self._zone
        start, end = zone.instant(window.start, last=False), zone.instant(window.end, last=False)
        # a skipped end is at the clock change; at a repeated end, no row of the window can follow
        time = min(zone.instant(window.end, last=True) - 1, zone.instant(window.max_timestamp, last=True))
        return start, end, time


def window_time(config: dict[str, Any]) -> WindowTime:
    """Return the time of the windows of an operator's configuration."""
    zone = config["window"].get("time_zone")
    return InstantTime() if zone is None else WallClockTime(zone)
