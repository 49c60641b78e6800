"""The control stream over a real socket: registration, order, reconnection, both ends closing."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.proxy import Proxy
from tests.support.waiting import until

from penstock.core.errors import PenstockError
from penstock.rpc import messages as msg
from penstock.rpc.probes import ProbeAnswer
from penstock.rpc.stream import JOINED_BYTES, ReconnectPolicy, RpcServer, SendQueue, Session, TaskManagerLink

QUICK = ReconnectPolicy(first_delay_ms=5, max_delay_ms=10)


class Recorder:
    """A JobManager that registers everybody and remembers what it hears."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.reports: asyncio.Queue = asyncio.Queue()
        self.gone: asyncio.Queue = asyncio.Queue()

    def connected(self, session):
        self.sessions.append(session)
        session.send(msg.Registered(jobmanager_id="jm", generation=1, heartbeat_interval_ms=500, worker_lease_ms=4000))

    def received(self, session, report):
        self.reports.put_nowait(report)

    def disconnected(self, session, reason):
        self.gone.put_nowait((session, reason))


@pytest.fixture
async def recorder():
    return Recorder()


@pytest.fixture
async def server(recorder):
    server = RpcServer(recorder)
    await server.start(lambda: ProbeAnswer(generation=1, renewals=1, age_ms=0.0))
    yield server
    await server.stop()


@pytest.fixture
async def link_of(server):
    """Return a maker of running links; yields (link, queue of commands, queue of disconnects)."""
    running = []

    async def make(policy=QUICK, address=None):
        commands, lost = asyncio.Queue(), asyncio.Queue()
        link = TaskManagerLink(
            address or server.address,
            lambda: msg.RegisterTaskManager(taskmanager_id="tm", host="h", pid=1, slots=2),
            commands.put_nowait,
            lost.put_nowait,
            policy,
        )
        running.append((link, asyncio.create_task(link.run())))
        return link, commands, lost

    yield make
    for link, task in running:
        link.close()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 60)


async def soon(awaitable):
    return await asyncio.wait_for(awaitable, 60)


async def test_registers_and_carries_messages_both_ways_in_order(recorder, link_of):
    link, commands, _ = await link_of()
    assert isinstance(await soon(commands.get()), msg.Registered)
    for number in range(100):
        assert link.send(msg.Heartbeat(taskmanager_id="tm", sequence=number))
    heard = [(await soon(recorder.reports.get())).sequence for _ in range(100)]
    assert heard == list(range(100))
    for number in range(100):
        assert recorder.sessions[0].send(msg.HeartbeatAck(sequence=number))
    assert [(await soon(commands.get())).sequence for _ in range(100)] == list(range(100))


async def test_a_large_message_passes(recorder, link_of):
    link, commands, _ = await link_of()
    await soon(commands.get())
    assert link.send(msg.FromWorker(taskmanager_id="tm", worker_id="w", report=b"x" * (20 << 20)))
    assert len((await soon(recorder.reports.get())).report) == 20 << 20


async def test_closing_the_link_is_one_disconnect(recorder, link_of):
    link, commands, _ = await link_of()
    await soon(commands.get())
    link.close()
    session, reason = await soon(recorder.gone.get())
    assert session is recorder.sessions[0]
    assert reason.startswith("the connection broke")
    assert not link.send(msg.Heartbeat(taskmanager_id="tm", sequence=1))


async def test_a_dropped_session_is_dialled_anew(recorder, link_of):
    link, commands, lost = await link_of()
    await soon(commands.get())
    recorder.sessions[0].close()
    assert await soon(lost.get())
    assert isinstance(await soon(commands.get()), msg.Registered)
    assert len(recorder.sessions) == 2
    assert link.connected


async def test_a_restarted_server_is_found_again(recorder, server, link_of):
    _, commands, lost = await link_of()
    await soon(commands.get())
    port = int(server.address.rpartition(":")[2])
    await server.stop()
    await soon(lost.get())
    again = RpcServer(recorder, port=port)
    await again.start()
    try:
        assert isinstance(await soon(commands.get()), msg.Registered)
    finally:
        await again.stop()


async def test_a_stream_whose_other_end_is_gone_unheard_is_given_up(server, recorder, link_of):
    with Proxy(server.address) as proxy:
        link, commands, lost = await link_of(address=proxy.address)
        assert isinstance(await soon(commands.get()), msg.Registered)
        link.expect(100)
        recorder.sessions[-1].send(msg.HeartbeatAck(sequence=1))
        await soon(commands.get())  # from the next message on
        proxy.begin("half-open")
        assert "was silent for 0.1 s" in await soon(lost.get())
        assert isinstance(await soon(commands.get()), msg.Registered), "it has registered again"


async def test_a_dial_that_brings_no_answer_is_made_again(server, link_of):
    with Proxy(server.address) as proxy:
        proxy.begin("black-hole")
        policy = ReconnectPolicy(first_delay_ms=5, max_delay_ms=10, answer_ms=100, max_answer_ms=200)
        _, commands, _ = await link_of(policy, address=proxy.address)
        await until(lambda: proxy.accepted >= 2, "a second dial")
        proxy.end()
        assert isinstance(await soon(commands.get()), msg.Registered)


async def test_listed_jobmanagers_are_tried_in_turn(server, link_of, unused_port):
    link, commands, _ = await link_of(address=f"127.0.0.1:{unused_port},{server.address}")
    assert isinstance(await soon(commands.get()), msg.Registered)
    assert link.address == server.address


async def test_a_silent_jobmanager_is_left_for_another_that_leads(server, link_of):
    """It accepts connections and says nothing, as a suspended one does; no time limit is near."""
    with Proxy(server.address) as proxy:
        proxy.begin("black-hole")
        policy = ReconnectPolicy(first_delay_ms=5, max_delay_ms=10, answer_ms=600_000)
        link, commands, _ = await link_of(policy, address=f"{proxy.address},{server.address}")
        assert isinstance(await soon(commands.get()), msg.Registered)
        assert link.address == server.address


async def test_a_suspended_jobmanager_is_not_taken_for_a_leader(server, link_of):
    policy = ReconnectPolicy(first_delay_ms=5, max_delay_ms=10, probe_ms=100)
    with Proxy(server.address) as proxy:
        proxy.begin("black-hole")
        link, commands, _ = await link_of(policy, address=f"{server.address},{proxy.address}")
        assert isinstance(await soon(commands.get()), msg.Registered)
        assert await link._jobmanagers.other_leader(server.address) == ""


async def test_an_unreachable_jobmanager_is_named_in_the_error():
    link = TaskManagerLink(
        "127.0.0.1:1",
        lambda: msg.RegisterTaskManager(taskmanager_id="tm", host="h", pid=1, slots=1),
        lambda _command: None,
        policy=ReconnectPolicy(first_delay_ms=1, max_delay_ms=1, give_up_after_ms=0),
    )
    told = []
    link.on_waiting = told.append
    with pytest.raises(PenstockError, match=r"127\.0\.0\.1:1"):
        await soon(link.run())
    assert told[0].startswith("waiting for the control port of a JobManager at 127.0.0.1:1: ")


async def test_a_full_send_queue_closes_the_stream_instead_of_growing():
    queue = SendQueue(limit=2)
    assert queue.put(b"1")
    assert queue.put(b"2")
    assert not queue.put(b"3")
    assert queue.closed
    assert [await queue.get(), await queue.get()] == [msg.joined([b"1", b"2"]), None]


async def test_waiting_messages_are_sent_together_up_to_a_size():
    queue, large = SendQueue(), b"x" * JOINED_BYTES
    for message in (b"1", b"2", large, b"3"):
        assert queue.put(message)
    found = [await queue.get() for _ in range(3)]
    assert found == [msg.joined(group) for group in ([b"1", b"2"], [large], [b"3"])]
    later = asyncio.create_task(queue.get())
    assert queue.put(b"4")
    assert await soon(later) == msg.joined([b"4"])
