"""Key by key, a function gives what it gives row by row in order of event time, with the same state and timers."""

import random
from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.support.sizes import given
from tests.unit.operators.conftest import KEYED_SCHEMA
from tests.unit.operators.process.counting import Out

import penstock as ps
from penstock.core.elements import Batch
from penstock.functions.state_handles import TimerQueue
from penstock.operators.process.by_key import DueTimers
from penstock.operators.rows.user_functions import UserFunctionError

LATER = 10_000


class Restless(ps.KeyedProcessFunction):
    """Registers timers near and far, past and due, and deletes some, in rows and in timers."""

    seen: ps.MapState[int, int] = ps.map_state()
    count: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        self.seen.put(row.v, n)
        yield Out(ctx.key, f"row@{ctx.timestamp}, event time {ctx.watermark}", n)
        ctx.timers.event(ctx.timestamp + row.v)
        ctx.timers.delete(ctx.timestamp + 3)
        ctx.timers.delete(ctx.timestamp + 40)
        if row.v % 3 == 0:
            ctx.timers.event(ctx.timestamp - 2)
            ctx.timers.event(ctx.timestamp + 1_000)

    def on_timer(self, timestamp, ctx):
        assert ctx.watermark >= timestamp
        assert ctx.time_domain == "event"
        n = self.count.value() or 0
        yield Out(ctx.key, f"timer@{timestamp}", n)
        self.seen.remove(n % 7)
        if n % 2:
            ctx.timers.event(timestamp + 1 + n % 5)
            ctx.timers.delete(timestamp + 6)
            self.count.update(n + 1)


def row_by_row(op, rows, final):
    """Process rows with event time just before each."""
    found = []
    for row in rows:
        found += op.watermark(min(row[2] - 1, final))
        found += op.rows(row)
    return found + op.watermark(final)


def key_by_key(op, rows, final, sizes):
    """Process rows in batches of random sizes, as a backfill does."""
    found, start, reached = [], 0, -LATER
    while start < len(rows):
        part = rows[start : start + sizes.choice([1, 5, 30])]
        start += len(part)
        found += op.watermark(min(part[0][2] - 1, final))
        if reached < final:
            reached = min(part[-1][2] - 1, final)
            op.operator.expect_ordered(reached)
        made = op.rows(*part)
        found += made + op.watermark(reached)
    return found + op.watermark(final)


def by_key(rows):
    found = defaultdict(list)
    for key, *rest in rows:
        found[key].append(rest)
    return found


def check(world, seed):
    rand = random.Random(seed)
    times = sorted(rand.randrange(rand.choice([20, 150])) for _ in range(60))
    rows = [(rand.randrange(4), rand.randrange(45), time) for time in times]
    final = rand.choice([times[-1] + 50, times[40], times[-1]])
    one, other = world.open(Restless()), world.open(Restless())
    assert by_key(key_by_key(other, rows, final, rand)) == by_key(row_by_row(one, rows, final))
    other = other.restored() if seed % 2 else other
    assert by_key(other.watermark(LATER)) == by_key(one.watermark(LATER))
    last = [(key, 1, LATER + 1) for key in range(4)]
    assert other.rows(*last) == one.rows(*last)


def check_many(world):
    for seed in range(12):
        check(world, seed)


@pytest.mark.parametrize("seed", range(12))
def test_the_same_as_row_by_row(world, seed):
    check(world, seed)


def test_output_is_emitted_before_it_fills_memory(world, monkeypatch):
    given(monkeypatch, output_rows=3)
    op = world.open(Restless())
    batch = pa.RecordBatch.from_pylist(
        [{"k": key, "v": 3, "__ts": time} for time in (1, 20, 100) for key in range(4)], KEYED_SCHEMA
    )
    op.operator.expect_ordered(99)
    op.operator.process_batch(Batch(batch), 0, op.out)
    assert len([e for e in op.out.elements if isinstance(e, Batch)]) > 1
    check_many(world)


class AtFifty(ps.KeyedProcessFunction):
    """Registers one timer, whose time is the same for all keys."""

    count: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Out]:
        ctx.timers.event(50)
        yield Out(ctx.key, "row", row.v)

    def on_timer(self, timestamp, ctx):
        yield Out(ctx.key, f"timer@{timestamp}, event time {ctx.watermark >= 50}", timestamp)


def test_timers_of_very_many_keys_fire_in_parts(world, monkeypatch):
    given(monkeypatch, fired_timers=4)
    op = world.open(AtFifty())
    begun, begin = [], op.operator._begin
    monkeypatch.setattr(op.operator, "_begin", lambda distinct: (begun.append(len(distinct)), begin(distinct)))
    for key in range(30):
        op.rows((key, 1, 1))
    op.operator.expect_ordered(59)
    found = op.rows((31, 2, 40), (31, 3, 50), (31, 4, 60)) + op.watermark(59)
    assert max(begun) <= 4 + 3
    assert sum(what.startswith("timer") for _, what, *_ in found) == 31
    assert [[what[:5], time] for what, _, time in by_key(found)[31]] == [
        *(["row", 40], ["row", 50], ["timer", 50], ["row", 60])
    ]


def test_the_same_if_timers_fire_in_parts(world, monkeypatch):
    given(monkeypatch, fired_timers=2)
    check_many(world)


def _late(_self, _place):
    """Leave out timers of earlier batches, which then fire after all rows."""
    return []


def _too_far(self, time):
    """Fire timers of a row's own time before the row."""
    return self._added_before(time + 2)


def _not_all(self, time):
    """Fire fewer timers before a row."""
    return self._added_before(time)


def _drop(self):
    """Forget the timers that did not fire."""
    self._open, self.horizon = None, -(1 << 63) - 1
    self.heap.clear()


@pytest.mark.parametrize(
    ("place", "name", "fault"),
    [
        (DueTimers, "of_key", _late),
        (TimerQueue, "fire_until", _too_far),
        (TimerQueue, "fire_until", _not_all),
        (TimerQueue, "end_key", _drop),
    ],
)
def test_a_fault_in_the_order_is_found(world, monkeypatch, place, name, fault):
    monkeypatch.setattr(place, name, fault)
    with pytest.raises(AssertionError):
        check_many(world)


def test_output_is_in_order_of_time(world, monkeypatch):
    given(monkeypatch, output_rows=1_000)
    op = world.open(Restless())
    op.operator.expect_ordered(99)
    made = op.rows(*[(key, 3, time) for time in (1, 20, 100) for key in range(4)])
    rows = [time for _, what, _, time in made if what.startswith("row")]
    assert rows == sorted(rows)
    timers = [time for _, what, _, time in made if what.startswith("timer")]
    assert max(timers) > min(rows)
    assert len(timers) > 4


class Failing(Restless):
    """Fails at one row, or at one timer."""

    def process(self, row, ctx) -> Iterator[Out]:
        if row.v == 13:
            raise ValueError("a bad row")
        ctx.timers.event(row.v)
        yield from ()

    def on_timer(self, timestamp, ctx):
        raise ValueError("a bad timer")


@pytest.mark.parametrize(("v", "error", "shown"), [(13, "a bad row", "13"), (12, "a bad timer", "timer")])
def test_an_error_names_the_row_or_the_timer(world, v, error, shown):
    op = world.open(Failing())
    rows = [{"k": 1, "v": 40, "__ts": 1}, {"k": 2, "v": v, "__ts": 2}, {"k": 1, "v": 41, "__ts": 30}]
    op.operator.expect_ordered(29)
    with pytest.raises(UserFunctionError, match=error) as caught:
        op.operator.process_batch(Batch(pa.RecordBatch.from_pylist(rows, KEYED_SCHEMA)), 0, op.out)
    assert shown in str(caught.value.values)
