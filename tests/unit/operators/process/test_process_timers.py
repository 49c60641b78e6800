"""Timers of process functions: order, deletion, the clock, the end."""

import datetime as dt
from collections.abc import Iterator

import pytest
from tests.support.sizes import given
from tests.unit.operators.process.counting import Counting, Out

import penstock as ps
from penstock.core.elements import MAX_TIMESTAMP, BarrierKind
from penstock.core.errors import PenstockError


def test_timers_fire_in_order_of_time_whatever_the_watermark_jumps_over(world):
    op = world.open(Counting())
    op.rows((1, 0, 55), (2, 0, 12), (1, 0, 12), (3, 0, 3_000_000), (2, 0, 33))
    fired = op.watermark(10_000_000)
    assert [(k, what, n) for k, what, n, _ in fired] == [
        (1, "event@19", 2),
        (2, "event@19", 2),
        (2, "event@39", None),
        (1, "event@59", None),
        (3, "event@3000009", 1),
    ]


def test_a_timer_of_the_past_fires_with_the_next_watermark(world):
    op = world.open(Counting())
    op.watermark(100)
    op.rows((1, 0, 5))
    assert op.watermark(100) == []
    assert op.watermark(101) == [(1, "event@9", 1, 9)]


class Chained(ps.KeyedProcessFunction):
    """Timers that register and delete timers while they fire."""

    def process(self, row, ctx) -> Iterator[Out]:
        for time in (10, 20, 30):
            ctx.timers.event(time)
        ctx.timers.delete(40)
        ctx.timers.event(dt.datetime(1970, 1, 1, 0, 0, 0, 40))

    def on_timer(self, timestamp, ctx):
        yield Out(ctx.key, str(timestamp), None)
        if timestamp == 10:
            ctx.timers.delete(20)
            ctx.timers.event(30)  # there is one
            ctx.timers.event(15)
            ctx.timers.event(15)
            ctx.timers.event(3)
        if timestamp == 15:
            ctx.timers.event(16)
            ctx.timers.event(1000)


def test_timers_registered_and_deleted_while_timers_fire(world):
    op = world.open(Chained())
    op.rows((1, 0, 1))
    assert [what for _, what, *_ in op.watermark(35)] == ["10", "3", "15", "16", "30"]
    assert [what for _, what, *_ in op.restored().watermark(2000)] == ["40", "1000"]


class Endless(ps.KeyedProcessFunction):
    def process(self, row, ctx) -> Iterator[Out]:
        ctx.timers.event(0)

    def on_timer(self, timestamp, ctx):
        ctx.timers.event(timestamp + 1)


def test_timers_without_end_are_an_error_at_the_end_of_input(world, monkeypatch):
    given(monkeypatch, timers_at_end=-900)
    op = world.open(Endless())
    op.rows((1, 0, 1))
    op.watermark(10)
    with pytest.raises(PenstockError, match="keeps registering timers at the end of input"):
        op.watermark(MAX_TIMESTAMP)


class Wall(ps.KeyedProcessFunction):
    def process(self, row, ctx) -> Iterator[Out]:
        ctx.timers.processing(ctx.processing_time + row.v * 1000)
        if row.v == 7:
            ctx.timers.delete(ctx.processing_time + 5000, processing=True)

    def on_timer(self, timestamp, ctx):
        yield Out(ctx.key, ctx.time_domain, timestamp)


def test_processing_timers_go_by_the_clock_and_their_rows_are_never_late(world):
    op = world.open(Wall())
    now = world.bench.clock.now_ms()
    assert op.operator.next_timer_ms is None
    op.rows((1, 5, 1), (2, 9, 1), (3, 5, 1), (3, 7, 1))
    op.watermark(50)
    assert op.operator.next_timer_ms == now + 5
    assert op.tick(4) == []
    assert op.tick(2) == [(1, "processing", (now + 5) * 1000, 51)]
    op = op.restored()
    assert op.operator.next_timer_ms == now + 7
    assert op.tick(10) == [
        (3, "processing", (now + 7) * 1000, (now + 7) * 1000),
        (2, "processing", (now + 9) * 1000, (now + 9) * 1000),
    ]


def test_no_processing_timer_fires_behind_the_end(world):
    op = world.open(Wall())
    op.rows((1, 5, 1))
    op.snapshot(1, BarrierKind.STOP)
    assert op.operator.next_timer_ms is None
