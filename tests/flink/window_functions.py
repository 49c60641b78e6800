"""What the DataStream questions make of rows, as `java/Listings.java`: lines that list them, when a window fires.

Here and in the modules of questions, times come out in milliseconds, as Flink has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from tests.flink.question import Job

import penstock as ps
from penstock.core.elements import MAX_TIMESTAMP


class Told(NamedTuple):
    """A line of an answer."""

    k: str | None
    start: int | None
    end: int | None
    told: str | None


class Row(ps.Schema):
    """The rows of all streams, without what no question needs."""

    id: int
    side: str
    k: str | None
    score: int


def ids(rows: Iterable[Any]) -> str:
    """Numbers of rows in the order in which they come."""
    return ",".join(str(row.id) for row in rows)


def sorted_ids(rows: Iterable[Any]) -> str:
    """Numbers of rows, the smallest first: for sessions, which Flink merges in no order, and several partitions."""
    return ",".join(str(number) for number in sorted(row.id for row in rows))


def listed(key: Any, window: Any, rows: list[Any]) -> Iterator[Told]:
    """Rows of a window in their order."""
    yield Told(key, window.start // 1000, window.end // 1000, ids(rows))


def listed_sorted(key: Any, window: Any, rows: list[Any]) -> Iterator[Told]:
    """Rows of a window by number."""
    yield Told(key, window.start // 1000, window.end // 1000, sorted_ids(rows))


def listed_global(key: Any, window: Any, rows: list[Any]) -> Iterator[Told]:
    """Rows of a window without bounds."""
    yield Told(key, None, None, ids(rows))


def listed_global_sorted(key: Any, window: Any, rows: list[Any]) -> Iterator[Told]:
    """Rows of a window without bounds by number."""
    yield Told(key, None, None, sorted_ids(rows))


def late_row(row: Row) -> Told:
    """A row that came too late."""
    return Told(row.k, None, None, f"late {row.id}")


class Total(ps.Schema):
    """What a compiled window gives."""

    k: str | None
    window_start: datetime
    window_end: datetime
    n: int
    total: int


def total_row(row: Total) -> Told:
    """Number and sum of a window."""
    start, end = (int(bound.timestamp() * 1000) for bound in (row.window_start, row.window_end))
    return Told(row.k, start, end, f"{row.n} {row.total}")


def best(left: Any, right: Any) -> Any:
    """Of two rows the one with the higher score."""
    return left if left.score >= right.score else right


class Remembering(ps.ProcessWindowFunction):
    """Remembers how often its window has fired."""

    def process(self, key: Any, ctx: Any, rows: Any) -> Iterator[Told]:
        count = ctx.window_state.get("fired", 0) + 1
        ctx.window_state["fired"] = count
        at = f"{count}: {ids(rows)} at {java_time(ctx.watermark)}"
        yield Told(key, ctx.window.start // 1000, ctx.window.end // 1000, at)


def java_time(watermark: int) -> int:
    """A watermark in Flink's milliseconds; the one behind the last row is the largest number in both."""
    return watermark if watermark == MAX_TIMESTAMP else watermark // 1000


def windows(window: ps.Window, *, lateness: str = "0s", trigger: Any = None, evictor: Any = None) -> Any:
    """Return what makes windows of the rows of a stream by key."""

    def made(rows: ps.DataStream) -> Any:
        found: Any = rows.key_by("k").window(window)
        if lateness != "0s":
            found = found.allowed_lateness(lateness)
        if trigger is not None:
            found = found.trigger(trigger)
        return found if evictor is None else found.evictor(evictor)

    return made


def applying(made: Any, function: Any = listed) -> Job:
    """Windows, and what a function makes of each."""

    def job(rows: ps.DataStream) -> ps.DataStream:
        stream: ps.DataStream = made(rows).apply(function).uid("window")
        return stream

    return job


def with_late(made: Any) -> Job:
    """Windows, and the rows that came too late for them."""

    def job(rows: ps.DataStream) -> ps.DataStream:
        found = made(rows).late_to("late").apply(listed_sorted).uid("window")
        late: ps.DataStream = found.side_output("late").map(late_row)
        return found.union(late)

    return job


def totals(stream: Any) -> ps.DataStream:
    """Number and sum of scores of a window, with its bounds in milliseconds."""
    found: ps.DataStream = stream.aggregate(n=ps.count(), total=ps.sum("score")).uid("totals")
    return found.select("k", "window_start", "window_end", "n", "total")
