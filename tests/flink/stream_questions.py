"""Windows of Flink's DataStream API: every firing of assigners with lateness, and late rows as a side output."""

from __future__ import annotations

import polars as pl
from tests.flink.question import Job, Question
from tests.flink.window_functions import (
    Remembering,
    applying,
    best,
    late_row,
    listed_global,
    listed_global_sorted,
    listed_sorted,
    total_row,
    totals,
    windows,
    with_late,
)

import penstock as ps


def _windows_of_windows(rows: ps.DataStream) -> ps.DataStream:
    sessions = windows(ps.Session("2s"), lateness="20s")(rows).reduce(best).uid("sessions")
    return totals(sessions.key_by("k").window(ps.Tumbling("30s")))


def _window_state(rows: ps.DataStream) -> ps.DataStream:
    found: ps.DataStream = windows(ps.Sliding("20s", "10s"), lateness="12s")(rows).process(Remembering()).uid("window")
    return found


def _counted(size: int, slide: int | None = None) -> Job:
    def job(rows: ps.DataStream) -> ps.DataStream:
        return rows.key_by("k").count_window(size, slide).apply(listed_global).uid("window")

    return job


def _compiled(window: ps.Window) -> Job:
    """Windows that need not keep their rows, and the rows that came too late for them."""

    def job(rows: ps.DataStream) -> ps.DataStream:
        windowed = rows.key_by("k").window(window).late_to("late")
        found = windowed.aggregate(n=ps.count(), total=ps.sum("score")).uid("window")
        return found.map(total_row).union(found.side_output("late").map(late_row))

    return job


def _assigned(rows: ps.DataStream) -> ps.DataStream:
    """Event time given anew behind the source, by the watermarks of only some of the rows."""
    some = rows.filter(pl.col("g").is_not_null()).with_columns(later=pl.col("ts") + pl.duration(milliseconds=500))
    carried = pl.col("wm") * 1000 + 999
    strategy = ps.WatermarkStrategy.punctuated(timestamp="later", watermark=carried, unit="us", exact=True)
    return with_late(windows(ps.Tumbling("10s")))(some.assign_timestamps_and_watermarks(strategy).uid("anew"))


_SESSION, _GLOBAL = ps.Session("2s"), ps.Global()

STREAM_WINDOWS = (
    Question("tumbling_lateness", "Windows.tumblingLateness", applying(windows(ps.Tumbling("20s"), lateness="15s"))),
    Question("sliding_lateness", "Windows.slidingLateness", applying(windows(ps.Sliding("20s", "5s"), lateness="8s"))),
    Question(
        "session_lateness",
        "Windows.sessionLateness",
        applying(windows(ps.Session("4s"), lateness="10s"), listed_sorted),
    ),
    Question(
        "cumulative_lateness",
        "Windows.cumulativeLateness",
        applying(windows(ps.Cumulative("10s", "40s"), lateness="15s")),
    ),
    Question("tumbling_late", "Windows.tumblingLate", with_late(windows(ps.Tumbling("10s"), lateness="5s"))),
    Question("session_late", "Windows.sessionLate", with_late(windows(ps.Session("3s")))),
    Question("gaps_late", "Windows.gapsLate", with_late(windows(ps.Sliding("4s", "10s")))),
    Question("cumulative_late", "Windows.cumulativeLate", with_late(windows(ps.Cumulative("10s", "30s")))),
    Question("tumbling_late_compiled", "Windows.tumblingLateTotals", _compiled(ps.Tumbling("10s"))),
    Question("session_late_compiled", "Windows.sessionLateTotals", _compiled(ps.Session("3s"))),
    Question("gaps_late_compiled", "Windows.gapsLateTotals", _compiled(ps.Sliding("4s", "10s"))),
    Question("cumulative_late_compiled", "Windows.cumulativeLateTotals", _compiled(ps.Cumulative("10s", "30s"))),
    Question("count_window", "Windows.countWindow", _counted(4)),
    Question("count_window_sliding", "Windows.countWindowSliding", _counted(5, 2)),
    Question(
        "global_at_end",
        "Windows.globalAtEnd",
        applying(windows(_GLOBAL, trigger=ps.trigger.event_time()), listed_global_sorted),
    ),
    Question("windows_of_windows", "Windows.windowsOfWindows", _windows_of_windows),
    Question("window_state", "Windows.windowState", _window_state),
    Question("assigned_anew", "Windows.assigned", _assigned),
    Question(
        "tumbling_disorder",
        "Windows.tumblingDisorder",
        applying(windows(ps.Tumbling("15s"), trigger=ps.trigger.event_time()), listed_sorted),
        stream="disorder",
    ),
    Question(
        "session_rows_disorder",
        "Windows.sessionDisorder",
        applying(windows(_SESSION), listed_sorted),
        stream="disorder",
    ),
    Question(
        "evicted_disorder",
        "Windows.evictedDisorder",
        applying(windows(ps.Sliding("20s", "5s"), evictor=ps.evictor.time("6s")), listed_sorted),
        stream="disorder",
    ),
)
