"""Triggers and evictors: every firing of a window, with the rows it then held."""

from __future__ import annotations

from typing import Any

from tests.flink.question import Job, Question
from tests.flink.window_functions import Row, applying, best, listed_global, listed_sorted, totals, windows

import penstock as ps

_FAR = 400_000_000_000.0
_count, _event = ps.trigger.count, ps.trigger.event_time
_continuous, _purging = ps.trigger.continuous_event_time, ps.trigger.purging
_TUMBLING, _SLIDING, _SESSION = ps.Tumbling("20s"), ps.Sliding("30s", "10s"), ps.Session("4s")


class _BySide(ps.Trigger):
    """Fires and forgets at rows of the right side, and whenever a timer of the window is due, its last one too."""

    event_time = True

    def on_element(self, row: Row, timestamp: int, window: Any, ctx: Any) -> ps.TriggerResult:
        if row.side == "R":
            return ps.TriggerResult.FIRE_AND_PURGE
        ctx.event(timestamp + 2_000_000)
        later = timestamp - timestamp % 5_000_000 + 5_000_000
        if row.id % 3 == 0:
            ctx.delete(later)
        else:
            ctx.event(later)
        return ps.TriggerResult.CONTINUE

    def on_event_time(self, timestamp: int, window: Any, ctx: Any) -> ps.TriggerResult:
        return ps.TriggerResult.FIRE


def _continuous_totals(rows: ps.DataStream) -> ps.DataStream:
    return totals(windows(ps.Tumbling("30s"), trigger=_continuous("10s"))(rows))


def _count_reduce(rows: ps.DataStream) -> ps.DataStream:
    reduced = windows(ps.Tumbling("30s"), trigger=_purging(_count(2)))(rows).reduce(best).uid("best")
    found: ps.DataStream = reduced.select("k", "id", "score")
    return found


def _delta() -> ps.Trigger:
    return ps.trigger.delta(_FAR, of="score")


def _session(lateness: str, trigger: Any, gap: str = "4s") -> Job:
    return applying(windows(ps.Session(gap), lateness=lateness, trigger=trigger), listed_sorted)


TRIGGERS = (
    Question("trigger_count", "Triggers.count", applying(windows(_TUMBLING, lateness="5s", trigger=_count(3)))),
    Question(
        "trigger_purging_count",
        "Triggers.purgingCount",
        applying(windows(_SLIDING, lateness="8s", trigger=_purging(_count(2)))),
    ),
    Question(
        "trigger_purging_event_time",
        "Triggers.purgingEventTime",
        applying(windows(_TUMBLING, lateness="15s", trigger=_purging(_event()))),
    ),
    Question("trigger_count_session", "Triggers.countSession", _session("6s", _count(2))),
    Question(
        "trigger_purging_count_session", "Triggers.purgingCountSession", _session("6s", _purging(_count(3)), "5s")
    ),
    Question("trigger_purging_session", "Triggers.purgingSession", _session("12s", _purging(_event()))),
    Question(
        "trigger_continuous",
        "Triggers.continuous",
        applying(windows(ps.Tumbling("30s"), lateness="10s", trigger=_continuous("7s"))),
    ),
    Question(
        "trigger_purging_continuous",
        "Triggers.purgingContinuous",
        applying(windows(ps.Sliding("24s", "12s"), trigger=_purging(_continuous("5s")))),
    ),
    Question("trigger_continuous_session", "Triggers.continuousSession", _session("5s", _continuous("3s"), "5s")),
    Question("trigger_continuous_totals", "Triggers.continuousTotals", _continuous_totals),
    Question("trigger_count_reduce", "Triggers.countReduce", _count_reduce),
    Question("trigger_delta", "Triggers.delta", applying(windows(ps.Global(), trigger=_delta()), listed_global)),
    Question(
        "trigger_purging_delta",
        "Triggers.purgingDelta",
        applying(windows(ps.Tumbling("1m"), trigger=_purging(_delta()))),
    ),
    Question("trigger_own", "Triggers.own", applying(windows(_TUMBLING, lateness="10s", trigger=_BySide()))),
    Question(
        "evict_count",
        "Triggers.evictCount",
        applying(windows(_TUMBLING, lateness="15s", evictor=ps.evictor.count(3))),
    ),
    Question(
        "evict_count_after",
        "Triggers.evictCountAfter",
        applying(windows(ps.Tumbling("30s"), trigger=_count(2), evictor=ps.evictor.count(3, after=True))),
    ),
    Question(
        "evict_time",
        "Triggers.evictTime",
        applying(windows(ps.Sliding("20s", "5s"), lateness="10s", evictor=ps.evictor.time("4s"))),
    ),
    Question(
        "evict_time_after",
        "Triggers.evictTimeAfter",
        applying(windows(ps.Global(), trigger=_count(3), evictor=ps.evictor.time("10s", after=True)), listed_global),
    ),
    Question(
        "evict_delta",
        "Triggers.evictDelta",
        applying(windows(ps.Tumbling("30s"), trigger=_count(2), evictor=ps.evictor.delta(_FAR, of="score"))),
    ),
    Question(
        "evict_delta_after",
        "Triggers.evictDeltaAfter",
        applying(
            windows(ps.Global(), trigger=_count(2), evictor=ps.evictor.delta(_FAR, of="score", after=True)),
            listed_global,
        ),
    ),
    Question(
        "evict_session",
        "Triggers.evictSession",
        applying(windows(_SESSION, lateness="8s", evictor=ps.evictor.time("3s", after=True)), listed_sorted),
    ),
)
