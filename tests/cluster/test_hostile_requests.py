"""A cluster under hostile requests: each is refused with one clear error, and the job on it stays exact."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import polars as pl
import pytest
from tests.cluster.tokens import Tokens
from tests.support.jobs import run_job_file
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until

from penstock.client.handle import JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.core.errors import UsageError
from penstock_connectors.datagen.source import OrderPattern, orders

RATE = 400
LIMIT_S = 120.0
RESET = b"(reset)"
JOB = f"""
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

env = ps.Environment(parallelism=1, checkpoint_interval="300ms", checkpoint_root="checkpoints")
source = DatagenSource(splits=1, rows_per_second={RATE}, event_rate=100)
orders = env.from_source(source, watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts"), uid="orders")
orders.sink_to(FileSink("out"), uid="out")
env.submit("prey")
"""


@pytest.fixture
def tokens(tmp_path):
    return Tokens(tmp_path / "security")


def send(url, method, path, *, token="", body=None, headers=None):
    """Send one request as it stands; return status and what was answered."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=LIMIT_S)
    given = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
    try:
        connection.putrequest(method, path, skip_host="Host" in given)
        if body is not None and "Content-Length" not in given:
            given["Content-Length"] = str(len(body))
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def raw(url, data, wait=LIMIT_S):
    """Send bytes and nothing more; return what came back until the other side closed, or until `wait` was over."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=wait) as sock:
        sock.sendall(data)
        parts = []
        try:
            while part := sock.recv(65536):
                parts.append(part)
        except ConnectionResetError:
            parts.append(RESET)
        return b"".join(parts)


class Slow(threading.Thread):
    """Sends part of a request, then nothing."""

    def __init__(self, url, data):
        super().__init__()
        self.url, self.data, self.answer = url, data, None

    def run(self):
        self.answer = raw(self.url, self.data)


def hostile(tokens, job_id):
    """Name, status wanted, and the request; the whole table is in `tests/unit/rest/test_hostile_requests.py`."""
    admin, operator, viewer = tokens["admin"], tokens["operator"], tokens["viewer"]
    submit, stop = "/v1/penstock/submit", f"/jobs/{job_id}/stop"
    yield "no token", 401, ("PATCH", f"/v1/jobs/{job_id}?mode=cancel"), {}
    yield "viewer stops", 403, ("POST", stop), {"token": viewer, "body": b"{}"}
    yield "operator brings code", 403, ("POST", submit), {"token": operator, "body": b"x"}
    yield "oversized, declared", 413, ("POST", submit), {"token": admin, "headers": {"Content-Length": "70000000000"}}
    yield "oversized, sent", 413, ("POST", stop), {"token": operator, "body": b" " * (1 << 20) + b"{}"}
    yield "a size that is none", 400, ("POST", submit), {"token": admin, "headers": {"Content-Length": "-1"}}
    yield "out of the folder, encoded", 400, ("GET", "/%2e%2e/%2e%2e/etc/passwd"), {"token": admin}
    yield "out of the folder, backslashes", 400, ("GET", "/v1/..%5c..%5cetc"), {"token": admin}
    yield "a zero byte", 400, ("GET", "/v1/jobs/%00"), {"token": admin}
    yield "a worker's log by a path", 404, ("GET", "/v1/penstock/workers/a.b/log"), {"token": admin}
    yield "a pickle as graph", 400, ("POST", submit), {"token": admin, "body": b"cos\nsystem\n(S'exit 1'\ntR."}
    yield "a very deep document", 400, ("POST", submit), {"token": admin, "body": b"[" * 100_000}
    yield "a page of another site", 403, ("DELETE", "/cluster"), {
        "headers": {"Authorization": _password(admin), "Origin": "http://evil.example"}
    }  # fmt: skip


def forged_taskmanagers(rest, folder):
    """What processes get that would be TaskManagers: penstock's own with another secret, and one that sends noise."""
    # Flink's form: a list, where all else is a map
    _, config, _ = rest._request(rest.url, "GET", "/v1/jobmanager/config", None, {})
    address = next(e["value"] for e in json.loads(config) if e["key"] == "jobmanager.rpc.address")
    environment = {**os.environ, "PENSTOCK_CLUSTER_SECRET": "f" * 64, "PENSTOCK_HOME": str(folder / "forged")}
    words = ["-m", "penstock.cli.main", "taskmanager", "--jobmanager", address, "--id", "forged", "--slots", "8"]
    forged = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=LIMIT_S, cwd=folder
    )
    assert forged.returncode == 1, forged
    assert "secret" in forged.stderr, forged
    noise = raw(f"http://{address}", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(5000))
    assert b"penstock" not in noise
    assert [manager["id"] for manager in rest.taskmanagers()] != ["forged"]
    assert len(rest.taskmanagers()) == 1


def _password(token):
    import base64

    return "Basic " + base64.b64encode(f"user:{token}".encode()).decode()


def test_a_cluster_under_hostile_requests_goes_on_exactly(tmp_path, tokens):
    by_role = tokens.of
    config = LocalClusterConfig(
        taskmanagers=1, directory=tmp_path / "cluster", environment=tokens.environment | PATIENT
    )
    environment = {**os.environ, "PENSTOCK_TOKEN_FILE": str(tokens.folder / "admin.token")}
    with LocalCluster(config) as cluster:
        rest = tokens.client(cluster.rest_url)
        run_job_file(tmp_path, JOB, cluster.rest_url, environment)
        (job,) = rest.jobs()
        wait_until(lambda: rest.checkpoints(job["jid"])["counts"]["completed"] >= 1, "a checkpoint", seconds=LIMIT_S)
        pids = (cluster.jobmanager.pid, [child.pid for child in cluster.taskmanagers])
        head = f"POST /v1/penstock/submit HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {by_role['admin']}\r\n"
        slow = [
            Slow(cluster.rest_url, b"GET /v1/jobs HT"),
            Slow(cluster.rest_url, b""),
            Slow(cluster.rest_url, head.encode() + b"Content-Length: 1000\r\n\r\nab"),
        ]
        for sender in slow:
            sender.start()
        for what, wanted, (method, path), options in hostile(by_role, job["jid"]):
            status, text = send(cluster.rest_url, method, path, **options)
            assert status == wanted, f"{what}: {status} {text[:300]}"
            if "a size that is none" not in what:
                (error,) = json.loads(text)["errors"]
                assert error, what
            assert not any(token in text for token in by_role.values()), what
        forged_taskmanagers(rest, tmp_path)
        assert raw(cluster.rest_url, b"\x16\x03\x01\x02\x00" + os.urandom(200)).startswith(b"HTTP/1.1 400")
        endless = raw(cluster.rest_url, b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000)
        assert endless.startswith((b"HTTP/1.1 400", RESET)), "what it had not read is reset"
        with pytest.raises(UsageError, match="needs admin"):
            tokens.client(cluster.rest_url, "viewer").shutdown()
        for sender in slow:
            wait_until(lambda sender=sender: not sender.is_alive(), "the end of a slow sender")
        assert slow[0].answer == slow[1].answer == b"", "nothing was asked"
        assert slow[2].answer.startswith(b"HTTP/1.1 408")
        JobHandle(rest, job["jid"], "prey").stop()
        assert rest.summary(job["jid"])["restarts"] == 0, rest.exceptions(job["jid"])
        assert pids == (cluster.jobmanager.pid, [child.pid for child in cluster.taskmanagers])
        assert not cluster.restarts
    log = (tmp_path / "cluster" / "jobmanager.log").read_text()
    assert "Traceback" not in log
    assert not any(token in log for token in by_role.values())
    parts = sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file() and not path.name.startswith("."))
    rows = pl.concat([pl.read_parquet(path) for path in parts])
    read = pl.from_arrow(orders(OrderPattern(splits=1, event_rate=100), 0, 0, rows.height))
    assert rows["ts"].sort().to_list() == read["ts"].to_list(), "each row that was read, once"
