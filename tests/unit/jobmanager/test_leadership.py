"""One process's part in the election: it waits, leads, renews, and notices that another one leads."""

import asyncio

import pytest

from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.leader_lease import RENEWALS, LeaderLease, read_lease
from penstock.checkpoint.memory_store import MemoryStore
from penstock.checkpoint.standby_records import (
    STANDBY_TTL_MS,
    StandbyRecord,
    StandbyWatch,
    read_standbys,
    write_standby,
)
from penstock.core.clock import ManualClock
from penstock.core.errors import LeadershipLostError, StorageError
from penstock.jobmanager.leadership import Leadership

TTL_MS = 30


@pytest.fixture
def memory():
    return MemoryStore("leadership")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def process(memory, clock):
    """Return a maker of processes; the log of all of them is `process.log`."""

    def make(name):
        holder = LeaseHolder(id="root", host=name, machine="", pid=1)
        lease = LeaderLease(generation=0, jobmanager_id=name, holder=holder, rest=f"http://{name}:1", ttl_ms=TTL_MS)
        return Leadership(memory, lease, clock, make.log.append)

    make.log = []
    return make


async def elapse(clock, condition, step_ms=TTL_MS / 10):
    """Let the clock of the processes go on while they look, until the condition holds."""
    while not condition():
        clock.advance(step_ms)
        await asyncio.sleep(0)


async def test_the_first_leads_and_a_standby_follows_its_release(memory, clock, process):
    first, second, stopping = process("a"), process("b"), asyncio.Event()
    assert await first.wait(stopping)
    await first.publish("a:2")
    waiting = asyncio.create_task(second.wait(stopping))
    await elapse(clock, lambda: process.log)
    assert process.log == ["standby: http://a:1 leads, generation 1"]
    assert second.leader.rpc == "a:2"
    await first.release()
    assert await waiting
    assert (second.generation, read_lease(memory).jobmanager_id) == (2, "b")


async def test_a_leader_that_does_not_renew_is_replaced_and_notices(memory, clock, process):
    first, second, failed = process("a"), process("b"), []
    assert await first.wait(asyncio.Event())
    waiting = asyncio.create_task(second.wait(asyncio.Event()))
    await elapse(clock, waiting.done)
    assert (waiting.result(), second.generation) == (True, 2)
    clock.advance(TTL_MS)
    with pytest.raises(LeadershipLostError, match="generation 2 has taken over"):
        await first.confirm()
    assert first.leader.jobmanager_id == "b"
    await first.keep(asyncio.Event(), failed.append)
    assert isinstance(failed[0], LeadershipLostError)
    await first.release()
    assert not read_lease(memory).released


async def test_a_confirmed_leader_asks_nobody(memory, clock, process):
    leader, operations = process("a"), []
    assert await leader.wait(asyncio.Event())
    memory.fault = lambda operation, *_: operations.append(operation)
    clock.advance(TTL_MS / RENEWALS - 1)
    await leader.confirm()
    assert not operations
    clock.advance(1)
    await leader.confirm()
    assert "put" in operations


async def test_a_store_that_fails_ends_the_first_look_and_delays_later_ones(memory, clock, process):
    def broken(*_):
        raise StorageError("down")

    first, second, stopping = process("a"), process("b"), asyncio.Event()
    assert await first.wait(asyncio.Event())
    memory.fault = broken
    with pytest.raises(StorageError):
        await second.wait(stopping)
    memory.fault = lambda *_: None
    waiting = asyncio.create_task(second.wait(stopping))
    await elapse(clock, lambda: process.log)
    memory.fault = broken
    await elapse(clock, lambda: len(process.log) > 1)
    assert process.log[-1] == "standby: cannot read or take the lease: down"
    stopping.set()
    assert not await waiting


def names(records):
    return [record.holder.host for record in records]


async def test_the_leader_knows_its_standbys_until_they_end(memory, clock, process):
    first, second, third = process("a"), process("b"), process("c")
    assert await first.wait(asyncio.Event())
    ends, stopping = asyncio.Event(), asyncio.Event()
    waiting = [asyncio.create_task(second.wait(ends)), asyncio.create_task(third.wait(asyncio.Event()))]
    await elapse(clock, lambda: len(read_standbys(memory)) == 2, 0)
    watching = asyncio.create_task(first.watch_standbys(stopping))
    await elapse(clock, lambda: first.standbys, 0)
    assert names(first.standbys) == ["b", "c"]
    assert [record.rest for record in first.standbys] == ["http://b:1", "http://c:1"]
    ends.set()
    assert not await waiting[0]
    assert names(read_standbys(memory)) == ["c"], "the one that ended has deleted its record"
    stopping.set()
    await watching
    await first.release()
    assert await waiting[1]
    leading = asyncio.create_task(third.watch_standbys(ends := asyncio.Event()))
    await elapse(clock, lambda: not read_standbys(memory), 0)
    ends.set()
    await leading


async def test_a_standby_that_cannot_write_its_record_still_waits_to_lead(memory, clock, process):
    asked = []

    def refused(operation, key, _phase):
        asked.append(key)
        if operation == "put" and key.startswith("standbys/"):
            raise StorageError("no room")

    first, second = process("a"), process("b")
    assert await first.wait(asyncio.Event())
    memory.fault = refused
    waiting = asyncio.create_task(second.wait(asyncio.Event()))
    await elapse(clock, lambda: process.log, 0)
    assert process.log[0].endswith("leads, generation 1; `penstock cluster status` does not show this standby: no room")
    several = len(asked) + 10
    await elapse(clock, lambda: len(asked) > several, 0)
    assert len(process.log) == 1, "the same text is logged once"
    await first.release()
    assert await waiting


def record(name, renewals=1):
    return StandbyRecord(
        jobmanager_id=name, holder=LeaseHolder(id="root", host=name, machine="", pid=1), renewals=renewals
    )


def test_a_standby_whose_renewals_stand_still_is_not_shown_and_is_shown_again_when_they_move():
    watch = StandbyWatch()
    assert watch.seen([record("b"), record("a")], 0) == ()
    assert names(watch.live) == ["a", "b"]
    assert watch.seen([record("a", 2), record("b")], STANDBY_TTL_MS - 1) == ()
    assert watch.seen([record("a", 2), record("b")], STANDBY_TTL_MS) == ("b",)
    assert names(watch.live) == ["a"]
    assert watch.seen([record("a", 2), record("b", 2)], STANDBY_TTL_MS + 1) == ()
    assert names(watch.live) == ["a", "b"]


def test_a_standby_whose_process_has_ended_is_not_shown():
    watch = StandbyWatch()
    assert watch.seen([record("a"), record("b")], 0, {"a"}) == ("a",)
    assert names(watch.live) == ["b"]


def test_a_damaged_record_is_named(memory):
    write_standby(memory, record("a"))
    memory.put("standbys/b.json", b"{")
    with pytest.raises(StorageError, match=r"standbys/b\.json is damaged: .*\(delete it"):
        read_standbys(memory)
