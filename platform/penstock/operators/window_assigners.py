"""Which windows a row is in, one row at a time: for windows that keep their rows (`operators.window_engine`).

The compiled windows have the same arithmetic by column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.eventtime.windows import TimeWindow, cumulative_windows, sliding_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GLOBAL_WINDOW = TimeWindow(MIN_TIMESTAMP, MAX_TIMESTAMP)


class WindowAssigner:
    """A window of the graph, ready to be asked."""

    def __init__(self, config: dict[str, Any], allowed_lateness: int) -> None:
        """`config` is the window's own, in microseconds."""
        kind = config["kind"]
        self.merges = kind == "session"
        self.is_global = kind == "global"
        self.processing = config.get("time") == "processing"
        self._lateness = 0 if self.processing else allowed_lateness
        self.windows_of: Callable[[int], Sequence[TimeWindow]] = _windows_of(kind, config)

    def cleanup_time(self, window: TimeWindow) -> int:
        """Return when nothing more is known of a window; of the global one never, which is the end of time."""
        return MAX_TIMESTAMP if self.is_global else min(window.max_timestamp + self._lateness, MAX_TIMESTAMP)

    def is_late(self, window: TimeWindow, watermark: int) -> bool:
        """Whether a row of that window comes too late."""
        return not self.processing and not self.is_global and self.cleanup_time(window) <= watermark


def _windows_of(kind: str, config: dict[str, Any]) -> Callable[[int], Sequence[TimeWindow]]:
    if kind == "global":
        return lambda _: (GLOBAL_WINDOW,)
    if kind == "session":
        gap = int(config["gap_us"])
        return lambda time: (TimeWindow(time, time + gap),)
    size, offset = int(config["size_us"]), int(config.get("offset_us", 0))
    if kind == "cumulative":
        step = int(config["step_us"])
        return lambda time: cumulative_windows(time, step, size, offset)
    slide = int(config.get("slide_us", size))
    return lambda time: sliding_windows(time, size, slide, offset)
