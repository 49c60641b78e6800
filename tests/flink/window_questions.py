"""Windows: every assigner, the aggregates, late rows, allowed lateness, time zones, the best of a window."""

from __future__ import annotations

import polars as pl
from tests.flink.question import Job, Question

import penstock as ps

_BY_WINDOW = "window_start, window_end"


def _counted(window: ps.Window, *keys: str) -> Job:
    def job(rows: ps.DataStream) -> ps.DataStream:
        amounts = {"n": ps.count(), "known": ps.count("v"), "total": ps.sum("v")}
        return rows.key_by(*keys).window(window).aggregate(**amounts).uid("window")

    return job


def _counting(function: str, keys: str) -> str:
    return (
        f"SELECT {keys}, {_BY_WINDOW}, COUNT(*), COUNT(v), SUM(v) FROM TABLE({function}) GROUP BY {keys}, {_BY_WINDOW}"
    )


def _all_aggregates(rows: ps.DataStream) -> ps.DataStream:
    wanted = (
        *(ps.count(), ps.count("v"), ps.sum("v"), ps.min("v"), ps.max("v"), ps.mean("v"), ps.std("v"), ps.var("v")),
        *(ps.count("w"), ps.sum("w"), ps.min("w"), ps.max("w"), ps.mean("w"), ps.std("w")),
        ps.sum("v").where(pl.col("v") > 0).alias("gains"),
    )
    return rows.key_by("k", "g").window(ps.Tumbling("1m")).aggregate(*wanted).uid("window")


_ALL_AGGREGATES = (
    "SELECT k, g, window_start, window_end, COUNT(*), COUNT(v), SUM(v), MIN(v), MAX(v), AVG(CAST(v AS DOUBLE)), "
    "STDDEV_SAMP(CAST(v AS DOUBLE)), VAR_SAMP(CAST(v AS DOUBLE)), COUNT(w), SUM(w), MIN(w), MAX(w), AVG(w), "
    "STDDEV_SAMP(w), SUM(v) FILTER (WHERE v > 0) "
    f"FROM TABLE(TUMBLE(TABLE ev, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) GROUP BY k, g, {_BY_WINDOW}"
)


def _wall_clock(rows: ps.DataStream) -> ps.DataStream:
    """Windows of a time zone, with their bounds as the clocks there show them: so Flink gives them."""
    counted = _counted(ps.Tumbling("6h", time_zone="Europe/Berlin"), "g")(rows)
    start, end = (
        pl.col(name).dt.convert_time_zone("Europe/Berlin").dt.replace_time_zone("UTC")
        for name in ("window_start", "window_end")
    )
    return counted.with_columns(window_start=start, window_end=end)


def _lateness(rows: ps.DataStream) -> ps.DataStream:
    window = rows.key_by("k").window(ps.Tumbling("20s")).allowed_lateness("15s")
    return window.aggregate(n=ps.count(), total=ps.sum("v")).uid("window")


def _best_of_a_window(rows: ps.DataStream) -> ps.DataStream:
    scores = rows.key_by("k").window(ps.Tumbling("30s")).aggregate(n=ps.count(), total=ps.sum("score")).uid("scores")
    return scores.window_all(ps.Tumbling("30s")).top(2, by="total").uid("top")


def _hot(rows: ps.DataStream) -> ps.DataStream:
    counts = rows.key_by("k").window(ps.Sliding("20s", "5s")).aggregate(n=ps.count()).uid("counts")
    return counts.window_all(ps.Tumbling("5s")).max_by("n").uid("hot")


_HOP_COUNTS = (
    f"SELECT k, {_BY_WINDOW}, COUNT(*) AS n FROM TABLE(HOP(TABLE ev, DESCRIPTOR(ts), INTERVAL '5' SECOND, "
    f"INTERVAL '20' SECOND)) GROUP BY k, {_BY_WINDOW}"
)

WINDOWS = (
    Question(
        "tumble",
        _counting("TUMBLE(TABLE ev, DESCRIPTOR(ts), INTERVAL '10' SECOND)", "k"),
        _counted(ps.Tumbling("10s"), "k"),
    ),
    Question(
        "tumble_offset",
        _counting("TUMBLE(TABLE ev, DESCRIPTOR(ts), INTERVAL '30' SECOND, INTERVAL '7' SECOND)", "k, g"),
        _counted(ps.Tumbling("30s", offset="7s"), "k", "g"),
    ),
    Question(
        "tumble_disorder",
        _counting("TUMBLE(TABLE ev, DESCRIPTOR(ts), INTERVAL '20' SECOND)", "k"),
        _counted(ps.Tumbling("20s"), "k"),
        stream="disorder",
    ),
    Question(
        "hop",
        _counting("HOP(TABLE ev, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '20' SECOND)", "k"),
        _counted(ps.Sliding("20s", "5s"), "k"),
    ),
    Question(
        "hop_disorder",
        _counting("HOP(TABLE ev, DESCRIPTOR(ts), INTERVAL '20' SECOND, INTERVAL '60' SECOND)", "g"),
        _counted(ps.Sliding("1m", "20s"), "g"),
        stream="disorder",
    ),
    Question(
        "session",
        _counting("SESSION(TABLE ev PARTITION BY k, DESCRIPTOR(ts), INTERVAL '4' SECOND)", "k"),
        _counted(ps.Session("4s"), "k"),
    ),
    Question(
        "session_disorder",
        _counting("SESSION(TABLE ev PARTITION BY k, DESCRIPTOR(ts), INTERVAL '2' SECOND)", "k"),
        _counted(ps.Session("2s"), "k"),
        stream="disorder",
    ),
    Question(
        "cumulate",
        _counting("CUMULATE(TABLE ev, DESCRIPTOR(ts), INTERVAL '10' SECOND, INTERVAL '40' SECOND)", "k"),
        _counted(ps.Cumulative("10s", "40s"), "k"),
    ),
    Question(
        "cumulate_disorder",
        _counting("CUMULATE(TABLE ev, DESCRIPTOR(ts), INTERVAL '20' SECOND, INTERVAL '60' SECOND)", "g"),
        _counted(ps.Cumulative("20s", "60s"), "g"),
        stream="disorder",
    ),
    Question("aggregates", _ALL_AGGREGATES, _all_aggregates),
    Question("aggregates_disorder", _ALL_AGGREGATES, _all_aggregates, stream="disorder"),
    Question(
        "allowed_lateness",
        "SELECT k, TUMBLE_START(ts, INTERVAL '20' SECOND), TUMBLE_END(ts, INTERVAL '20' SECOND), COUNT(*), SUM(v) "
        "FROM ev GROUP BY k, TUMBLE(ts, INTERVAL '20' SECOND)",
        _lateness,
        settings={
            "table.exec.emit.allow-lateness": "15 s",
            "table.exec.emit.late-fire.enabled": "true",
            "table.exec.emit.late-fire.delay": "0 ms",
        },
        upsert=3,
    ),
    Question(
        "time_zone",
        _counting("TUMBLE(TABLE ev, DESCRIPTOR(ts), INTERVAL '6' HOUR)", "g"),
        _wall_clock,
        stream="clock_change",
        time_zone="Europe/Berlin",
    ),
    Question(
        "window_top",
        f"SELECT k, {_BY_WINDOW}, n, total FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY {_BY_WINDOW} ORDER BY total "
        f"DESC) AS place FROM (SELECT k, {_BY_WINDOW}, COUNT(*) AS n, SUM(score) AS total FROM TABLE(TUMBLE(TABLE ev, "
        f"DESCRIPTOR(ts), INTERVAL '30' SECOND)) GROUP BY k, {_BY_WINDOW})) WHERE place <= 2",
        _best_of_a_window,
    ),
    Question(
        "hot_items",
        f"SELECT c.k, c.window_start, c.window_end, c.n FROM ({_HOP_COUNTS}) c JOIN (SELECT MAX(n) AS n, {_BY_WINDOW} "
        f"FROM ({_HOP_COUNTS}) GROUP BY {_BY_WINDOW}) m ON c.window_start = m.window_start AND c.window_end = "
        "m.window_end AND c.n = m.n",
        _hot,
    ),
)
