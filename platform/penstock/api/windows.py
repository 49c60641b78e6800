"""Window assigners as values: `ps.Tumbling("10s")`, `ps.Sliding("1m", "10s")`; applied by the window operator."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Protocol

from penstock.config.settings import parse_duration_ms
from penstock.core.errors import GraphError
from penstock.eventtime.windows import validate_window

#: `"10s"`, `"500ms"`, `"1m"`..., or seconds.
Duration = str | float
Time = Literal["event", "processing"]


class Window(Protocol):
    """A window assigner."""

    @property
    def label(self) -> str:
        """How the window is called in names and in `explain`."""

    def to_config(self) -> dict[str, Any]:
        """Return the window as it lies in an operator's config, in microseconds."""


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, side by side: every row is in exactly one; aligned to the epoch plus `offset`."""

    size: Duration
    _: KW_ONLY
    offset: Duration = 0
    time: Time = "event"

    def __post_init__(self) -> None:
        """Check the numbers."""
        _require_event_time(self.time)
        validate_window(_us(self.size), None, _us(self.offset))

    @property
    def label(self) -> str:
        """How the window is called in names and in `explain`."""
        return f"tumbling {self.size}"

    def to_config(self) -> dict[str, Any]:
        """Return the window as it lies in an operator's config, in microseconds."""
        size = _us(self.size)
        return {"kind": "tumbling", "size_us": size, "slide_us": size, "offset_us": _us(self.offset)}


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of `size` that begin every `slide`: a row is in several; aligned to the epoch plus `offset`."""

    size: Duration
    slide: Duration
    _: KW_ONLY
    offset: Duration = 0
    time: Time = "event"

    def __post_init__(self) -> None:
        """Check the numbers."""
        _require_event_time(self.time)
        validate_window(_us(self.size), _us(self.slide), _us(self.offset))

    @property
    def label(self) -> str:
        """How the window is called in names and in `explain`."""
        return f"sliding {self.size} every {self.slide}"

    def to_config(self) -> dict[str, Any]:
        """Return the window as it lies in an operator's config, in microseconds."""
        offset = _us(self.offset)
        return {"kind": "sliding", "size_us": _us(self.size), "slide_us": _us(self.slide), "offset_us": offset}


def require_window(window: Any) -> Window:
    """Return the window if it is one that runs.

    Raises:
        GraphError: it is something else; names what there is.
    """
    if isinstance(window, (Tumbling, Sliding)):
        return window
    msg = f"{window!r} is not a window"
    raise GraphError(msg, hint="there are ps.Tumbling(size) and ps.Sliding(size, slide)")


def _require_event_time(time: str) -> None:
    if time != "event":
        msg = f"windows over {time} time are not supported"
        raise GraphError(msg, hint="windows work in event time: leave time= out and give from_source(watermarks=...)")


def _us(duration: Duration) -> int:
    return parse_duration_ms(duration, "window") * 1000
