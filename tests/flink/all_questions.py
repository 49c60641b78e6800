"""Windows over the rows of all keys, joins by session, keys that are computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import polars as pl
from tests.flink.question import Job, Question
from tests.flink.window_functions import Row, best, ids, listed, sorted_ids

import penstock as ps

_BY_WINDOW = "window_start, window_end"


class Listed(NamedTuple):
    """A window or a late row."""

    start: int | None
    end: int | None
    told: str


class Ids(NamedTuple):
    """The numbers of rows."""

    told: str


class Listing(ps.ProcessAllWindowFunction):
    """Numbers of a window's rows."""

    def process(self, ctx: Any, rows: Any) -> Iterator[Listed]:
        assert ctx.key is None
        yield Listed(ctx.window.start // 1000, ctx.window.end // 1000, sorted_ids(rows))


def _counted(window: Any, rows: list[Any]) -> Iterator[Ids]:
    assert window.start < window.end
    yield Ids(ids(rows))


def _late(row: Row) -> Listed:
    return Listed(None, None, f"late {row.id}")


def _listing(windows: Any) -> Job:
    def job(rows: ps.DataStream) -> ps.DataStream:
        found: ps.DataStream = windows(rows).process(Listing()).uid("window")
        return found

    return job


def _with_late(window: ps.Window, lateness: str) -> Job:
    def job(rows: ps.DataStream) -> ps.DataStream:
        windows = rows.window_all(window).allowed_lateness(lateness).late_to("late")
        found = windows.process(Listing()).uid("window")
        return found.union(found.side_output("late").map(_late))

    return job


def _best_of_three(rows: ps.DataStream) -> ps.DataStream:
    three = rows.window_all(ps.Tumbling("20s")).trigger(ps.trigger.purging(ps.trigger.count(3)))
    return three.reduce(best).uid("best").select("k", "id", "score")


def _by_number(size: int, slide: int | None = None) -> Job:
    return lambda rows: rows.count_window_all(size, slide).apply(_counted).uid("window")


def _totals(window: ps.Window) -> Job:
    wanted = {"n": ps.count(), "known": ps.count("v"), "total": ps.sum("v"), "most": ps.max("w")}
    return lambda rows: rows.window_all(window).aggregate(**wanted).uid("window")


def _total(function: str) -> str:
    return f"SELECT {_BY_WINDOW}, COUNT(*), COUNT(v), SUM(v), MAX(w) FROM TABLE({function}) GROUP BY {_BY_WINDOW}"


def _session_join(gap: str, how: Literal["inner", "full"]) -> Job:
    def job(rows: ps.DataStream) -> ps.DataStream:
        left = rows.filter(pl.col("side") == "L").select("k", "id")
        right = rows.filter(pl.col("side") == "R").select("k", other="id")
        pairs = left.join(right, how=how).where("k").equal_to("k").window(ps.Session(gap)).uid("pairs")
        return pairs.select("k", "id", "other")

    return job


def _third(row: Any) -> str:
    return f"{row.side}{row.id % 3}"


def _modulo(row: Any) -> tuple[int, str]:
    return row.id % 3, row.side


def _by_modulo(rows: ps.DataStream) -> ps.DataStream:
    counted = rows.key_by(_modulo).window(ps.Sliding("30s", "10s")).aggregate(n=ps.count(), total=ps.sum("v"))
    return counted.uid("window")


ALL = (
    Question(
        "all_tumble", _total("TUMBLE(TABLE ev, DESCRIPTOR(ts), INTERVAL '10' SECOND)"), _totals(ps.Tumbling("10s"))
    ),
    Question(
        "all_hop_disorder",
        _total("HOP(TABLE ev, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '20' SECOND)"),
        _totals(ps.Sliding("20s", "5s")),
        stream="disorder",
    ),
    Question(
        "all_cumulate_disorder",
        _total("CUMULATE(TABLE ev, DESCRIPTOR(ts), INTERVAL '10' SECOND, INTERVAL '40' SECOND)"),
        _totals(ps.Cumulative("10s", "40s")),
        stream="disorder",
    ),
    Question(
        "all_session",
        _total("SESSION(TABLE ev, DESCRIPTOR(ts), INTERVAL '1' SECOND)"),
        _totals(ps.Session("1s")),
    ),
    Question("all_tumbling_late", "AllWindows.tumblingLate", _with_late(ps.Tumbling("10s"), "5s")),
    Question("all_session_late", "AllWindows.sessionLate", _with_late(ps.Session("1s"), "4s")),
    Question(
        "all_sliding_disorder",
        "AllWindows.slidingDisorder",
        _listing(lambda rows: rows.window_all(ps.Sliding("20s", "5s"))),
        stream="disorder",
    ),
    Question(
        "all_evicted",
        "AllWindows.evicted",
        _listing(lambda rows: rows.window_all(ps.Tumbling("20s")).evictor(ps.evictor.count(3))),
    ),
    Question("all_best_of_three", "AllWindows.bestOfThree", _best_of_three),
    Question("all_count_window", "AllWindows.countWindow", _by_number(7)),
    Question("all_count_window_sliding", "AllWindows.countWindowSliding", _by_number(9, 4)),
    Question("session_join", "AllWindows.sessionJoin", _session_join("3s", "inner"), stream="disorder"),
    Question("session_join_full", "AllWindows.sessionJoinFull", _session_join("1s", "full"), stream="disorder"),
    Question(
        "key_function",
        "AllWindows.keyFunction",
        lambda rows: rows.key_by(_third).window(ps.Tumbling("20s")).apply(listed).uid("window"),
    ),
    Question(
        "key_function_disorder",
        f"SELECT third, side, {_BY_WINDOW}, COUNT(*), SUM(v) FROM (SELECT MOD(id, 3) AS third, side, v, {_BY_WINDOW} "
        "FROM TABLE(HOP(TABLE ev, DESCRIPTOR(ts), INTERVAL '10' SECOND, INTERVAL '30' SECOND))) "
        f"GROUP BY third, side, {_BY_WINDOW}",
        _by_modulo,
        stream="disorder",
    ),
)
