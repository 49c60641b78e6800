"""A window's input and options: allowed lateness, late rows, a trigger, an evictor.

The assigners are only loaded if there is a window. Called by `api.streams` and the operators of windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.api.building.flow import ALL_ROWS_KEY
from penstock.config.settings import parse_duration_us
from penstock.core.errors import GraphError
from penstock.graph.validation import require_name

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.building.flow import Flow, KeyedInputStream
    from penstock.api.windows.windows import Window
    from penstock.functions.evictors import Evictor
    from penstock.functions.triggers import Trigger


class WindowOptions(msgspec.Struct, frozen=True):
    """The options of a window besides its assigner; each method sets one."""

    lateness_us: int = 0
    late_tag: str | None = None
    trigger: Trigger | None = None
    evictor: Evictor | None = None

    def with_lateness(self, lateness: str | float, window: Window) -> WindowOptions:
        """Keep closed windows for this duration.

        Raises:
            GraphError: a negative duration, or a window for which no row is late.
        """
        lateness_us = parse_duration_us(lateness, "allowed lateness")
        if lateness_us < 0:
            msg = f"allowed_lateness({lateness!r}) is negative"
            raise GraphError(msg, hint="use 0 or a duration such as '1m'")
        if lateness_us and window.time != "event":
            msg = f"allowed_lateness({lateness!r}): no row is late for a window of {window.label}"
            raise GraphError(msg, hint="leave it out, or use a window of event time")
        return msgspec.structs.replace(self, lateness_us=lateness_us)

    def with_late_tag(self, tag: str, window: Window) -> WindowOptions:
        """Emit late rows to a side output.

        Raises:
            GraphError: no name, or a window for which no row is late.
        """
        require_name(tag, "late_to: the tag")
        if window.time != "event":
            msg = f"late_to({tag!r}): no row is late for a window of {window.label}"
            raise GraphError(msg, hint="leave it out, or use a window of event time")
        return msgspec.structs.replace(self, late_tag=tag)

    def with_trigger(self, trigger: Trigger) -> WindowOptions:
        """Compute windows when a trigger fires.

        Raises:
            GraphError: it is none.
        """
        from penstock.functions.triggers import Trigger as Base

        if not isinstance(trigger, Base):
            msg = f"trigger({trigger!r}): that is no trigger"
            raise GraphError(msg, hint="use one of ps.trigger, or derive it from ps.Trigger")
        return msgspec.structs.replace(self, trigger=trigger)

    def with_evictor(self, evictor: Evictor) -> WindowOptions:
        """Drop rows from windows by an evictor.

        Raises:
            GraphError: it is no evictor.
        """
        from penstock.functions.evictors import Evictor as Base

        if not isinstance(evictor, Base):
            msg = f"evictor({evictor!r}): that is no evictor"
            raise GraphError(msg, hint="use one of ps.evictor, or derive it from ps.Evictor")
        return msgspec.structs.replace(self, evictor=evictor)


def count_window_options(size: int, slide: int | None, where: str) -> tuple[Window, WindowOptions]:
    """Return global windows with the trigger and evictor for `size` rows, computed every `slide` rows.

    Raises:
        GraphError: a window without rows.
    """
    from penstock.api.windows.windows import Global
    from penstock.functions.evictors import CountEvictor
    from penstock.functions.triggers import CountTrigger, PurgingTrigger

    given: Any = size
    if not isinstance(given, int) or given < 1:
        raise GraphError(f"{where}({size!r}) is not a number of rows", hint="use 1 or more")
    if slide is None:
        return Global(), WindowOptions(trigger=PurgingTrigger(CountTrigger(size)))
    return Global(), WindowOptions(trigger=CountTrigger(slide), evictor=CountEvictor(size, after=False))


def require_event_time(window: Any, method: str, flow: Flow) -> str:
    """Check a window for the rows of a stream, and return the start of error messages.

    Raises:
        GraphError: it is no window, or one of event time, which the rows do not have.
    """
    from penstock.api.windows.windows import require_window

    where = f"{method}({require_window(window).label})"
    if window.time == "event" and not flow.has_event_time:
        msg = f"{where}: the stream has no event time"
        way = "ps.WatermarkStrategy.bounded_out_of_orderness('5s', timestamp=...)"
        raise GraphError(msg, hint=f"give env.from_source(..., watermarks={way})")
    return where


class WindowedRows(msgspec.Struct, frozen=True):
    """The rows of a keyed stream by window, with the window's options."""

    stream: KeyedInputStream
    window: Window
    options: WindowOptions
    #: Arrow schema of the rows at the call of `window`: no hidden columns.
    visible_schema: pa.Schema
    #: The only columns sent to the operator; None: all of them.
    edge: pa.Schema | None = None

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows sent to the operator."""
        return self.stream.flow.schema if self.edge is None else self.edge

    @property
    def of_all(self) -> bool:
        """Whether the rows of all keys are in one window."""
        return self.stream.keys == (ALL_ROWS_KEY,)

    def config(self) -> dict[str, Any]:
        """Return the config entries common to the operators of all windows."""
        config: dict[str, Any] = {
            "key": list(self.stream.keys),
            "window": self.window.to_config(),
            "allowed_lateness_us": self.options.lateness_us,
        }
        if self.of_all:
            config["of_all"] = True
        if self.options.late_tag is not None:
            config["late_to"] = {"tag": self.options.late_tag, "columns": list(self.visible_schema.names)}
        return config
