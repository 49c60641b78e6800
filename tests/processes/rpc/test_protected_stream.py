"""Who gets a control stream: the cluster's secret and certificate, or nobody."""

import asyncio
from dataclasses import replace

import grpc
import pytest
from grpc import aio
from tests.support.waiting import DEADLINE_S

from penstock.cli.start.certs import certs
from penstock.config.security import Security, load_security
from penstock.core.clock import ManualClock
from penstock.core.errors import PenstockError
from penstock.core.secrets import Secret
from penstock.rpc import admission
from penstock.rpc import messages as msg
from penstock.rpc.admission import SERVICE
from penstock.rpc.authentication import Greeting
from penstock.rpc.stream import METHOD, PATH, ReconnectPolicy, RpcServer, TaskManagerLink

IMPATIENT = ReconnectPolicy(first_delay_ms=5, max_delay_ms=10, give_up_after_ms=1_000, authentication_timeout_ms=50)
PATIENT = ReconnectPolicy(first_delay_ms=1, max_delay_ms=1, starting_ms=0)
REGISTRATION = msg.RegisterTaskManager(taskmanager_id="tm", host="h", pid=1, slots=2)
PLAIN = Security(secret=Secret("s" * 32))


class Recorder:
    def __init__(self):
        self.sessions, self.log = [], []

    def connected(self, session):
        self.sessions.append(session)
        session.send(msg.Registered(jobmanager_id="jm", generation=1, heartbeat_interval_ms=500, worker_lease_ms=4000))

    def received(self, session, report):
        raise AssertionError(report)

    def disconnected(self, session, reason):
        pass


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """The folder of one cluster, and that of another."""
    folders = [tmp_path_factory.mktemp(name) for name in ("ours", "theirs")]
    for folder in folders:
        certs(folder, host=None, days=1, client_certificates=True)
    return [load_security({}, str(folder)) for folder in folders]


async def meet(ours, theirs):
    """Let a TaskManager dial; return the server's record and the link's error, or None when it was let in."""
    recorder = Recorder()
    server = RpcServer(recorder, security=ours, log=recorder.log.append)
    await server.start()
    registered = asyncio.Event()
    link = TaskManagerLink(
        server.address, lambda: REGISTRATION, lambda _command: registered.set(), policy=IMPATIENT, security=theirs
    )
    running, waiting = asyncio.create_task(link.run()), asyncio.create_task(registered.wait())
    try:
        await asyncio.wait((running, waiting), timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        return recorder, running.exception() if running.done() else None
    finally:
        waiting.cancel()
        link.close()
        await asyncio.gather(running, return_exceptions=True)
        await server.stop()


async def test_one_secret():
    recorder, error = await meet(PLAIN, PLAIN)
    assert error is None
    assert len(recorder.sessions) == 1


@pytest.mark.parametrize("secret", ["", "t" * 32])
async def test_another_secret(secret):
    recorder, error = await meet(PLAIN, Security(secret=Secret(secret)))
    assert not recorder.sessions
    assert "a different cluster secret" in str(error)


async def test_one_certificate(secured):
    ours, _ = secured
    recorder, error = await meet(ours, ours)
    assert error is None
    assert len(recorder.sessions) == 1


async def test_other_certificates(secured):
    ours, theirs = secured
    client = ours.cluster.certificate.parent / "client.pem"
    of_a_client = replace(ours.cluster, certificate=client, key=client.with_suffix(".key"))
    for security in (
        replace(ours, cluster=None),  # none
        replace(theirs, secret=ours.secret),  # of another CA
        replace(ours, cluster=replace(theirs.cluster, ca=ours.cluster.ca)),  # of another CA, though it believes ours
        replace(ours, cluster=of_a_client),  # of our CA, for a client of REST
    ):
        recorder, error = await meet(ours, security)
        assert not recorder.sessions
        assert isinstance(error, PenstockError)
    assert "its certificate is not the cluster's" in str(error)
    assert "its certificate is not the cluster's" in recorder.log[-1]


async def test_a_jobmanager_that_cannot_prove_itself_gets_no_registration(secured):
    """One that took the port while the JobManager was away could start workers."""
    ours, theirs = secured
    recorder, error = await meet(replace(theirs, secret=ours.secret), ours)
    assert not recorder.sessions
    assert error is not None


class Forger:
    """Speaks to the port without the link."""

    def __init__(self, address):
        self.channel = aio.insecure_channel(address)
        self.call = self.channel.stream_stream(PATH)()

    async def send(self, *messages):
        """Send each message after the answer to the one before; return the status of the end, and what came.

        A message that is written after the end has come would have grpc forget the status.
        """
        answers = []
        try:
            for message in messages[:-1]:
                await self.call.write(message)
                if (answer := await self.call.read()) is aio.EOF:
                    return await self.call.code(), answers
                answers.append(answer)
            for message in messages[-1:]:
                await self.call.write(message)
            while (answer := await self.call.read()) is not aio.EOF:
                answers.append(answer)
            code = await self.call.code()
        except grpc.RpcError as error:
            code = error.code()
        except asyncio.InvalidStateError:
            code = await self.call.code()
        finally:
            await self.channel.close()
        return code, answers


@pytest.mark.parametrize(
    "messages",
    [
        (msg.encode(REGISTRATION),),
        (b"x" * 100_000,),
        (msg.msgspec.msgpack.encode(Greeting(b"n" * 32)), msg.encode(REGISTRATION)),
        (msg.msgspec.msgpack.encode(Greeting(b"n" * 32)), b"\x81", msg.encode(REGISTRATION)),
    ],
)
async def test_a_forged_taskmanager(messages):
    recorder = Recorder()
    server = RpcServer(recorder, security=PLAIN, log=recorder.log.append)
    await server.start()
    try:
        code, _answers = await Forger(server.address).send(*messages)
        assert code == grpc.StatusCode.UNAUTHENTICATED
        assert not recorder.sessions
        assert len(recorder.log) == 1
    finally:
        await server.stop()


async def test_one_that_says_nothing_is_not_waited_for():
    recorder = Recorder()
    server = RpcServer(recorder, security=PLAIN, log=recorder.log.append, register_timeout_s=0.05)
    await server.start()
    try:
        code, _answers = await Forger(server.address).send()
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED, "which a TaskManager does not take for distrust"
        assert "in time" in recorder.log[0]
    finally:
        await server.stop()


async def test_another_user_of_the_machine_is_refused_before_it_is_heard(monkeypatch):
    monkeypatch.setattr(admission, "is_same_user", lambda _client, _server: False)
    recorder, error = await meet(PLAIN, PLAIN)
    assert not recorder.sessions
    assert "runs as another user" in str(error)


async def run_script(*steps):
    """Let a link run while its streams end as written: (milliseconds later, distrusted); then it is closed."""
    link = TaskManagerLink("127.0.0.1:1", lambda: REGISTRATION, lambda _command: None, policy=PATIENT, security=PLAIN)
    link._clock, left = ManualClock(), list(steps)

    async def one_stream():
        if not left:
            link.close()
            return False, "closed"
        later, link._authentication_failed = left.pop(0)
        link._clock.advance(later)
        return False, "the story"

    link._one_stream = one_stream
    await link.run()


async def test_distrust_counts_from_its_own_beginning():
    await run_script((15_000, False), (1, True), (9_999, True))
    await run_script((0, True), (9_000, False), (2_000, True), (9_000, True))
    with pytest.raises(PenstockError, match="the story"):
        await run_script((0, True), (10_001, True))
    with pytest.raises(PenstockError, match="check that it is running"):
        await run_script((600_001, False))


async def test_a_stream_that_just_ends_is_no_distrust():
    async def nothing(_requests, _context):
        """Hang up."""

    server = aio.server()
    method = grpc.stream_stream_rpc_method_handler(nothing)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    link = TaskManagerLink(f"127.0.0.1:{port}", lambda: REGISTRATION, lambda _command: None, security=PLAIN)
    link._authentication_failed = True
    try:
        assert not (await link._one_stream())[0]
        assert not link._authentication_failed
    finally:
        await server.stop(None)
