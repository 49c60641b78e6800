"""Rows that wait for remote state, under kills and rescales: each comes out once, also those that a barrier took along.

Each plan has another kind of state; the main swarm has windows of aggregates.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.sim.faults import Swarm
from tests.sim.test_process import ByEntries, ProcessPlan
from tests.sim.test_running import RunningPlan
from tests.sim.test_window_rows import RowsPlan
from tests.sim.workload import Phase, Plan
from tests.sim.world import World
from tests.support.sizes import TINY

import penstock as ps


class EntriesPlan(ProcessPlan):
    """Windows by hand, over maps and lists."""

    function = ByEntries


class SessionPlan(Plan):
    """Sessions with an odd gap: rows at even times have no such distance, for which their order would matter."""

    @property
    def gap_ms(self) -> int:
        return self.size_ms // 4 | 1

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        sessions = orders.key_by("user_id").window(ps.Session(f"{self.gap_ms}ms"))
        return sessions.aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")

    def expected(self) -> Counter[tuple[int, ...]]:
        found: Counter[tuple[int, ...]] = Counter()
        gap = 1000 * self.gap_ms
        for user in {user for rows in self.rows for user, _, _ in rows}:
            mine = sorted((time, amount) for rows in self.rows for one, amount, time in rows if one == user)
            while mine:
                last = next((n for n in range(1, len(mine)) if mine[n][0] - mine[n - 1][0] > gap), len(mine))
                session, mine = mine[:last], mine[last:]
                total = sum(amount for _, amount in session)
                found[user, session[0][0], session[-1][0] + gap, len(session), total] += 1
        return found


@pytest.mark.parametrize("made", [RunningPlan, EntriesPlan, RowsPlan, SessionPlan])
def test_rows_that_wait_for_their_state_come_out_once(made):
    plan = made.drawn(random.Random("plan 1"))
    plan.rows, plan.bound_ms = [[(*row[:2], 2 * row[2]) for row in rows] for rows in plan.rows], 2 * plan.bound_ms
    plan.limits, plan.fetch_ms, plan.slide_ms = TINY, 60.0, plan.size_ms
    plan.input_ms, plan.inline_bytes = 1500.0, 0
    plan.phases = [Phase(2, "cancel"), Phase(3, "cancel"), Phase(1)]
    plan.settings |= {
        "state_backend": "remote",
        "unaligned_checkpoints": True,
        "checkpoint_interval_ms": 40,
        "checkpoint_tolerated_failures": 100,
    }
    swarm = Swarm(random.Random(1), strikes_={"worker-killed": 1.0}, every_ms=300.0)
    result = World(1, plan, swarm).execute()
    assert result.counts["worker-killed"] > 0
    assert result.counts["waiting-rows-taken"] > 0
    assert result.counts["overtaken-rows-restored"] > 0
