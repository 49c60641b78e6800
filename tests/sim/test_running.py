"""Running aggregates under faults, stops and rescales: every row comes out once, with its key's state as of it."""

from __future__ import annotations

import random
from collections import Counter

import polars as pl
import pytest
from tests.sim.faults import Swarm
from tests.sim.workload import Phase, Plan
from tests.sim.world import World
from tests.support.sizes import given, sizes

import penstock as ps
from penstock.state.tiers.range_fetcher import RangeFetcher
from penstock.state.tiers.remote_panes import RemotePanes


class RunningPlan(Plan):
    """Counts and sums as of each row; twos instead of amounts, since the order of a user's rows is not fixed."""

    ttl: str | None = None

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        twos = orders.with_columns(two=pl.lit(2, pl.Int64)).key_by("user_id")
        of_two = ps.count().where(pl.col("two") > 2)
        return twos.aggregate(n=ps.count(), total=ps.sum("two"), none=of_two, ttl=self.ttl).uid("totals")

    def expected(self) -> Counter[tuple[int, ...]]:
        users = Counter(user for rows in self.rows for user, _, _ in rows)
        return Counter((user, n, 2 * n, 0) for user, count in users.items() for n in range(1, count + 1))


class KeptPlan(RunningPlan):
    """One row of each user, whichever comes first."""

    def totals(self, orders: ps.DataStream) -> ps.DataStream:
        users = orders.with_columns(place=pl.lit(0, pl.Int64)).select("user_id", "place").key_by("user_id")
        return users.deduplicate(keep="first", by="place", ttl=self.ttl).uid("totals")

    def expected(self) -> Counter[tuple[int, ...]]:
        return Counter({(user, 0): 1 for user in {user for rows in self.rows for user, _, _ in rows}})


class Numbered(Counter):
    """As many rows of each user, numbered from 1, and anew whenever the time-to-live was over."""

    def __eq__(self, found: object) -> bool:
        assert isinstance(found, Counter)
        wanted = Counter(user for user, *_ in self.elements())
        #: How often somebody began anew.
        self.anew = sum(times for (_, n, *_), times in found.items() if n == 1) - len(wanted)
        follow = all(n == 1 or found[user, n - 1, 2 * n - 2, 0] >= times for (user, n, *_), times in found.items())
        sums = all(row[2:] == (2 * row[1], 0) for row in found)
        return follow and sums and Counter(user for user, *_ in found.elements()) == wanted

    __hash__ = None


class BriefPlan(RunningPlan):
    """Users are forgotten now and then."""

    ttl = "60ms"
    numbered: Numbered

    def expected(self) -> Counter[tuple[int, ...]]:
        self.numbered = Numbered(super().expected())
        return self.numbered


def drawn(seed: int, phases: list[Phase], made: type[RunningPlan] = RunningPlan) -> RunningPlan:
    plan = made.drawn(random.Random(f"plan {seed}"))
    plan.limits = sizes()
    plan.phases, plan.input_ms, plan.inline_bytes = phases, 1500.0, 0
    plan.settings["checkpoint_tolerated_failures"] = 100
    return plan


def run(seed: int, phases: list[Phase], swarm: Swarm):
    return World(seed, drawn(seed, phases), swarm).execute()


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_workers_leave_nothing_out_and_nothing_twice(seed):
    swarm = Swarm(random.Random(seed), strikes_={"worker-killed": 1.0}, every_ms=300.0)
    result = run(seed, [Phase(2)], swarm)
    assert result.counts["worker-killed"] > 0
    assert result.counts["checkpoint-completed"] > 1


def test_a_rescale_takes_the_state_along():
    result = run(3, [Phase(1, "stop"), Phase(3, "stop", from_savepoint=True), Phase(2)], Swarm.quiet(random.Random(3)))
    assert result.counts["rescaled"] == 2


@pytest.fixture
def moved(monkeypatch):
    """How many pieces were fetched when they were asked for, and regions dropped; keys leave memory now and then."""
    monkeypatch.setattr(RangeFetcher, "next_fetch", lambda self: None)
    given(monkeypatch, hot_keys=8)
    counts = Counter()
    fetch = RemotePanes.fetch

    def counted(self, *arguments):
        before = self.fetcher.fetched_ranges, self.fetcher.dropped_regions
        fetch(self, *arguments)
        counts["pieces"] += self.fetcher.fetched_ranges - before[0]
        counts["dropped"] += self.fetcher.dropped_regions - before[1]

    monkeypatch.setattr(RemotePanes, "fetch", counted)
    return counts


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("made", "ttl"), [(RunningPlan, "1h"), (KeptPlan, "1h"), (BriefPlan, "60ms")])
def test_state_with_a_time_to_live_comes_back_from_the_object_store_behind_killed_workers(made, ttl, seed, moved):
    points = {"upload-delayed": 0.05, "read-fails": 0.02}
    swarm = Swarm(random.Random(seed), points, strikes_={"worker-killed": 1.0}, every_ms=300.0)
    plan = drawn(seed, [Phase(2, "stop"), Phase(3, from_savepoint=True)], made)
    chance = random.Random(seed)
    plan.ttl, plan.rows = ttl, [[(chance.randrange(40), *row[1:]) for row in rows] for rows in plan.rows]
    plan.settings |= {"state_backend": "remote", "remote_local_bytes": 1}
    result = World(seed, plan, swarm).execute()
    assert result.counts["worker-killed"] > 0
    assert moved["pieces"] > 5
    assert moved["dropped"] > 0
    assert made is not BriefPlan or plan.numbered.anew > 0
