"""Windows that keep their rows, under faults, stops and rescales: each comes out once, as compiled ones do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.sim.faults import RESCALE, Swarm
from tests.sim.scheduler import SimulationError
from tests.sim.workload import Phase, Plan
from tests.sim.world import World
from tests.support.sizes import sizes

import penstock as ps
from penstock.state.tables.collection_table import CollectionTable


class Total(NamedTuple):
    user_id: int
    window_start: int
    window_end: int
    n: int
    total: int


class ByRows(ps.ProcessWindowFunction):
    """Counts and sums rows, and checks that a window is computed once."""

    def process(self, key, ctx, rows) -> Iterator[Total]:
        assert not ctx.window_state
        ctx.window_state["computed"] = True
        yield Total(key, ctx.window.start, ctx.window.end, len(rows), sum(row.amount for row in rows))


class RowsPlan(Plan):
    """The windows of every plan, by a function of their rows or, where an evictor asks for the rows, by aggregates."""

    by_function = True

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        windows = orders.key_by("user_id").window(ps.Sliding(f"{self.size_ms}ms", f"{self.slide_ms}ms"))
        if self.by_function:
            return windows.process(ByRows()).uid("totals")
        kept = windows.evictor(ps.evictor.count(1_000_000))
        return kept.aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")


def plan_of(seed: int, phases: list[Phase], backend: str = "hashmap") -> RowsPlan:
    plan = RowsPlan.drawn(random.Random(f"plan {seed}"))
    plan.limits = sizes()
    plan.phases, plan.input_ms, plan.inline_bytes, plan.by_function = phases, 1500.0, 0, seed % 2 == 1
    plan.settings |= {"checkpoint_tolerated_failures": 100, "state_backend": backend}
    return plan


def run(seed: int, phases: list[Phase], swarm: Swarm, backend: str = "hashmap"):
    return World(seed, plan_of(seed, phases, backend), swarm).execute()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_killed_workers_lose_no_window_and_fire_none_twice(seed):
    swarm = Swarm(random.Random(seed), strikes_={"worker-killed": 1.0}, every_ms=300.0)
    result = run(seed, [Phase(2)], swarm)
    assert result.counts["worker-killed"] > 0
    assert result.counts["checkpoint-completed"] > 1


@pytest.mark.parametrize("seed", [3, 4])
def test_a_rescale_takes_rows_windows_and_timers_along(seed):
    phases = [Phase(1, "stop"), Phase(2, "stop", from_savepoint=True), Phase(3, "stop"), Phase(2)]
    assert run(seed, phases, Swarm.quiet(random.Random(seed))).counts["rescaled"] == 3


@pytest.mark.parametrize("seed", [1, 2])
def test_a_running_job_is_rescaled_while_its_windows_are_open(seed):
    """The next workers load their state before, and number the rows of a window after those that were loaded."""
    plan = plan_of(seed, [Phase(2)])
    plan.size_ms = plan.slide_ms = 100_000
    plan.input_ms = 2500.0
    plan.settings["prepare_state_bytes"] = 0
    swarm = Swarm(random.Random(seed), strikes_={RESCALE: 1.0}, every_ms=500.0)
    assert World(seed, plan, swarm).execute().counts["rescaled-in-place"] > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_windows_in_the_object_store_come_back_behind_killed_workers(seed, counted):
    points = {"upload-delayed": 0.05, "read-fails": 0.02}
    swarm = Swarm(random.Random(seed), points, strikes_={"worker-killed": 1.0}, every_ms=300.0)
    result = run(seed, [Phase(2, "stop"), Phase(3, from_savepoint=True)], swarm, "remote")
    assert result.counts["worker-killed"] > 0
    assert counted["pieces"] > 5
    assert counted["timers"] > 0


def test_rows_that_are_lost_on_restore_are_caught(monkeypatch):
    monkeypatch.setattr(CollectionTable, "load", lambda self, rows: None)
    with pytest.raises(SimulationError):
        run(3, [Phase(1, "stop"), Phase(2, from_savepoint=True)], Swarm.quiet(random.Random(3)))
