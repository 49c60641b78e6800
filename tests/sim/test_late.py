"""Late rows put aside, under faults: what a window took and what came late are together the whole input, once."""

from __future__ import annotations

import random
from collections import Counter

import polars as pl
import pytest
from tests.sim.faults import Swarm
from tests.sim.workload import Phase, Plan
from tests.sim.world import World

import penstock as ps

_HOUR = 3_600_000_000


class LatePlan(Plan):
    """Rows more out of order than the watermarks allow; a second window, open to the end, adds both outputs up."""

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        window = ps.Sliding(f"{self.size_ms}ms", f"{self.size_ms}ms")
        amounts = {"n": ps.count(), "total": ps.sum("amount")}
        first = orders.key_by("user_id").window(window).late_to("late").aggregate(**amounts).uid("totals")
        one = pl.lit(1).cast(pl.Int64)
        late = first.side_output("late").select("user_id", n=one, total=pl.col("amount") + 0)
        both = first.select("user_id", n=pl.col("n") + 0, total=pl.col("total") + 0).union(late)
        again = both.key_by("user_id").window(ps.Tumbling("1h"))
        return again.aggregate(ps.sum("n").alias("n"), ps.sum("total").alias("total")).uid("sums")

    def expected(self) -> Counter[tuple[int, ...]]:
        amounts: dict[int, list[int]] = {}
        for user, amount, _ in (row for rows in self.rows for row in rows):
            amounts.setdefault(user, []).append(amount)
        return Counter((user, 0, _HOUR, len(a), sum(a)) for user, a in amounts.items())


def plan(seed: int) -> LatePlan:
    drawn = LatePlan.drawn(random.Random(f"plan {seed}"))
    chance = random.Random(seed)
    drawn.rows = [[(u, a, t - chance.choice([0, 0, 90_000])) for u, a, t in rows] for rows in drawn.rows]
    drawn.bound_ms, drawn.size_ms, drawn.slide_ms = 0, 20, 20
    drawn.phases, drawn.input_ms, drawn.inline_bytes = [Phase(1, "stop"), Phase(2, from_savepoint=True)], 1500.0, 0
    drawn.settings["checkpoint_tolerated_failures"] = 100
    return drawn


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_late_row_is_lost_or_doubled_when_workers_are_killed(seed):
    swarm = Swarm(random.Random(seed), strikes_={"worker-killed": 1.0}, every_ms=300.0)
    result = World(seed, plan(seed), swarm).execute()
    assert result.counts["worker-killed"] > 0
