"""Joins, deduplication and running aggregates."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal, NamedTuple

import polars as pl
from tests.flink.question import Job, Question

import penstock as ps

_BY_WINDOW = "window_start, window_end"
_How = Literal["inner", "left", "right", "full"]


def _sides(rows: ps.DataStream, *, nulls: bool) -> tuple[ps.DataStream, ps.DataStream]:
    """The two sides; without null keys, as SQL's `=` has it, or with."""
    kept = rows if nulls else rows.filter(pl.col("k").is_not_null())
    left = kept.filter(pl.col("side") == "L").select("id", "k", "v")
    return left, kept.filter(pl.col("side") == "R").select("k", other="id", amount="v")


def _interval(lower: str, upper: str, how: _How = "inner", *, nulls: bool) -> Job:
    def job(rows: ps.DataStream) -> ps.DataStream:
        left, right = _sides(rows, nulls=nulls)
        pairs = left.key_by("k").interval_join(right.key_by("k"), lower, upper, how=how).uid("pairs")
        return pairs.select("k", "id", "other", "v", "amount")

    return job


def _intervals(equal: str, lower: str, upper: str) -> str:
    pairs = f"SELECT l.k, l.id, r.id, l.v, r.v FROM l, r WHERE l.k {equal} r.k"
    return f"{pairs} AND r.ts BETWEEN l.ts {lower} AND l.ts {upper}"


def _outer_intervals(how: str, lower: str, upper: str) -> str:
    pairs = f"SELECT COALESCE(l.k, r.k), l.id, r.id, l.v, r.v FROM l {how} OUTER JOIN r ON l.k {_SAME} r.k"
    return f"{pairs} AND r.ts BETWEEN l.ts {lower} AND l.ts {upper}"


def _window_join(window: ps.Window, how: _How, *, nulls: bool) -> Job:
    def job(rows: ps.DataStream) -> ps.DataStream:
        left, right = _sides(rows, nulls=nulls)
        joined = left.join(right, how=how).where("k").equal_to("k").window(window).uid("pairs")
        return joined.select("k", "id", "other", "v", "amount", "window_start", "window_end")

    return job


def _window_joins(function: str, how: str, equal: str) -> str:
    left, right = (f"SELECT * FROM TABLE({function.format(side)})" for side in "lr")
    key = "l1.k" if how == "JOIN" else "COALESCE(l1.k, r1.k)"
    bounds = (
        "l1.window_start, l1.window_end"
        if how == "JOIN"
        else "COALESCE(l1.window_start, r1.window_start), COALESCE(l1.window_end, r1.window_end)"
    )
    return (
        f"SELECT {key}, l1.id, r1.id, l1.v, r1.v, {bounds} FROM ({left}) l1 {how} ({right}) r1 ON l1.k {equal} r1.k "
        "AND l1.window_start = r1.window_start AND l1.window_end = r1.window_end"
    )


def _temporal(how: Literal["inner", "left"]) -> Job:
    def job(rows: ps.DataStream) -> ps.DataStream:
        left, right = _sides(rows, nulls=False)
        found = left.key_by("k").temporal_join(right.key_by("k"), how=how).uid("found")
        return found.select("k", "id", "other", "v", "amount")

    return job


_ASKING = "CREATE VIEW asking AS SELECT * FROM part0 UNION ALL SELECT * FROM part1"


def _temporals(how: str) -> str:
    found = f"asking a {how} part2 FOR SYSTEM_TIME AS OF a.ts AS b ON a.k = b.k"
    return f"SELECT a.k, a.id, b.id, a.v, b.v FROM {found} WHERE a.k IS NOT NULL"


class _Row(NamedTuple):
    k: str | None
    g: int | None
    id: int
    v: int | None
    ts: datetime


class _InTime(ps.KeyedProcessFunction):
    """Leaves late rows out, as Flink does where it keeps the first row by event time."""

    def process(self, row: Any, ctx: ps.ProcessContext) -> Iterator[_Row]:
        if ctx.timestamp > ctx.watermark:
            yield _Row(row.k, row.g, row.id, row.v, row.ts)


def _first_in_time(rows: ps.DataStream) -> ps.DataStream:
    in_time = rows.key_by("k", "g").process(_InTime()).uid("in-time")
    return in_time.key_by("k", "g").deduplicate(keep="first").uid("one").select("k", "g", "id", "v", "ts")


def _deduplicate(keep: Literal["first", "last"]) -> Job:
    def job(rows: ps.DataStream) -> ps.DataStream:
        return rows.key_by("k", "g").deduplicate(keep=keep).uid("one").select("k", "g", "id", "v", "ts")

    return job


def _deduplicated(direction: str) -> str:
    return (
        "SELECT k, g, id, v, ts FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k, g ORDER BY ts "
        f"{direction}) AS place FROM ev) WHERE place = 1"
    )


def _running(rows: ps.DataStream) -> ps.DataStream:
    wanted = (ps.count(), ps.count("v"), ps.sum("v"), ps.min("v"), ps.max("w"), ps.mean("v"), ps.std("w"))
    return rows.key_by("k", "g").aggregate(*wanted).uid("running")


_TUMBLE = "TUMBLE(TABLE {}, DESCRIPTOR(ts), INTERVAL '10' SECOND)"
_HOP = "HOP(TABLE {}, DESCRIPTOR(ts), INTERVAL '4' SECOND, INTERVAL '8' SECOND)"
_CUMULATE = "CUMULATE(TABLE {}, DESCRIPTOR(ts), INTERVAL '4' SECOND, INTERVAL '12' SECOND)"
_SAME = "IS NOT DISTINCT FROM"

JOINS = (
    Question(
        "interval_join",
        _intervals("=", "- INTERVAL '4' SECOND", "+ INTERVAL '6' SECOND"),
        _interval("-4s", "6s", nulls=False),
        stream="disorder",
    ),
    Question(
        "interval_join_nulls",
        _intervals(_SAME, "+ INTERVAL '1' SECOND", "+ INTERVAL '5' SECOND"),
        _interval("1s", "5s", nulls=True),
        stream="disorder",
    ),
    Question(
        "interval_join_left",
        _outer_intervals("LEFT", "+ INTERVAL '1' SECOND", "+ INTERVAL '3' SECOND"),
        _interval("1s", "3s", "left", nulls=True),
        stream="disorder",
    ),
    Question(
        "interval_join_full",
        _outer_intervals("FULL", "- INTERVAL '2' SECOND", "+ INTERVAL '1' SECOND"),
        _interval("-2s", "1s", "full", nulls=True),
        stream="disorder",
    ),
    Question(
        "window_join_cumulate",
        _window_joins(_CUMULATE, "LEFT JOIN", _SAME),
        _window_join(ps.Cumulative("4s", "12s"), "left", nulls=True),
        stream="disorder",
    ),
    Question(
        "window_join",
        _window_joins(_HOP, "JOIN", "="),
        _window_join(ps.Sliding("8s", "4s"), "inner", nulls=False),
        stream="disorder",
    ),
    Question(
        "window_join_full",
        _window_joins(_TUMBLE, "FULL OUTER JOIN", _SAME),
        _window_join(ps.Tumbling("10s"), "full", nulls=True),
        stream="disorder",
    ),
    Question("temporal_join", _temporals("JOIN"), _temporal("inner"), stream="versions", views=(_ASKING,)),
    Question("temporal_join_left", _temporals("LEFT JOIN"), _temporal("left"), stream="versions", views=(_ASKING,)),
)

ROWS = (
    Question("keep_first", _deduplicated("ASC"), _deduplicate("first"), stream="disorder", upsert=2),
    Question("keep_first_late", _deduplicated("ASC"), _first_in_time, upsert=2),
    Question("keep_last", _deduplicated("DESC"), _deduplicate("last"), upsert=2),
    Question(
        "running",
        "SELECT k, g, COUNT(*), COUNT(v), SUM(v), MIN(v), MAX(w), AVG(CAST(v AS DOUBLE)), STDDEV_SAMP(w) FROM ev "
        "GROUP BY k, g",
        _running,
        upsert=2,
    ),
)
