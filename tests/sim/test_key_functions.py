"""Keys that a function computes, and windows over all rows, under faults, stops and rescales."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import pytest
from tests.sim.faults import Swarm
from tests.sim.workload import Phase, Plan
from tests.sim.world import World
from tests.support.sizes import sizes

import penstock as ps


@dataclass(frozen=True)
class Order:
    """Takes exactly its own columns."""

    user_id: int
    amount: int
    ts: datetime


class Bucket(NamedTuple):
    third: int
    even: bool


class Counted(NamedTuple):
    third: int
    even: bool
    n: int
    columns: int


def bucket(row: Any) -> Bucket:
    return Bucket(row.user_id % 3, row.amount % 2 == 0)


class Number(ps.KeyedProcessFunction):
    """Numbers the rows of each key, and counts what it sees of a row."""

    n: ps.ValueState[int] = ps.value_state()

    def process(self, row: Order, ctx: ps.ProcessContext) -> Iterator[Counted]:
        self.n.update((self.n.value() or 0) + 1)
        yield Counted(*ctx.key, self.n.value() or 0, len(vars(row)))


class WindowPlan(Plan):
    """Count and sum of what a function says."""

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        window = ps.Sliding(f"{self.size_ms}ms", f"{self.slide_ms}ms")
        return orders.key_by(bucket).window(window).aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")

    def expected(self) -> Counter[tuple[Any, ...]]:
        size, slide = self.size_ms * 1000, self.slide_ms * 1000
        found: dict[tuple[int, bool, int], list[int]] = {}
        for user, amount, time in (row for rows in self.rows for row in rows):
            for start in range(time - time % slide, time - size, -slide):
                found.setdefault((user % 3, amount % 2 == 0, start), []).append(amount)
        return Counter((*key, key[-1] + size, len(a), sum(a)) for key, a in found.items())


class ProcessPlan(Plan):
    """Numbers by what a function says."""

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        return orders.key_by(bucket).process(Number()).uid("numbered")

    def expected(self) -> Counter[tuple[Any, ...]]:
        of_key = Counter((u % 3, a % 2 == 0) for rows in self.rows for u, a, _ in rows)
        return Counter((*key, n + 1, 3) for key, count in of_key.items() for n in range(count))


def run(kind: type[Plan], seed: int, phases: list[Phase], swarm: Swarm):
    plan = kind.drawn(random.Random(f"plan {seed}"))
    plan.limits = sizes()
    plan.phases, plan.input_ms, plan.inline_bytes = phases, 1500.0, 0
    plan.settings["checkpoint_tolerated_failures"] = 100
    return World(seed, plan, swarm).execute()


@pytest.mark.parametrize("kind", [WindowPlan, ProcessPlan])
def test_killed_workers_lose_nothing(kind):
    swarm = Swarm(random.Random(1), strikes_={"worker-killed": 1.0}, every_ms=300.0)
    result = run(kind, 1, [Phase(2)], swarm)
    assert result.counts["worker-killed"] > 0
    assert result.counts["checkpoint-completed"] > 1


@pytest.mark.parametrize("kind", [WindowPlan, ProcessPlan])
def test_a_rescale_takes_the_keys_along(kind):
    phases = [Phase(1, "stop"), Phase(2, "stop", from_savepoint=True), Phase(3, "stop"), Phase(2)]
    assert run(kind, 2, phases, Swarm.quiet(random.Random(2))).counts["rescaled"] == 3
