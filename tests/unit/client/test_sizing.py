"""How many TaskManagers a cluster has: what jobs wait for starts some, and what nobody uses goes, within the bounds."""

import pytest

from penstock.client.sizing import Bounds, ClusterSample, Decision, Sizer, fitted
from penstock.jobmanager.cluster.slots import SlotPool

BOUNDS = Bounds(least=1, most=4, slots=2, timeout_ms=60_000)


def decide(sizer, now_s, *, pending=0, starting=0, leaving=(), **free):
    sample = ClusterSample(pending=pending, starting=starting, free=free, leaving=leaving)
    return sizer.decide(sample, now_s * 1000)


def test_the_least_are_started_and_those_that_are_lost_come_back():
    sizer = Sizer(Bounds(least=3, most=3, slots=2))
    assert decide(sizer, 0) == Decision(3)
    assert decide(sizer, 1, starting=3) == Decision(0)
    assert decide(sizer, 2, a=2, b=0) == Decision(1)


def test_slots_that_are_free_or_come_are_not_started_again():
    sizer = Sizer(BOUNDS)
    assert decide(sizer, 0, pending=5, a=2) == Decision(2)
    assert decide(sizer, 1, pending=5, starting=2, a=2) == Decision(0)
    assert decide(sizer, 2, pending=7, starting=2, a=2) == Decision(1)
    assert decide(sizer, 3, pending=99, starting=1, a=0, b=0) == Decision(1)
    assert decide(sizer, 4, pending=99, a=0, b=0, c=0, d=0) == Decision(0)


def test_what_is_idle_for_the_time_out_goes_and_the_longest_idle_first():
    sizer = Sizer(BOUNDS)
    assert decide(sizer, 0, a=0, b=2, c=2) == Decision(0)
    assert decide(sizer, 10, a=2, b=2, c=1) == Decision(0)
    assert decide(sizer, 59.9, a=2, b=2, c=2) == Decision(0)
    assert decide(sizer, 60, a=2, b=2, c=2) == Decision(0, ("b",))
    assert decide(sizer, 75, a=2, c=2) == Decision(0, ("a",))
    assert decide(sizer, 500, c=2) == Decision(0)


def test_a_job_that_waits_keeps_all_of_them():
    sizer = Sizer(BOUNDS)
    decide(sizer, 0, a=2, b=2)
    assert decide(sizer, 70, pending=9, starting=2, a=2, b=2) == Decision(0)
    assert decide(sizer, 71, a=2, b=2) == Decision(0)
    assert decide(sizer, 131, a=2, b=2) == Decision(0, ("a",))


def test_the_cluster_grows_for_what_an_adaptive_job_declares_and_no_further():
    pool, sizer, there = SlotPool(timeout_ms=100, most=8), Sizer(BOUNDS), []

    def sample():
        free = {name: pool.free_of(name) for name in there}
        return sizer.decide(ClusterSample(pending=pool.pending, starting=0, free=free), 0).start

    there.append("tm0")
    pool.add("tm0", "h", 2)
    assert sample() == 0
    pool.declare("a", 6)
    pool.request("a", 2, 0)
    assert sample() == 2
    for name in ("tm1", "tm2"):
        pool.add(name, "h", 2)
        there.append(name)
    assert sample() == 0, "before it has taken them"
    pool.request("a", 4, 0)
    assert (sample(), pool.free) == (0, 0)


def test_none_are_kept_where_none_have_to_be():
    sizer = Sizer(Bounds(least=0, most=2, slots=2, timeout_ms=10_000))
    assert decide(sizer, 0) == Decision(0)
    assert decide(sizer, 1, pending=3) == Decision(2)
    decide(sizer, 2, a=2, b=2)
    assert decide(sizer, 12, a=2, b=2) == Decision(0, ("a", "b"))


def test_those_that_leave_are_drained_and_replaced_beyond_the_upper_bound():
    sizer = Sizer(Bounds(least=2, most=2, slots=1))
    assert decide(sizer, 0, a=0, leaving=("b",)) == Decision(1, (), ("b",))
    assert decide(sizer, 1, starting=1, pending=1, a=0, leaving=("b",)) == Decision(0, (), ("b",))
    assert decide(sizer, 2, a=0, c=0) == Decision(0)


def test_what_leaves_is_not_released_for_being_idle():
    sizer = Sizer(Bounds(least=0, most=2, slots=1, timeout_ms=1_000))
    decide(sizer, 0, a=1, b=1)
    assert decide(sizer, 5, a=1, leaving=("b",)) == Decision(0, ("a",), ("b",))


@pytest.mark.parametrize(
    ("bounds", "required", "slots", "expected"),
    [
        (Bounds(least=2, most=2), 4, 0, (2, 2, 2)),
        (Bounds(least=2, most=2), 5, 0, (2, 2, 3)),
        (Bounds(least=8, most=8), 3, 0, (3, 3, 1)),
        (Bounds(least=8, most=8), 3, 2, (2, 2, 2)),
        (Bounds(least=2, most=6), 2, 0, (2, 6, 1)),
        (Bounds(least=2, most=6), 1, 1, (1, 6, 1)),
        (Bounds(least=0, most=6), 4, 1, (1, 6, 1)),
    ],
)
def test_the_cluster_of_one_job(bounds, required, slots, expected):
    found = fitted(bounds, required, slots)
    assert (found.least, found.most, found.slots) == expected
