"""`/metrics` of a TaskManager: what it answers, and what it lets in."""

import asyncio
from dataclasses import replace

import pytest

from penstock.config.security import Security, TokenEntry, token_digest
from penstock.core.clock import ManualClock
from penstock.core.errors import PenstockError, UsageError
from penstock.taskmanager.metrics import MetricsServer, ProcessMetrics, RunningWorker

OPEN = Security()
TOKENS = Security(tokens=(TokenEntry("viewer", "prometheus", token_digest("right")),))


@pytest.fixture
async def asked():
    """Ask a server with the given security by the raw bytes of a request; the status and the body."""
    servers = []

    async def ask(request, security=OPEN):
        server = MetricsServer(lambda: "one 1\n", security)
        servers.append(server)
        host, port = (await server.start("127.0.0.1", 0)).rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request.replace("HOST", f"Host: {host}:{port}").encode())
        writer.write_eof()
        answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
        return int(answer.split(" ")[1]), answer.partition("\r\n\r\n")[2]

    yield ask
    for server in servers:
        await server.close()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /metrics HTTP/1.1\r\nHOST\r\n\r\n", 200),
        ("GET /metrics?x=1 HTTP/1.1\r\nHOST\r\n\r\n", 200),
        ("GET /other HTTP/1.1\r\nHOST\r\n\r\n", 404),
        ("POST /metrics HTTP/1.1\r\nHOST\r\n\r\n", 400),
        ("GET /metrics HTTP/1.1\r\nHost: evil.example:80\r\n\r\n", 403),
        ("GET /metrics HTTP/1.1\r\n\r\n", 403),
        ("nonsense\r\n\r\n", 400),
        ("GET /metrics", 400),
        (f"GET /metrics HTTP/1.1\r\nX: {'a' * 20_000}\r\n\r\n", 400),
    ],
)
async def test_requests(asked, request_text, status):
    found, body = await asked(request_text)
    assert found == status
    assert body == ("one 1\n" if status == 200 else "")


@pytest.mark.parametrize(("token", "status"), [("right", 200), ("wrong", 401), ("", 401)])
async def test_tokens(asked, token, status):
    head = f"Authorization: Bearer {token}\r\n" if token else ""
    assert (await asked(f"GET /metrics HTTP/1.1\r\nHOST\r\n{head}\r\n", TOKENS))[0] == status


async def test_insecure_with_tokens_asks_for_one_as_rest_does(asked):
    question = "GET /metrics HTTP/1.1\r\nHOST\r\n\r\n"
    assert (await asked(question, replace(TOKENS, insecure=True)))[0] == 401
    assert (await asked(question, Security(insecure=True)))[0] == 200


async def test_it_never_listens_where_others_come_unasked():
    with pytest.raises(UsageError):
        await MetricsServer(str, OPEN).start("0.0.0.0", 0)  # noqa: S104 - it does not


async def test_a_taken_port_is_named():
    first, second = MetricsServer(str, OPEN), MetricsServer(str, OPEN)
    port = int((await first.start("127.0.0.1", 0)).rsplit(":", 1)[1])
    with pytest.raises(PenstockError, match=f"cannot listen on 127.0.0.1:{port}"):
        await second.start("127.0.0.1", port)
    await first.close()


def test_the_text_has_the_process_and_its_workers():
    import os

    figures = ProcessMetrics("tm-1", "here", ManualClock())
    text = figures.text((2, 1), {"w-1": RunningWorker(os.getpid(), "job", 0), "gone": RunningWorker(1 << 30, "job", 1)})
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['flink_taskmanager_taskSlotsAvailable{host="here",tm_id="tm-1"}'] == "1"
    worker = 'host="here",job_id="job",slot="0",tm_id="tm-1",worker_id="w-1"'
    assert float(lines[f"process_resident_memory_bytes{{{worker}}}"]) > 1 << 20
    assert float(lines[f"flink_taskmanager_worker_Status_JVM_CPU_Time{{{worker}}}"]) > 0
    assert "gone" not in text
