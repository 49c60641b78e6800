"""Probes of a leader over real connections: who gets an answer, and which processes give none."""

import asyncio
import socket
from dataclasses import replace

import pytest
from tests.support.waiting import DEADLINE_S

from penstock.cli.start.certs import certs
from penstock.config.security import Security, load_security
from penstock.core.errors import PenstockError
from penstock.core.secrets import Secret
from penstock.rpc.probes import LeaderProber, ProbeAnswer
from penstock.rpc.stream import RpcServer

PLAIN = Security(secret=Secret("s" * 32))
LONG_S = 60.0


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    certs(folder, host=None, days=1, client_certificates=True)
    return load_security({}, str(folder))


@pytest.fixture
async def leader():
    """Return a maker of leaders that listen; each answers with the number of its answers as `renewals`."""
    servers = []

    async def make(security, *, probed=True):
        counts = iter(range(1, 1_000))
        server = RpcServer(None, security=security)
        await server.start((lambda: ProbeAnswer(3, next(counts), 0.5)) if probed else None)
        servers.append(server)
        return server

    yield make
    for server in servers:
        await server.stop()


@pytest.mark.parametrize("protected", [False, True])
async def test_each_question_has_an_answer(leader, secured, protected):
    security = secured if protected else PLAIN
    server, prober = await leader(security), LeaderProber(security)
    found = [await prober.ask(server.address, LONG_S) for _ in range(3)]
    assert found == [ProbeAnswer(3, count, 0.5) for count in (1, 2, 3)]
    other = await leader(security)
    assert (await prober.ask(other.address, LONG_S)).renewals == 1, "of another leader"
    await prober.close()
    await prober.close()


async def test_a_leader_that_ends_waits_for_no_standby(leader):
    server, prober = await leader(PLAIN), LeaderProber(PLAIN)
    await prober.ask(server.address, LONG_S)
    await asyncio.wait_for(server.stop(grace_s=100 * DEADLINE_S), 10 * DEADLINE_S)
    with pytest.raises(PenstockError, match="answers no probe"):
        await prober.ask(server.address, LONG_S)
    await prober.close()


async def test_a_process_that_accepts_connections_and_says_nothing():
    """As one that is suspended: the kernel accepts."""
    prober = LeaderProber(PLAIN)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(PenstockError, match=rf"{address} answers no probe: silent for 0\.1 s \(if it stops"):
            await prober.ask(address, 0.1)


async def test_a_question_that_is_cancelled_ends_the_stream(leader):
    server, prober = await leader(PLAIN), LeaderProber(PLAIN)
    await prober.ask(server.address, LONG_S)
    asking = asyncio.create_task(prober.ask(server.address, LONG_S))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert prober._channel is None
    assert (await prober.ask(server.address, LONG_S)).renewals >= 2
    await prober.close()


async def test_a_process_without_the_secret_or_certificate_gets_no_answer(leader, secured):
    client = secured.cluster.certificate.parent / "client.pem"
    of_a_client = replace(secured.cluster, certificate=client, key=client.with_suffix(".key"))
    for ours, theirs in (
        (PLAIN, Security(secret=Secret("t" * 32))),
        (secured, replace(secured, cluster=None)),
        (secured, replace(secured, cluster=of_a_client)),
        (secured, replace(secured, secret=Secret("t" * 32))),
    ):
        server = await leader(ours)
        with pytest.raises(PenstockError):
            await LeaderProber(theirs).ask(server.address, LONG_S)


async def test_an_earlier_version_answers_none(leader):
    server = await leader(PLAIN, probed=False)
    with pytest.raises(PenstockError, match=r"answers no probe: .*not found"):
        await LeaderProber(PLAIN).ask(server.address, LONG_S)
