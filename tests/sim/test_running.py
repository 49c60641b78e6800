"""Running aggregates under faults, stops and rescales: every row comes out once, with its key's state as of it."""

from __future__ import annotations

import random
from collections import Counter

import polars as pl
import pytest
from tests.sim.faults import Swarm
from tests.sim.workload import Phase, Plan
from tests.sim.world import World

import penstock as ps


class RunningPlan(Plan):
    """Counts and sums as of each row; twos instead of amounts, since the order of a user's rows is not fixed."""

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        twos = orders.with_columns(two=pl.lit(2, pl.Int64)).key_by("user_id")
        return twos.aggregate(n=ps.count(), total=ps.sum("two"), none=ps.count().where(pl.col("two") > 2)).uid("totals")

    def expected(self) -> Counter[tuple[int, ...]]:
        users = Counter(user for rows in self.rows for user, _, _ in rows)
        return Counter((user, n, 2 * n, 0) for user, count in users.items() for n in range(1, count + 1))


def run(seed: int, phases: list[Phase], swarm: Swarm):
    plan = RunningPlan.drawn(random.Random(f"plan {seed}"))
    plan.phases, plan.input_ms, plan.inline_bytes = phases, 1500.0, 0
    plan.settings["checkpoint_tolerated_failures"] = 100
    return World(seed, plan, swarm).execute()


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_workers_leave_nothing_out_and_nothing_twice(seed):
    swarm = Swarm(random.Random(seed), strikes_={"worker-killed": 1.0}, every_ms=300.0)
    result = run(seed, [Phase(2)], swarm)
    assert result.counts["worker-killed"] > 0
    assert result.counts["checkpoint-completed"] > 1


def test_a_rescale_takes_the_state_along():
    result = run(3, [Phase(1, "stop"), Phase(3, "stop", from_savepoint=True), Phase(2)], Swarm.quiet(random.Random(3)))
    assert result.counts["rescaled"] == 2
