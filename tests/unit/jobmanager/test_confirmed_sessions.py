"""The end of a TaskManager's stream: it counts at once, after a confirmation, or not because another process leads."""

import asyncio
from types import SimpleNamespace

import pytest

from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.leader_lease import RENEWALS, LeaderLease, take_lead
from penstock.checkpoint.memory_store import MemoryStore
from penstock.core.clock import ManualClock
from penstock.core.errors import LeadershipLostError, StorageError
from penstock.jobmanager.confirmed_sessions import ConfirmedSessions
from penstock.jobmanager.leadership import Leadership

TTL_MS = 30


@pytest.fixture
async def scene():
    """A leader with one session, and what was passed on."""
    made = SimpleNamespace(store=MemoryStore("sessions"), clock=ManualClock(), passed=[], failed=[])
    decided = asyncio.Event()
    made.decided = lambda: asyncio.wait_for(decided.wait(), 60)

    def ended(session, reason):
        made.passed.append((session, reason))
        decided.set()

    def failed(error):
        made.failed.append(error)
        decided.set()

    holder = LeaseHolder(id="root", host="h", machine="", pid=1)
    lease = LeaderLease(generation=0, jobmanager_id="a", holder=holder, rest="http://a:1", ttl_ms=TTL_MS)
    leadership = Leadership(made.store, lease, made.clock, lambda _line: None)
    assert await leadership.wait(asyncio.Event())
    made.sessions = ConfirmedSessions(SimpleNamespace(disconnected=ended), leadership, failed)
    made.other = lambda: take_lead(made.store, LeaderLease(generation=0, jobmanager_id="b", holder=holder), 1)
    return made


async def test_an_end_counts_at_once_while_no_renewal_is_late(scene):
    scene.sessions.disconnected("s", "broken")
    assert scene.passed == [("s", "broken")]


async def test_an_end_counts_after_a_late_renewal(scene):
    scene.clock.advance(TTL_MS / RENEWALS)
    scene.sessions.disconnected("s", "broken")
    assert not scene.passed
    await scene.decided()
    assert (scene.passed, scene.failed) == ([("s", "broken")], [])


async def test_the_end_of_a_session_that_another_leader_has_taken_does_not_count(scene):
    scene.clock.advance(TTL_MS / RENEWALS)
    scene.other()
    scene.sessions.disconnected("s", "broken")
    await scene.decided()
    assert isinstance(scene.failed[0], LeadershipLostError)
    assert not scene.passed


async def test_an_end_counts_while_the_store_fails(scene):
    def fails(*_):
        raise StorageError("down")

    scene.clock.advance(TTL_MS / RENEWALS)
    scene.store.fault = fails
    scene.sessions.disconnected("s", "broken")
    await scene.decided()
    assert not scene.failed
