"""Process functions under faults, stops and rescales: windows by hand come out once each, as windows do."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.sim.faults import Swarm
from tests.sim.scheduler import SimulationError
from tests.sim.workload import Phase, Plan
from tests.sim.world import World
from tests.support.sizes import sizes

import penstock as ps
from penstock.state.tables.collection_table import CollectionTable
from penstock.state.tables.timer_table import TimerTable
from penstock.state.tables.value_table import ValueTable
from penstock.state.tiers.cold_timers import ColdTimers


class Total(NamedTuple):
    user_id: int
    window_start: int
    window_end: int
    n: int
    total: int


class ByHand(ps.KeyedProcessFunction):
    """Counts and sums of the windows a user has open, as text, with a timer at the end of each."""

    open_windows: ps.ValueState[str] = ps.value_state()

    def __init__(self, size: int) -> None:
        self.size = size

    def process(self, row, ctx) -> Iterator[Total]:
        start = ctx.timestamp // self.size * self.size
        windows = self.windows()
        n, total = windows.get(start, (0, 0))
        windows[start] = n + 1, total + row.amount
        self.keep(windows)
        ctx.timers.event(start + self.size - 1)
        return ()

    def on_timer(self, timestamp, ctx):
        windows = self.windows()
        start = timestamp + 1 - self.size
        n, total = windows.pop(start, (0, 0))
        self.keep(windows)
        yield Total(ctx.key, start, timestamp + 1, n, total)

    def windows(self):
        text = self.open_windows.value()
        parts = [tuple(map(int, part.split(","))) for part in text.split(";")] if text else []
        return {start: (n, total) for start, n, total in parts}

    def keep(self, windows):
        text = ";".join(f"{start},{n},{total}" for start, (n, total) in windows.items())
        self.open_windows.update(text or None)


class ByEntries(ps.KeyedProcessFunction):
    """The same with a map of counts by window and a list of all amounts."""

    counts: ps.MapState[int, int] = ps.map_state()
    amounts: ps.ListState[tuple[int, int]] = ps.list_state()

    def __init__(self, size: int) -> None:
        self.size = size

    def process(self, row, ctx) -> Iterator[Total]:
        start = ctx.timestamp // self.size * self.size
        self.counts[start] = self.counts.get(start, 0) + 1
        self.amounts.append((start, row.amount))
        ctx.timers.event(start + self.size - 1)
        return ()

    def on_timer(self, timestamp, ctx):
        start = timestamp + 1 - self.size
        total = sum(amount for at, amount in self.amounts if at == start)
        yield Total(ctx.key, start, timestamp + 1, self.counts.pop(start, 0), total)
        self.amounts.set([(at, amount) for at, amount in self.amounts if at != start])


class Sum(ps.Aggregator[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, left: int, right: int) -> int:
        return left + right


class Brief(ByEntries):
    """The same with a time-to-live that is never over, reading being an access."""

    counts: ps.MapState[int, int] = ps.map_state(ttl=ps.StateTtlConfig("1h", "on_read_and_write"))
    amounts: ps.ListState[tuple[int, int]] = ps.list_state(ttl=ps.StateTtlConfig("1h", "on_read_and_write"))


class ByFolds(ByEntries):
    """The same, the total of a window being the difference between two totals of all that came."""

    rows: ps.ReducingState[int] = ps.reducing_state(operator.add)
    total: ps.AggregatingState[int, int] = ps.aggregating_state(Sum())
    taken: ps.ValueState[tuple[int, int]] = ps.value_state()

    def process(self, row, ctx) -> Iterator[Total]:
        self.rows.add(1)
        self.total.add(row.amount)
        return super().process(row, ctx)

    def on_timer(self, timestamp, ctx):
        (out,) = super().on_timer(timestamp, ctx)
        rows, total = self.taken.value() or (0, 0)
        still = sum(self.counts.values()), sum(amount for _, amount in self.amounts)
        yield out._replace(n=self.rows.get() - rows - still[0], total=self.total.get() - total - still[1])
        self.taken.update((rows + out.n, total + out.total))


class ProcessPlan(Plan):
    """Tumbling windows by a process function; the same rows are expected of it."""

    function: type[ps.KeyedProcessFunction] = ByHand

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        made = self.function(self.size_ms * 1000)
        return orders.key_by("user_id").process(made, returns=Total).uid("totals")


def run(seed: int, phases: list[Phase], swarm: Swarm, function=ByHand, backend="hashmap"):
    plan = ProcessPlan.drawn(random.Random(f"plan {seed}"))
    plan.limits = sizes()
    plan.function = function
    plan.phases, plan.input_ms, plan.inline_bytes, plan.slide_ms = phases, 1500.0, 0, plan.size_ms
    plan.settings |= {"checkpoint_tolerated_failures": 100, "state_backend": backend}
    return World(seed, plan, swarm).execute()


@pytest.mark.parametrize("function", [ByHand, ByEntries, Brief, ByFolds])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_workers_lose_no_timer_and_fire_none_twice(seed, function):
    swarm = Swarm(random.Random(seed), strikes_={"worker-killed": 1.0}, every_ms=300.0)
    result = run(seed, [Phase(2)], swarm, function)
    assert result.counts["worker-killed"] > 0
    assert result.counts["checkpoint-completed"] > 1


@pytest.mark.parametrize("function", [ByHand, ByEntries, Brief, ByFolds])
def test_a_rescale_takes_state_and_timers_along(function):
    phases = [Phase(1, "stop"), Phase(2, "stop", from_savepoint=True), Phase(3, "stop"), Phase(2)]
    result = run(3, phases, Swarm.quiet(random.Random(3)), function)
    assert result.counts["rescaled"] == 3


@pytest.mark.parametrize("function", [ByHand, ByEntries, Brief, ByFolds])
def test_state_in_the_object_store_comes_back_behind_killed_workers(function, counted):
    points = {"upload-delayed": 0.05, "read-fails": 0.02}
    swarm = Swarm(random.Random(1), points, strikes_={"worker-killed": 1.0}, every_ms=200.0)
    result = run(1, [Phase(2, "stop"), Phase(3, from_savepoint=True)], swarm, function, "remote")
    assert result.counts["worker-killed"] > 0
    assert counted["pieces"] > 5
    assert counted["timers"] > 0


def test_timers_that_are_not_fetched_are_missed(monkeypatch):
    monkeypatch.setattr(ColdTimers, "remote_least", None)
    with pytest.raises(SimulationError):
        run(3, [Phase(1, "stop"), Phase(2, from_savepoint=True)], Swarm.quiet(random.Random(3)), ByHand, "remote")


@pytest.mark.parametrize(
    ("table", "function"), [(ValueTable, ByHand), (TimerTable, ByHand), (CollectionTable, ByEntries)]
)
def test_state_that_is_lost_on_restore_is_caught(table, function, monkeypatch):
    monkeypatch.setattr(table, "load", lambda self, rows: None)
    with pytest.raises(SimulationError):
        run(3, [Phase(1, "stop"), Phase(2, from_savepoint=True)], Swarm.quiet(random.Random(3)), function)
