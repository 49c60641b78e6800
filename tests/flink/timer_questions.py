"""Process functions, as in `java/Timers.java`: timers by event time, late rows as a side output, times of results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import polars as pl
from tests.flink.question import Job, Question
from tests.flink.window_functions import Row, totals

import penstock as ps
from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP

_SECOND = 1_000_000


class _Said(NamedTuple):
    k: str | None
    first: int
    second: int | None
    told: str


class _Sum(NamedTuple):
    k: str | None
    time: int
    rows: int
    total: str


class _Scored(NamedTuple):
    k: str | None
    id: int
    score: int


def _known(watermark: int) -> int | None:
    """A watermark in milliseconds; before the first and behind the last row it is none."""
    return None if watermark in (MIN_TIMESTAMP, MAX_TIMESTAMP) else watermark // 1000


class _Seeing(ps.KeyedProcessFunction):
    """A function with a list of what its key has seen."""

    ids: ps.ListState[int] = ps.list_state()

    def seen(self) -> str:
        return ",".join(str(number) for number in self.ids.get())


class _Several(_Seeing):
    """Two timers a row, one of them on a whole second, where they meet; every third row takes one back."""

    def process(self, row: Row, ctx: ps.ProcessContext) -> Iterator[_Said]:
        self.ids.append(row.id)
        ctx.timers.event(ctx.timestamp + 3 * _SECOND)
        whole = ctx.timestamp - ctx.timestamp % (4 * _SECOND) + 8 * _SECOND
        if row.id % 3 == 0:
            ctx.timers.delete(whole)
        else:
            ctx.timers.event(whole)
        yield from ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[_Said]:
        yield _Said(ctx.key, timestamp // 1000, None, self.seen())
        self.ids.clear()


class _ByTimers(_Seeing):
    """Timers register timers: one in their future, one in their past; and take others back."""

    def process(self, row: Row, ctx: ps.ProcessContext) -> Iterator[_Said]:
        self.ids.append(row.id)
        ctx.timers.event(ctx.timestamp - ctx.timestamp % _SECOND)
        yield from ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[_Said]:
        yield _Said(ctx.key, timestamp // 1000, None, self.seen())
        if timestamp % _SECOND == 0:
            ctx.timers.event(timestamp - 1_500_000)
            ctx.timers.event(timestamp + 2_250_000)
        elif timestamp % _SECOND == 250_000:
            ctx.timers.delete(timestamp + 750_000)
            ctx.timers.event(timestamp + 375_000)
            self.ids.clear()


class _Past(_Seeing):
    """A timer at the time of the row itself and one long before: those that are due wait for the next watermark."""

    def process(self, row: Row, ctx: ps.ProcessContext) -> Iterator[_Said]:
        self.ids.append(row.id)
        ctx.timers.event(ctx.timestamp)
        ctx.timers.event(ctx.timestamp - 60 * _SECOND)
        watermark = _known(ctx.watermark)
        yield _Said(ctx.key, row.id, None, f"{ctx.timestamp // 1000} {'null' if watermark is None else watermark}")

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[_Said]:
        yield _Said(ctx.key, timestamp // 1000, ctx.timestamp // 1000, self.seen())
        self.ids.clear()


class _LateAside(_Seeing):
    """Rows behind the watermark go to a side output, others are counted."""

    def process(self, row: Row, ctx: ps.ProcessContext) -> Iterator[_Said]:
        if ctx.timestamp <= ctx.watermark:
            ctx.side("late", _Scored(row.k, row.id, row.score))
        else:
            self.ids.append(row.id)
            yield _Said(ctx.key, row.id, ctx.timestamp // 1000, self.seen())


class _Aside(ps.KeyedProcessFunction):
    """Tells the event time of rows of the side output."""

    def process(self, row: _Scored, ctx: ps.ProcessContext) -> Iterator[_Said]:
        yield _Said(row.k, row.id, ctx.timestamp // 1000, "late")


class _Passing(ps.KeyedProcessFunction):
    """Hands every third row on at once, the newest one when a timer is due."""

    newest: ps.ValueState[_Scored] = ps.value_state()

    def process(self, row: Row, ctx: ps.ProcessContext) -> Iterator[_Scored]:
        newest = _Scored(row.k, row.id, row.score)
        self.newest.update(newest)
        ctx.timers.event(ctx.timestamp + 7 * _SECOND)
        if row.id % 3 == 0:
            yield newest

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[_Scored]:
        newest = self.newest.value()
        assert newest is not None
        yield newest


class _Sums(ps.KeyedProcessFunction):
    """Rows wait for the watermark in a map by time; every ten seconds they are added up."""

    by_time: ps.MapState[int, int] = ps.map_state()

    def process(self, row: Row, ctx: ps.ProcessContext) -> Iterator[_Sum]:
        self.by_time[ctx.timestamp] = self.by_time.get(ctx.timestamp, 0) + row.score
        ctx.timers.event(ctx.timestamp - ctx.timestamp % (10 * _SECOND) + 10 * _SECOND)
        yield from ()

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[_Sum]:
        over = {time: score for time, score in self.by_time.items() if time < timestamp}
        for time in over:
            self.by_time.remove(time)
        yield _Sum(ctx.key, timestamp // 1000, len(over), str(sum(over.values())))


class _Connected(ps.KeyedCoProcessFunction):
    """A row of the left waits until the watermark has passed it, and is told the newest of the right before it."""

    waiting: ps.MapState[int, str] = ps.map_state()
    right: ps.MapState[int, int] = ps.map_state()

    def process1(self, row: Row, ctx: ps.ProcessContext) -> Iterator[_Said]:
        there = self.waiting.get(ctx.timestamp)
        numbers = {row.id} | ({int(text) for text in there.split(",")} if there else set())
        self.waiting[ctx.timestamp] = ",".join(str(number) for number in sorted(numbers))
        ctx.timers.event(ctx.timestamp)
        yield from ()

    def process2(self, row: Row, ctx: ps.ProcessContext) -> None:
        self.right[ctx.timestamp] = max(row.score, self.right.get(ctx.timestamp, row.score))

    def on_timer(self, timestamp: int, ctx: ps.ProcessContext) -> Iterator[_Said]:
        before = [time for time in self.right if time <= timestamp]
        newest = self.right[max(before)] if before else None
        yield _Said(ctx.key, timestamp // 1000, newest, self.waiting[timestamp])
        self.waiting.remove(timestamp)


def _processing(function: ps.KeyedProcessFunction) -> Job:
    def job(rows: ps.DataStream) -> ps.DataStream:
        return rows.key_by("k").process(function).uid("timers")

    return job


def _late_aside(rows: ps.DataStream) -> ps.DataStream:
    found = rows.key_by("k").process(_LateAside(), side_outputs={"late": _Scored}).uid("timers")
    return found.union(found.side_output("late").key_by("k").process(_Aside()).uid("late"))


def _times_of_results(rows: ps.DataStream) -> ps.DataStream:
    passed = rows.key_by("k").process(_Passing()).uid("timers")
    return totals(passed.key_by("k").window(ps.Tumbling("10s")))


def _connected(rows: ps.DataStream) -> ps.DataStream:
    left, right = (rows.filter(pl.col("side") == side).key_by("k") for side in "LR")
    return left.connect(right).process(_Connected()).uid("timers")


TIMERS = (
    Question("timers_several", "Timers.several", _processing(_Several())),
    Question("timers_by_timers", "Timers.byTimers", _processing(_ByTimers())),
    Question("timers_past", "Timers.past", _processing(_Past())),
    Question("timers_late_aside", "Timers.lateAside", _late_aside),
    Question("timers_times_of_results", "Timers.timesOfResults", _times_of_results),
    Question("timers_disorder", "Timers.sums", _processing(_Sums()), stream="disorder"),
    Question("timers_connected", "Timers.connected", _connected, stream="disorder"),
)
