"""Time as an injected component; the only module that reads the system's clocks.

Every driver receives a `Clock`; deciders receive plain `now` values. Tests and the simulator use `ManualClock`.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time, monotonic time and CPU time, all in milliseconds."""

    def now_ms(self) -> int:
        """Return the wall-clock milliseconds since the epoch, UTC; may step."""

    def monotonic_ms(self) -> float:
        """Return the milliseconds of a clock that never steps back; only differences mean anything."""

    def cpu_ms(self) -> float:
        """Return the CPU milliseconds of the calling thread; a system call, so not for every row."""

    def sleep_ms(self, duration_ms: float) -> None:
        """Block the calling thread; the manual clock advances itself instead."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Return the wall-clock milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Return the milliseconds of the monotonic clock."""
        return time.monotonic_ns() / 1e6

    def cpu_ms(self) -> float:
        """Return the CPU milliseconds of the calling thread."""
        return time.thread_time_ns() / 1e6

    def sleep_ms(self, duration_ms: float) -> None:
        """Block the calling thread for `duration_ms`."""
        time.sleep(duration_ms / 1000)


class ManualClock:
    """A clock that moves only by `advance` and `sleep_ms`; wall and monotonic time advance together."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        """Start at `start_ms` of wall time and zero of monotonic time."""
        self._start_ms = start_ms
        self._elapsed_ms = 0.0

    def now_ms(self) -> int:
        """Return the wall-clock milliseconds."""
        return self._start_ms + int(self._elapsed_ms)

    def monotonic_ms(self) -> float:
        """Return the milliseconds since this clock was made."""
        return self._elapsed_ms

    def cpu_ms(self) -> float:
        """Return the elapsed time: all of it counts as CPU time."""
        return self._elapsed_ms

    def sleep_ms(self, duration_ms: float) -> None:
        """Advance instead of blocking."""
        self.advance(duration_ms)

    def advance(self, duration_ms: float) -> None:
        """Move time forward by `duration_ms` (never backwards)."""
        if duration_ms < 0:
            msg = f"time cannot go back: advance({duration_ms})"
            raise ValueError(msg)
        self._elapsed_ms += duration_ms


def utc_text(timestamp_ms: int) -> str:
    """Return a time in milliseconds since the epoch as a person reads it in UTC: `2026-11-25 10:00:00`."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=timestamp_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def duration_text(duration_ms: int) -> str:
    """Return a duration in milliseconds with one unit: `12.0 s`, `3.5 min`, `4.0 h`, `3.0 days`."""
    seconds = duration_ms / 1000
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 3 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"
