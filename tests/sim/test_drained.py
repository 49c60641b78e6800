"""Drains, and runs that begin from their savepoints: rows behind a drain count as those before it, each once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.sim.faults import Swarm
from tests.sim.workload import Phase, Plan
from tests.sim.world import World

import penstock as ps


class Seen(NamedTuple):
    user_id: int
    amount: int
    time: int


class EachRow(ps.ProcessWindowFunction):
    def process(self, key, ctx, rows) -> Iterator[Seen]:
        for row in rows:
            yield Seen(key, row.amount, ctx.window.start)


class AtItsTime(ps.KeyedProcessFunction):
    """Keeps rows until a timer a millisecond behind them fires."""

    waiting: ps.ListState[tuple[int, int, int]] = ps.list_state()

    def process(self, row, ctx) -> Iterator[Seen]:
        self.waiting.append((ctx.timestamp + 1000, row.amount, row.time))
        ctx.timers.event(ctx.timestamp + 1000)
        return ()

    def on_timer(self, timestamp, ctx):
        for due, amount, time in self.waiting:
            if due == timestamp:
                yield Seen(ctx.key, amount, time)
        self.waiting.set([row for row in self.waiting if row[0] != timestamp])


class DrainPlan(Plan):
    """All rows of each window, once it is over; behind another shuffle they wait for a timer."""

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        windows = orders.key_by("user_id").window(ps.Tumbling(f"{self.size_ms}ms"))
        rows = windows.process(EachRow(), returns=Seen).uid("windows")
        return rows.key_by("user_id").process(AtItsTime(), returns=Seen).uid("totals")

    def expected(self) -> Counter[tuple[int, ...]]:
        size = self.size_ms * 1000
        return Counter((user, amount, time // size * size) for rows in self.rows for user, amount, time in rows)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_behind_a_drain_are_not_late_and_come_out_once(seed):
    plan = DrainPlan.drawn(random.Random(f"plan {seed}"))
    plan.phases = [Phase(2, "drain"), Phase(3, "drain", from_savepoint=True), Phase(2, from_savepoint=True)]
    plan.input_ms, plan.inline_bytes = 1500.0, 0
    plan.settings["checkpoint_tolerated_failures"] = 100
    result = World(seed, plan, Swarm.quiet(random.Random(seed))).execute()
    assert result.counts["from-savepoint"] > 0
