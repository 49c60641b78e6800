"""The windows of a row, one row at a time, and the wall clock of a time zone.

Used by the windows that keep their rows and by zoned windows; the graph calls `require_zone`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.core.errors import GraphError
from penstock.eventtime.windows import TimeWindow, cumulative_windows, sliding_windows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.kernels.compiler.compile import I64

#: Times further from 1970 than 9,000 years have the same offset in all zones.
_LIMIT = 1 << 58
#: Upper bound of a clock change.
_LARGEST_STEP = 48 * 3_600_000_000


def require_zone(name: Any) -> str:
    """Return the name if it is that of a time zone.

    Raises:
        GraphError: it is not.
    """
    try:
        TimeZone(str(name)).local(np.zeros(1, np.int64))
    except pa.ArrowException as error:
        msg = f"time_zone={name!r}: there is no such time zone"
        raise GraphError(msg, hint="use a name such as 'Europe/Berlin'; the host needs the package tzdata") from error
    return str(name)


class TimeZone:
    """The wall clock of one zone."""

    def __init__(self, name: str) -> None:
        """`name` as in the IANA database."""
        self._name = name
        self._type: Any = pa.timestamp("us", tz=name)

    def local(self, times: I64) -> I64:
        """Return the wall-clock times of these instants."""
        near = np.abs(times) < _LIMIT
        instants = times if near.all() else np.where(near, times, 0)
        shown: I64 = pc.local_timestamp(pa.array(instants).view(self._type)).view(pa.int64()).to_numpy()
        return shown if near.all() else np.where(near, shown, times)

    def instant(self, shown: int, *, last: bool) -> int:
        """Return the instant of a wall-clock time: the first or last one; skipped times map to the clock change."""
        if abs(shown) >= _LIMIT:
            return shown
        at = pa.array([shown]).view(pa.timestamp("us"))
        ambiguous = "latest" if last else "earliest"
        found = pc.assume_timezone(at, self._name, ambiguous=ambiguous, nonexistent="latest")
        return int(found.view(pa.int64())[0].as_py())

    def local_watermark(self, watermark: int) -> int:
        """Return the wall-clock time up to which all times have occurred for the last time at `watermark`."""
        if abs(watermark) >= _LIMIT:
            return watermark
        now = watermark + 1
        high = int(self.local(np.array([now], np.int64))[0])
        if self.instant(high, last=True) <= now:
            return high - 1
        low = high - _LARGEST_STEP
        while high - low > 1:  # low has passed, high has not
            middle = (low + high) // 2
            if self.instant(middle, last=True) <= watermark:
                low = middle
            else:
                high = middle
        return low


#: Number of cached bounds of a zone's windows: computing them takes as long as processing a row.
_ZONED_WINDOWS = 8192
GLOBAL_WINDOW = TimeWindow(MIN_TIMESTAMP, MAX_TIMESTAMP)


class WindowAssigner:
    """Assigns rows to the windows of a graph's window definition."""

    def __init__(self, config: dict[str, Any], allowed_lateness: int) -> None:
        """Make an assigner; `config` is the window's, in microseconds."""
        kind = config["kind"]
        #: The definition: the part of the configuration that determines bounds.
        self.shown = _shown(config)
        self.merges = kind == "session"
        self.is_global = kind == "global"
        self.processing = config.get("time") == "processing"
        self._lateness = 0 if self.processing else allowed_lateness
        zone = config.get("time_zone")
        self._zone = None if zone is None else TimeZone(zone)
        #: Returns the windows of a time that `times` has returned.
        self.windows_of: Callable[[int], Sequence[TimeWindow]] = _windows_of(kind, config)
        if self._zone is not None:
            self.windows_of = _zoned(self._zone, self.windows_of)

    def times(self, instants: I64) -> I64:
        """Return the argument of `windows_of`: for windows in a time zone, the wall-clock time there."""
        return instants if self._zone is None else self._zone.local(instants)

    def restored(self, window: TimeWindow) -> TimeWindow:
        """Return the window with these bounds, as `windows_of` does."""
        if self._zone is None:
            return window
        return _instants(self._zone, window, int(self._zone.local(np.array([window.end]))[0]))

    def cleanup_time(self, window: TimeWindow) -> int:
        """Return the time at which a window is deleted; for the global window the end of time, which is never."""
        return MAX_TIMESTAMP if self.is_global else min(window.max_timestamp + self._lateness, MAX_TIMESTAMP)

    def is_late(self, window: TimeWindow, watermark: int) -> bool:
        """Return whether a row of that window is late."""
        return not self.processing and not self.is_global and self.cleanup_time(window) <= watermark

    def is_past(self, time: int, watermark: int) -> bool:
        """Return whether a row of that instant, which is in no window, is late."""
        return not self.processing and time + self._lateness <= watermark


class ZonedWindow(TimeWindow):
    """A window of a wall clock; where the clock is set back over its end, its rows may continue after it."""

    #: The last occurrence of the window's last wall-clock time.
    last: int

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp inside."""
        return self.last


def _zoned(zone: TimeZone, shown: Callable[[int], Sequence[TimeWindow]]) -> Callable[[int], Sequence[TimeWindow]]:
    @lru_cache(_ZONED_WINDOWS)
    def instants(window: TimeWindow) -> TimeWindow:
        start, end = zone.instant(window.start, last=False), zone.instant(window.end, last=False)
        return _instants(zone, TimeWindow(start, end), window.end)

    # cumulative windows whose ends are in a skipped hour are one
    return lambda time: list(dict.fromkeys(map(instants, shown(time))))


def _instants(zone: TimeZone, window: TimeWindow, end_shown: int) -> ZonedWindow:
    made = ZonedWindow(*window)
    made.last = min(zone.instant(end_shown, last=True) - 1, zone.instant(end_shown - 1, last=True))
    return made


def _shown(config: dict[str, Any]) -> str:
    kind, numbers = config["kind"], {k: v for k, v in config.items() if k.endswith("_us") and v}
    if kind == "sliding" and numbers.get("slide_us", numbers["size_us"]) == numbers["size_us"]:
        kind = "tumbling"
    if kind == "tumbling":
        numbers.pop("slide_us", None)
    if "ends_of" in config:  # the windows hold partial results of others with these ends
        return f"partial results, {_shown(config['ends_of'])}"
    lengths = [f"{name.removesuffix('_us')} {_seconds(value)} s" for name, value in sorted(numbers.items())]
    time = ["processing time"] if config.get("time") == "processing" else []
    return ", ".join([kind, *lengths, *time, *([config["time_zone"]] if config.get("time_zone") else [])])


def _seconds(micros: int) -> str:
    return f"{micros // 1_000_000}.{micros % 1_000_000:06}".rstrip("0").rstrip(".")


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
