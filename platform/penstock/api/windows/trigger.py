"""`ps.trigger`: when windows are computed, instead of once at their end; custom ones derive from `ps.Trigger`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import GraphError
from penstock.functions import triggers

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.functions.triggers import Trigger


def event_time() -> Trigger:
    """Fire when the watermark has reached the window's end: the default of event-time windows."""
    return triggers.EventTimeTrigger()


def processing_time() -> Trigger:
    """Fire when the machine's clock has reached the window's end."""
    return triggers.ProcessingTimeTrigger()


def count(rows: int) -> Trigger:
    """Fire when this many rows have arrived since it last fired."""
    return triggers.CountTrigger(rows)


def continuous_event_time(interval: str | float) -> Trigger:
    """Fire at every multiple of the interval in event time, and at the window's end."""
    return triggers.ContinuousTrigger(interval, processing=False)


def continuous_processing_time(interval: str | float) -> Trigger:
    """Fire at every multiple of the interval by the machine's clock."""
    return triggers.ContinuousTrigger(interval, processing=True)


def delta(threshold: float, of: str, measure: Callable[[Any, Any], float] | None = None) -> Trigger:
    """Fire when a column's value differs by more than a threshold from that of the row that fired last.

    `measure(old, new)` returns the distance of two values; by default it is the absolute difference.
    """
    return triggers.DeltaTrigger(threshold, of, measure)


def purging(trigger: Trigger) -> Trigger:
    """Fire as another trigger does, and delete the rows of fired windows."""
    if not isinstance(trigger, triggers.Trigger):
        msg = f"trigger.purging({trigger!r}): that is no trigger"
        raise GraphError(msg, hint="for example ps.trigger.purging(ps.trigger.count(100))")
    return triggers.PurgingTrigger(trigger)


def never() -> Trigger:
    """Never fire: the default of a global window."""
    return triggers.NeverTrigger()
