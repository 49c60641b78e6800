"""`ps.trigger`: when windows are computed, in place of once at their end; for one's own derive from `ps.Trigger`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import GraphError
from penstock.functions import triggers

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.functions.triggers import Trigger


def event_time() -> Trigger:
    """When the watermark has reached the window's end: what windows of event time do by themselves."""
    return triggers.EventTimeTrigger()


def processing_time() -> Trigger:
    """When the machine's clock has reached the window's end."""
    return triggers.ProcessingTimeTrigger()


def count(rows: int) -> Trigger:
    """When so many rows have come since it last fired."""
    return triggers.CountTrigger(rows)


def continuous_event_time(interval: str | float) -> Trigger:
    """At every multiple of the interval in event time, and at the window's end."""
    return triggers.ContinuousTrigger(interval, processing=False)


def continuous_processing_time(interval: str | float) -> Trigger:
    """At every multiple of the interval by the machine's clock."""
    return triggers.ContinuousTrigger(interval, processing=True)


def delta(threshold: float, of: str, measure: Callable[[Any, Any], float] | None = None) -> Trigger:
    """When a column's value is further than a threshold from that of the row that fired last.

    `measure(old, new)` says how far; without it, it is the difference, whatever its sign.
    """
    return triggers.DeltaTrigger(threshold, of, measure)


def purging(trigger: Trigger) -> Trigger:
    """When another trigger says, and the rows are then forgotten."""
    if not isinstance(trigger, triggers.Trigger):
        msg = f"trigger.purging({trigger!r}): that is no trigger"
        raise GraphError(msg, hint="for example ps.trigger.purging(ps.trigger.count(100))")
    return triggers.PurgingTrigger(trigger)


def never() -> Trigger:
    """Not at all: what a global window does by itself."""
    return triggers.NeverTrigger()
