"""Triggers: when a window fires, and whether its rows are then deleted; those of Flink, and a base class.

Made by `ps.trigger.count(100)` and the like; run by `operators.windows.window_engine` in a worker. Times are
microseconds since the epoch. A trigger object keeps no state: the trigger's state of a window is in `ctx.state`, which
is saved with the window.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol

from penstock.config.settings import parse_duration_us
from penstock.core.elements import MAX_TIMESTAMP
from penstock.core.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.eventtime.windows import TimeWindow


class TriggerResult(enum.Flag):
    """The decision of a trigger about a window."""

    CONTINUE = 0
    FIRE = 1
    PURGE = 2
    FIRE_AND_PURGE = 3


class TriggerContext(Protocol):
    """The context of a trigger: the clocks, and the window's timers and trigger state."""

    #: The trigger's state of the window: numbers, strings, lists and dicts of these, by name.
    state: dict[str, Any]

    @property
    def watermark(self) -> int:
        """The current watermark in microseconds since the epoch."""

    @property
    def processing_time(self) -> int:
        """The machine's clock in microseconds since the epoch."""

    def event(self, timestamp: int) -> None:
        """Call `on_event_time` when the watermark has reached the time."""

    def processing(self, timestamp: int) -> None:
        """Call `on_processing_time` when the machine's clock has reached the time."""

    def delete(self, timestamp: int, *, processing: bool = False) -> None:
        """Delete a timer."""


class Trigger:
    """Base class of custom triggers; every hook returns a decision about the window."""

    #: Whether windows may be merged (sessions); `on_merge` then merges their trigger state.
    can_merge = False
    #: Whether it needs rows with event time.
    event_time = False

    def on_element(self, row: Any, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Handle a new row; `timestamp` is its event time, or the machine's clock if rows have none."""
        raise NotImplementedError

    def on_event_time(self, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Handle an event-time timer that is due."""
        del timestamp, window, ctx
        return TriggerResult.CONTINUE

    def on_processing_time(self, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Handle a processing-time timer that is due."""
        del timestamp, window, ctx
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, merged: list[dict[str, Any]]) -> None:
        """Merge the trigger state of the windows that this one was merged from; their timers were deleted."""
        raise NotImplementedError


class EventTimeTrigger(Trigger):
    """Fires when the watermark has reached the window's end, and for every late row after it."""

    can_merge = True
    event_time = True

    def on_element(self, row: Any, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Fire at once if the window has ended."""
        del row, timestamp
        if window.max_timestamp <= ctx.watermark:
            return TriggerResult.FIRE
        ctx.event(window.max_timestamp)
        return TriggerResult.CONTINUE

    def on_event_time(self, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Fire at the window's end."""
        del ctx
        return TriggerResult.FIRE if timestamp == window.max_timestamp else TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, merged: list[dict[str, Any]]) -> None:
        """Wait for the new end."""
        del merged
        if window.max_timestamp > ctx.watermark:
            ctx.event(window.max_timestamp)


class ProcessingTimeTrigger(Trigger):
    """Fires when the machine's clock has reached the window's end."""

    can_merge = True

    def on_element(self, row: Any, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Wait for the window's end."""
        del row, timestamp
        ctx.processing(window.max_timestamp)
        return TriggerResult.CONTINUE

    def on_processing_time(self, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Fire."""
        del timestamp, window, ctx
        return TriggerResult.FIRE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, merged: list[dict[str, Any]]) -> None:
        """Wait for the new end."""
        del merged
        ctx.processing(window.max_timestamp)


class NeverTrigger(Trigger):
    """Never fires: the default trigger of a global window."""

    can_merge = True

    def on_element(self, row: Any, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Do nothing."""
        del row, timestamp, window, ctx
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, merged: list[dict[str, Any]]) -> None:
        """Do nothing."""


class CountTrigger(Trigger):
    """Fires when this many rows have arrived since it last fired."""

    can_merge = True

    def __init__(self, rows: int) -> None:
        """Make a trigger; `rows` is at least 1."""
        if rows < 1:
            msg = f"trigger.count({rows!r}) would never fire"
            raise GraphError(msg, hint="use 1 or more")
        self._rows = rows

    def on_element(self, row: Any, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Count the row; fire at the limit."""
        del row, timestamp, window
        count = ctx.state.pop("count", 0) + 1
        if count >= self._rows:
            return TriggerResult.FIRE
        ctx.state["count"] = count
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, merged: list[dict[str, Any]]) -> None:
        """Add the counts up."""
        del window
        count = sum(state.get("count", 0) for state in merged)
        if count:
            ctx.state["count"] = count


class ContinuousTrigger(Trigger):
    """Fires at every multiple of an interval while the window has rows, and at its end; by one of the two clocks."""

    can_merge = True

    def __init__(self, interval: str | float, *, processing: bool) -> None:
        """Make a trigger; `interval` is a duration such as `"10s"`."""
        self._interval = parse_duration_us(interval, "trigger interval")
        self._processing = processing
        self.event_time = not processing
        if self._interval <= 0:
            msg = f"a continuous trigger every {interval!r} is not possible"
            raise GraphError(msg, hint="use a duration such as '10s'")

    def on_element(self, row: Any, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Start to wait with the first row."""
        del row
        if not self._processing:
            if window.max_timestamp <= ctx.watermark:
                return TriggerResult.FIRE
            ctx.event(window.max_timestamp)
        if "next" not in ctx.state:
            now = ctx.processing_time if self._processing else timestamp
            self._wait(now - now % self._interval + self._interval, window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Fire and wait for the next multiple."""
        if self._processing:
            return TriggerResult.CONTINUE
        if timestamp == window.max_timestamp:
            return TriggerResult.FIRE
        return self._tick(timestamp, window, ctx)

    def on_processing_time(self, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Fire and wait for the next multiple."""
        return self._tick(timestamp, window, ctx) if self._processing else TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, merged: list[dict[str, Any]]) -> None:
        """Continue with the earliest of the times that the merged windows waited for."""
        if not self._processing and window.max_timestamp > ctx.watermark:
            ctx.event(window.max_timestamp)
        waiting = [state["next"] for state in merged if "next" in state]
        if waiting:
            self._wait(min(waiting), window, ctx)

    def _tick(self, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if ctx.state.get("next") != timestamp:
            return TriggerResult.CONTINUE
        del ctx.state["next"]
        for_ever = window.end == MAX_TIMESTAMP == ctx.watermark  # all input has ended, but the window has no end
        if timestamp < window.max_timestamp and not for_ever:
            self._wait(timestamp + self._interval, window, ctx)
        return TriggerResult.FIRE

    def _wait(self, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> None:
        timestamp = min(timestamp, window.max_timestamp)
        ctx.state["next"] = timestamp
        (ctx.processing if self._processing else ctx.event)(timestamp)


class PurgingTrigger(Trigger):
    """Fires as another trigger does, and deletes the rows of fired windows."""

    def __init__(self, trigger: Trigger) -> None:
        """Make a trigger that fires as `trigger` does."""
        self._trigger = trigger
        self.can_merge, self.event_time = trigger.can_merge, trigger.event_time

    def on_element(self, row: Any, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Return the other trigger's decision; purge if it fires."""
        return _purged(self._trigger.on_element(row, timestamp, window, ctx))

    def on_event_time(self, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Return the other trigger's decision; purge if it fires."""
        return _purged(self._trigger.on_event_time(timestamp, window, ctx))

    def on_processing_time(self, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Return the other trigger's decision; purge if it fires."""
        return _purged(self._trigger.on_processing_time(timestamp, window, ctx))

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, merged: list[dict[str, Any]]) -> None:
        """Let the other trigger merge."""
        self._trigger.on_merge(window, ctx, merged)


class DeltaTrigger(Trigger):
    """Fires if a value differs by more than a threshold from that of the row that fired last (or the first row)."""

    def __init__(self, threshold: float, of: str, measure: Callable[[Any, Any], float] | None = None) -> None:
        """Make a trigger.

        `of` names the column. `measure(old, new)` returns the distance of two values; by default it is the absolute
        difference.
        """
        self._threshold, self._of = threshold, of
        self._measure = measure or _distance

    def on_element(self, row: Any, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Compare with the row that fired last."""
        del timestamp, window
        value = row[self._of] if isinstance(row, dict) else getattr(row, self._of)
        if "last" in ctx.state and self._measure(ctx.state["last"], value) > self._threshold:
            ctx.state["last"] = value
            return TriggerResult.FIRE
        ctx.state.setdefault("last", value)
        return TriggerResult.CONTINUE


def _purged(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if TriggerResult.FIRE in result else result


def _distance(old: Any, new: Any) -> float:
    return abs(float(new) - float(old))
