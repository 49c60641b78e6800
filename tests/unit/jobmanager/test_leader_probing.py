"""A standby's probes: whom it asks and when, and that it replaces a leader that stops before its lease ends."""

import asyncio

import pytest

from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.leader_lease import LeaderLease
from penstock.checkpoint.leader_probes import ProbeWatch
from penstock.checkpoint.memory_store import MemoryStore
from penstock.core.clock import ManualClock
from penstock.core.errors import PenstockError
from penstock.jobmanager.leader_probing import LeaderProbing
from penstock.jobmanager.leadership import Leadership
from penstock.rpc.probes import ProbeAnswer

#: A tick is 1 ms.
TTL_MS = 24


class FakeProber:
    """Leaders that answer when the test lets them."""

    def __init__(self):
        self.asked, self.closed = [], 0
        self.answer = lambda: ProbeAnswer(1, 1, 0.0)
        self.silent = False

    async def ask(self, address, timeout_s):
        self.asked.append(address)
        if self.silent:
            await asyncio.Event().wait()
        return self.answer()

    async def close(self):
        self.closed += 1


class ReadClock:
    """A clock that the test moves once the processes have read it: none is late."""

    def __init__(self):
        self._now, self._reads = ManualClock(), 0

    def monotonic_ms(self):
        self._reads += 1
        return self._now.monotonic_ms()

    async def pass_ms(self, duration_ms, reads=8, done=lambda: False):
        self._now.advance(duration_ms)
        self._reads = 0
        while self._reads < reads and not done():  # noqa: ASYNC110 - the processes read it in steps of the loop
            await asyncio.sleep(0)


class Probes:
    """Probes that run, on a clock that the test moves."""

    def __init__(self):
        self.prober, self.clock, self.watch, self.log = FakeProber(), ReadClock(), ProbeWatch(TTL_MS), []
        self.address, self.ended = "", asyncio.Event()
        probing = LeaderProbing(self.prober, self.clock, self.log.append)
        self.task = asyncio.create_task(probing.run(self.watch, lambda: self.address, self.ended))

    async def asks(self, *addresses):
        """Let time pass until these have been asked since the last time."""
        while len(self.prober.asked) < len(addresses):
            await self.clock.pass_ms(1, 2)
        assert self.prober.asked == list(addresses)
        self.prober.asked.clear()

    async def end(self):
        self.ended.set()
        await asyncio.wait_for(self.task, 60)


@pytest.fixture
async def probes():
    probes = Probes()
    yield probes
    await probes.end()
    assert probes.prober.closed


async def test_the_present_leader_is_asked_one_question_at_a_time(probes):
    await probes.clock.pass_ms(20)
    assert not probes.prober.asked, "no leader is known"
    probes.address = "a:1"
    await probes.asks("a:1", "a:1", "a:1")
    probes.prober.silent = True
    await probes.asks("a:1")
    await probes.clock.pass_ms(20)
    assert not probes.prober.asked, "the last question has no answer yet"
    probes.address = "b:1"
    await probes.asks("b:1")


async def test_a_leader_without_an_answer_is_reported_once(probes):
    def refuse():
        raise PenstockError("a:1 answers no probe: refused")

    probes.address, answer = "a:1", probes.prober.answer
    for times in (1, 2):
        probes.prober.answer = refuse
        await probes.asks("a:1", "a:1", "a:1")
        assert probes.log == ["standby: a:1 answers no probe: refused"] * times
        probes.prober.answer = answer
        await probes.asks("a:1", "a:1")


async def test_a_leader_that_stops_is_replaced_before_its_lease_ends(monkeypatch):
    async def at_once(call, *arguments):
        return call(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)  # no read takes longer than another
    memory, clock, prober, log = MemoryStore(), ReadClock(), FakeProber(), []

    def process(name, prober=None):
        holder = LeaseHolder(id="root", host=name, machine="", pid=1)
        mine = LeaderLease(generation=0, jobmanager_id=name, holder=holder, rest=f"http://{name}:1", ttl_ms=TTL_MS)
        return Leadership(memory, mine, clock, log.append, prober=prober)

    first, second = process("a"), process("b", prober)
    prober.answer = first.answer
    assert await first.wait(asyncio.Event())
    await first.publish("a:2")
    waiting = asyncio.create_task(second.wait(asyncio.Event()))
    for _ in range(5):
        for _ in range(8):
            await clock.pass_ms(1)
        await first.renew()
    assert set(prober.asked) == {"a:2"}
    assert not waiting.done()
    prober.silent, stopped_ms = True, clock.monotonic_ms()
    while not waiting.done():
        await clock.pass_ms(1, done=waiting.done)
    assert second.generation == 2
    assert clock.monotonic_ms() - stopped_ms < TTL_MS - 8
    assert prober.closed
