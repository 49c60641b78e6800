"""Window assigners as values: `ps.Tumbling("10s")`, `ps.Sliding("1m", "10s")`, `ps.Cumulative("1h", "1d")`...

Applied by the window operators.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Protocol

from penstock.config.settings import parse_duration_us
from penstock.core.errors import GraphError
from penstock.eventtime.windows import validate_cumulative, validate_window

#: `"10s"`, `"500ms"`, `"1m"`..., or seconds.
Duration = str | float
Time = Literal["event", "processing"]


class Window(Protocol):
    """A window assigner."""

    @property
    def label(self) -> str:
        """The window's name in operator names and in `explain`."""

    @property
    def time(self) -> Time:
        """The time that assigns rows to windows: event time or processing time."""

    def to_config(self) -> dict[str, Any]:
        """Return the window in the form of an operator's config, in microseconds."""


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size without gaps or overlaps: every row is in one; aligned to the epoch plus `offset`.

    With `time_zone`, a name such as `"Europe/Berlin"`, they are windows of the wall clock there: days begin at midnight
    and have 23 or 25 hours when the clock changes. The same applies to `Sliding` and `Cumulative`.
    """

    size: Duration
    _: KW_ONLY
    offset: Duration = 0
    time: Time = "event"
    time_zone: str | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        _require_time(self.time, self.time_zone)
        validate_window(_us(self.size), None, _us(self.offset))

    @property
    def label(self) -> str:
        """The window's name in operator names and in `explain`."""
        return f"tumbling {self.size}{_time_label(self.time, self.time_zone)}"

    def to_config(self) -> dict[str, Any]:
        """Return the window in the form of an operator's config, in microseconds."""
        size = _us(self.size)
        config = {"kind": "tumbling", "size_us": size, "slide_us": size, "offset_us": _us(self.offset)}
        return config | _time_config(self.time, self.time_zone)


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of `size` that begin every `slide`: a row is in several; aligned to the epoch plus `offset`."""

    size: Duration
    slide: Duration
    _: KW_ONLY
    offset: Duration = 0
    time: Time = "event"
    time_zone: str | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        _require_time(self.time, self.time_zone)
        validate_window(_us(self.size), _us(self.slide), _us(self.offset))

    @property
    def label(self) -> str:
        """The window's name in operator names and in `explain`."""
        return f"sliding {self.size} every {self.slide}{_time_label(self.time, self.time_zone)}"

    def to_config(self) -> dict[str, Any]:
        """Return the window in the form of an operator's config, in microseconds."""
        offset = _us(self.offset)
        config = {"kind": "sliding", "size_us": _us(self.size), "slide_us": _us(self.slide), "offset_us": offset}
        return config | _time_config(self.time, self.time_zone)


@dataclass(frozen=True, slots=True)
class Cumulative:
    """Windows that begin every `size` and end every `step` after that: the last of them is `size` long.

    A row is in all windows that end after it, so each result includes the rows of the former ones: hourly results of
    a day so far are `Cumulative("1h", "1d")`. Aligned to the epoch plus `offset`.
    """

    step: Duration
    size: Duration
    _: KW_ONLY
    offset: Duration = 0
    time: Time = "event"
    time_zone: str | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        _require_time(self.time, self.time_zone)
        validate_cumulative(_us(self.step), _us(self.size), _us(self.offset))

    @property
    def label(self) -> str:
        """The window's name in operator names and in `explain`."""
        return f"cumulative {self.size} every {self.step}{_time_label(self.time, self.time_zone)}"

    def to_config(self) -> dict[str, Any]:
        """Return the window in the form of an operator's config, in microseconds."""
        offset = _us(self.offset)
        config = {"kind": "cumulative", "size_us": _us(self.size), "step_us": _us(self.step), "offset_us": offset}
        return config | _time_config(self.time, self.time_zone)


@dataclass(frozen=True, slots=True)
class Session:
    """Windows of rows of a key with distances of at most `gap`.

    Sessions of processing time keep their rows.
    """

    gap: Duration
    _: KW_ONLY
    time: Time = "event"

    def __post_init__(self) -> None:
        """Check the gap."""
        _require_time(self.time, None)
        validate_window(_us(self.gap), None)

    @property
    def label(self) -> str:
        """The window's name in operator names and in `explain`."""
        return f"session {self.gap}{_time_label(self.time, None)}"

    def to_config(self) -> dict[str, Any]:
        """Return the window in the form of an operator's config, in microseconds."""
        return {"kind": "session", "gap_us": _us(self.gap)} | _time_config(self.time, None)


@dataclass(frozen=True, slots=True)
class Global:
    """One window for all rows of a key; a trigger decides when it is computed: `.trigger(ps.trigger.count(100))`."""

    @property
    def label(self) -> str:
        """The window's name in operator names and in `explain`."""
        return "global"

    @property
    def time(self) -> Time:
        """Processing time: no row is late, and none needs event time."""
        return "processing"

    def to_config(self) -> dict[str, Any]:
        """Return the window in the form of an operator's config."""
        return {"kind": "global"}


def require_window(window: Any) -> Window:
    """Return the window, checked to be a supported one.

    Raises:
        GraphError: it is something else; the hint lists the windows.
    """
    if isinstance(window, (Tumbling, Sliding, Cumulative, Session, Global)):
        return window
    msg = f"{window!r} is not a window"
    ways = "ps.Tumbling(size), ps.Sliding(size, slide), ps.Cumulative(step, size), ps.Session(gap) and ps.Global()"
    raise GraphError(msg, hint=f"there are {ways}")


def require_event_time_window(window: Any, where: str) -> Window:
    """Return the window, checked to be tumbling or sliding in event time, so that its bounds are known in advance.

    Raises:
        GraphError: it is something else.
    """
    checked = require_window(window)
    if not isinstance(checked, (Tumbling, Sliding)) or checked.time != "event" or checked.time_zone:
        msg = f"{where}: a window of {checked.label} is not supported here"
        raise GraphError(msg, hint="use ps.Tumbling(size) or ps.Sliding(size, slide) in event time")
    return checked


def is_aligned(window: Window) -> bool:
    """Return whether a window's bounds are known in advance: tumbling, sliding or cumulative in event time of UTC."""
    return isinstance(window, (Tumbling, Sliding, Cumulative)) and window.time == "event" and not window.time_zone


def _require_time(time: str, time_zone: str | None) -> None:
    if time not in ("event", "processing"):
        msg = f"windows over {time} time are not supported"
        raise GraphError(msg, hint="use time='event' or time='processing'")
    if time_zone is not None:
        from penstock.operators.windows.window_assigners import require_zone

        require_zone(time_zone)
        if time != "event":
            msg = f"windows over {time} time in a time zone are not supported"
            raise GraphError(msg, hint="leave time_zone= out, or use event time")


def _time_label(time: Time, time_zone: str | None) -> str:
    return ("" if time == "event" else f", {time} time") + (f", {time_zone}" if time_zone else "")


def _time_config(time: Time, time_zone: str | None) -> dict[str, Any]:
    return ({} if time == "event" else {"time": time}) | ({"time_zone": time_zone} if time_zone else {})


def _us(duration: Duration) -> int:
    return parse_duration_us(duration, "window")
