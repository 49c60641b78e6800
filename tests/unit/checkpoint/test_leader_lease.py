"""When a standby takes over, and that the lease and the generations of leaders only move forward."""

import pytest

from penstock.checkpoint.ha_records import newest_generation
from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.leader_lease import (
    LeaderLease,
    LeaseWatch,
    read_lease,
    released,
    renewed,
    take_lead,
    write_lease,
)
from penstock.core.errors import LeadershipLostError, StorageError

TTL_MS = 1_000


def lease(name="a", generation=0, **fields):
    holder = LeaseHolder(id="root", host=name, machine="", pid=1)
    return LeaderLease(generation=generation, jobmanager_id=name, holder=holder, ttl_ms=TTL_MS, **fields)


def looks(watch, *seen):
    """Return the watch's decisions; `seen`: lease, and time at the begin of a read that takes 1 ms."""
    return [watch.lapsed(found, at_ms, at_ms + 1, exited=False) for found, at_ms in seen]


def test_a_lease_that_moves_never_lapses():
    found, watch, seen = lease(generation=1), LeaseWatch(), []
    for at_ms in range(0, 10_000, 600):
        seen.append((found, at_ms))
        found = renewed(found)
    assert not any(looks(watch, *seen))


def test_a_lease_that_stands_still_lapses():
    found = lease(generation=1)
    assert looks(LeaseWatch(), (found, 0), (found, 999), (found, 1_000), (found, 1_001)) == [False] * 3 + [True]


def test_a_read_that_began_before_a_suspension_proves_nothing():
    """The standby itself was suspended for a minute between the question and the answer."""
    found, watch = lease(generation=1), LeaseWatch()
    watch.lapsed(found, 0, 1, exited=False)
    assert not watch.lapsed(found, 100, 60_000, exited=False)
    assert watch.lapsed(found, 60_000, 60_001, exited=False)


@pytest.mark.parametrize("found", [None, released(lease(generation=1))])
def test_nobody_waits_for_a_leader_that_has_ended(found):
    assert looks(LeaseWatch(), (found, 0)) == [True]


def test_nobody_waits_for_a_process_that_has_ended():
    assert LeaseWatch().lapsed(lease(generation=1), 0, 1, exited=True)


@pytest.mark.parametrize("found", [None, released(lease(generation=1)), lease(generation=1)])
def test_a_standby_that_was_faster_gets_the_time_of_a_leader(found):
    watch = LeaseWatch(TTL_MS)
    looks(watch, (found, 0))
    watch.lost(2, 10)
    assert looks(watch, (found, 100), (found, 1_009), (found, 1_110)) == [False, False, True]
    watch.lost(3, 1_020)
    assert looks(watch, (lease(generation=3), 1_100), (lease(generation=3), 2_101)) == [False, True]


def test_one_standby_takes_a_generation(store):
    first, _ = take_lead(store, lease("a"), 0)
    assert first == read_lease(store) == lease("a", 1)
    assert take_lead(store, lease("b"), 0) == (None, 1)
    second, _ = take_lead(store, lease("b"), 1)
    assert (second.generation, read_lease(store).jobmanager_id, newest_generation(store)) == (2, "b", 2)


def test_an_earlier_leader_cannot_renew(store):
    first, _ = take_lead(store, lease("a"), 0)
    take_lead(store, lease("b"), 1)
    for write in (renewed, released):
        with pytest.raises(LeadershipLostError, match="generation 2 has taken over from generation 1"):
            write_lease(store, write(first))
    assert read_lease(store).jobmanager_id == "b"


def test_a_standby_that_stops_between_generation_and_lease_delays_but_blocks_nobody(memory):
    first, _ = take_lead(memory, lease("a"), 0)

    def hook(operation, key, phase):
        if operation == "put" and key == "leader.json" and phase == "before":
            raise StorageError("killed")

    memory.fault = hook
    with pytest.raises(StorageError):
        take_lead(memory, lease("b"), 1)
    memory.fault = lambda *_: None
    assert read_lease(memory) == first
    assert take_lead(memory, lease("c"), 1) == (None, 2)
    third, _ = take_lead(memory, lease("c"), 2)
    assert (third.generation, read_lease(memory).jobmanager_id) == (3, "c")


def test_a_taken_generation_whose_answer_was_lost_delays_only(memory):
    """The first look fails; the standby then finds its own generation, as if another had taken it."""
    failures = [1]

    def hook(operation, key, phase):
        if operation == "put" and key.startswith("leader/") and phase == "after" and failures:
            failures.pop()
            raise StorageError("the line is broken")

    memory.fault = hook
    with pytest.raises(StorageError):
        take_lead(memory, lease("a"), 0)
    assert take_lead(memory, lease("a"), 0) == (None, 1)
    assert take_lead(memory, lease("a"), 1)[0].generation == 2


def test_a_damaged_lease_is_named(store):
    store.put("leader.json", b"{")
    with pytest.raises(StorageError, match=r"leader\.json is damaged.*\(delete it"):
        read_lease(store)
