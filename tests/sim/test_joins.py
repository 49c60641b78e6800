"""Joins under faults, stops and rescales: every pair comes out once."""

from __future__ import annotations

import random
from collections import Counter

import polars as pl
import pytest
from tests.sim.faults import Swarm
from tests.sim.scheduler import SimulationError
from tests.sim.workload import Phase, Plan
from tests.sim.world import World
from tests.support.sizes import given, sizes

import penstock as ps
from penstock.eventtime.windows import sliding_windows
from penstock.state.tables.join_buffer import JoinBuffer
from penstock.state.tiers.range_fetcher import RangeFetcher
from penstock.state.tiers.remote_runs import RemoteSide

_LOWER, _UPPER = -20_000, 15_000


class IntervalPlan(Plan):
    """Even amounts meet odd ones of the same user that are at most 20 ms older or 15 ms newer."""

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        even = orders.filter(pl.col("amount") % 2 == 0).key_by("user_id")
        odd = orders.filter(pl.col("amount") % 2 != 0).select("ts", "amount", buyer="user_id").key_by("buyer")
        return even.interval_join(odd, "-20ms", "15ms").uid("pairs")

    def expected(self) -> Counter[tuple[int, ...]]:
        rows = [row for part in self.rows for row in part]
        return Counter(
            (user, amount, time, other_time, other)
            for user, amount, time in rows
            for other_user, other, other_time in rows
            if user == other_user and amount % 2 == 0 and other % 2 and _LOWER <= other_time - time <= _UPPER
        )


class WindowPlan(Plan):
    """Even amounts meet odd ones of the same user and sliding window."""

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        even, odd = orders.filter(pl.col("amount") % 2 == 0), orders.filter(pl.col("amount") % 2 != 0)
        joined = even.join(odd.select("user_id", "amount")).where("user_id").equal_to("user_id")
        window = ps.Sliding(f"{self.size_ms}ms", f"{self.slide_ms}ms")
        pairs = joined.window(window).uid("pairs")
        return pairs.select("user_id", "window_start", "ts", "amount", "amount_right")

    def expected(self) -> Counter[tuple[int, ...]]:
        rows = [row for part in self.rows for row in part]
        windows = {
            row: sliding_windows(row[2], self.size_ms * 1000, self.slide_ms * 1000) for row in dict.fromkeys(rows)
        }
        return Counter(
            (user, window.start, time, amount, other)
            for user, amount, time in rows
            for other_user, other, other_time in rows
            if user == other_user and amount % 2 == 0 and other % 2
            for window in windows[user, amount, time]
            if window.start <= other_time < window.end
        )


class TemporalPlan(Plan):
    """Even amounts meet the newest odd one of the same user, of which only the time is known."""

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        even = orders.filter(pl.col("amount") % 2 == 0).key_by("user_id")
        odd = orders.filter(pl.col("amount") % 2 != 0).select("user_id", since="ts").key_by("user_id")
        return even.temporal_join(odd).uid("as-of")

    def expected(self) -> Counter[tuple[int, ...]]:
        rows = [row for part in self.rows for row in part]
        found: Counter[tuple[int, ...]] = Counter()
        for user, amount, time in rows:
            before = [t for u, a, t in rows if u == user and a % 2 and t <= time]
            if amount % 2 == 0 and before:
                found[user, amount, time, max(before)] += 1
        return found


@pytest.fixture(autouse=True)
def few_rows_at_a_time(monkeypatch):
    """What comes out at once comes in many pieces, with faults and barriers waiting between them."""
    given(monkeypatch, output_rows=2, join_pairs=2)


def run(kind: type[Plan], seed: int, phases: list[Phase], swarm: Swarm, backend: str = "hashmap"):
    plan = kind.drawn(random.Random(f"plan {seed}"))
    plan.settings["state_backend"] = backend
    plan.phases, plan.input_ms, plan.inline_bytes, plan.limits = phases, 1500.0, 0, sizes()
    plan.settings["checkpoint_tolerated_failures"] = 100
    return World(seed, plan, swarm).execute()


@pytest.mark.parametrize("kind", [IntervalPlan, WindowPlan, TemporalPlan])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_workers_leave_no_pair_out_and_none_twice(kind, seed):
    swarm = Swarm(random.Random(seed), strikes_={"worker-killed": 1.0}, every_ms=300.0)
    result = run(kind, seed, [Phase(2)], swarm)
    assert result.rows > 10
    assert result.counts["worker-killed"] > 0
    assert result.counts["checkpoint-completed"] > 1


@pytest.mark.parametrize("kind", [IntervalPlan, WindowPlan, TemporalPlan])
def test_a_rescale_takes_both_sides_along(kind):
    phases = [Phase(1, "stop"), Phase(2, "stop", from_savepoint=True), Phase(3, "stop"), Phase(2)]
    result = run(kind, 3, phases, Swarm.quiet(random.Random(3)))
    assert result.counts["rescaled"] == 3
    assert result.rows > 10


@pytest.mark.parametrize("kind", [IntervalPlan, WindowPlan, TemporalPlan])
def test_a_side_that_is_lost_on_restore_is_caught(kind, monkeypatch):
    monkeypatch.setattr(JoinBuffer, "load", lambda self, rows: None)
    with pytest.raises(SimulationError):
        run(kind, 3, [Phase(1, "stop"), Phase(2, from_savepoint=True)], Swarm.quiet(random.Random(3)))


@pytest.fixture
def fetched(monkeypatch):
    """How many pieces were fetched when rows of them were asked for; keys leave memory now and then."""
    monkeypatch.setattr(RangeFetcher, "next_fetch", lambda self: None)
    given(monkeypatch, hot_keys=2)
    pieces, bring = [], RangeFetcher.fetch

    def counted(self, missing):
        pieces.extend(missing.tolist())
        bring(self, missing)

    monkeypatch.setattr(RangeFetcher, "fetch", counted)
    return pieces


@pytest.mark.parametrize("kind", [IntervalPlan, WindowPlan, TemporalPlan])
def test_rows_in_the_object_store_are_joined_behind_killed_workers(kind, fetched):
    points = {"upload-delayed": 0.05, "read-fails": 0.02}
    swarm = Swarm(random.Random(1), points, strikes_={"worker-killed": 1.0}, every_ms=300.0)
    result = run(kind, 1, [Phase(2, "stop"), Phase(3, from_savepoint=True)], swarm, "remote")
    assert result.counts["worker-killed"] > 0
    assert result.rows > 10
    assert len(fetched) > 5


@pytest.mark.parametrize("kind", [IntervalPlan, WindowPlan, TemporalPlan])
def test_rows_that_are_not_fetched_are_missed(kind, monkeypatch):
    monkeypatch.setattr(RemoteSide, "put", lambda self, tables, wanted: None)
    monkeypatch.setattr(RangeFetcher, "next_fetch", lambda self: None)
    with pytest.raises(SimulationError):
        run(kind, 3, [Phase(1, "stop"), Phase(2, from_savepoint=True)], Swarm.quiet(random.Random(3)), "remote")
