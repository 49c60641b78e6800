"""Fixtures every level shares: real servers, fresh names in them, and the check that a test leaves nothing running.

A test that asks for `kafka_server` or `minio_server` gets one or fails with the way out; it is never skipped.
"""

from __future__ import annotations

import gc
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.depth import depth, register
from tests.support.lanes import LanesPlugin

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.testing.servers import KafkaServer, MinioServer, Server, choose, start_kafka, start_minio

SESSION_MARK = "PENSTOCK_TEST_SESSION"
SESSION_TOKEN = secrets.token_hex(8)
# inherited by every process a test starts, however far down and whoever adopts it
os.environ[SESSION_MARK] = SESSION_TOKEN

register()

LEAK_GRACE_MS = 5_000
SESSION_SERVERS: list[Server] = []


# --- servers ----------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Let several processes share the tests, and record how long each takes."""
    config.pluginmanager.register(LanesPlugin(), "penstock-lanes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests with the mark `nightly` to a nightly run."""
    if depth() == "nightly":
        return
    later = [item for item in items if item.get_closest_marker("nightly")]
    if later:
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch and build the servers before the first test: it takes minutes once, and no test's time limit should pay."""
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    marked = any(item.get_closest_marker("servers") for item in session.items)
    if session.config.option.collectonly or not (marked or wanted & {"kafka_server", "minio_server"}):
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        choose.prepare(reporter.write_line)
    except PenstockError as error:
        reporter.write_line(f"servers: {error}")  # the tests that need them will fail with the same words


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One broker for the whole run: take fresh topics from `topic_prefix`; do not kill it, start your own for that."""
    server = start_kafka(tmp_path_factory.mktemp("kafka"))
    yield from _kept(server)


@pytest.fixture(scope="session")
def minio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """One S3 server for the whole run: take a fresh bucket from `bucket`; do not kill it, start your own for that."""
    server = start_minio(tmp_path_factory.mktemp("minio"))
    yield from _kept(server)


def _kept(server):
    SESSION_SERVERS.append(server)
    yield server
    SESSION_SERVERS.remove(server)
    server.remove()


@pytest.fixture
def topic_prefix() -> str:
    """A prefix for topics, groups and transactional ids no other test uses."""
    return f"t-{secrets.token_hex(4)}-"


@pytest.fixture
def bucket(minio_server: MinioServer) -> str:
    """The name of an empty bucket of this test alone."""
    name = f"t-{secrets.token_hex(4)}"
    minio_server.make_bucket(name)
    return name


# --- nothing is left behind -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """What runs on behalf of this test session."""

    pids: dict[int, str]
    ports: frozenset[int]


def running() -> Running:
    """Look at every process that carries the session's mark, and at this process's own listening sockets."""
    own = os.getpid()
    pids = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == own:
            continue
        try:
            if f"{SESSION_MARK}={SESSION_TOKEN}".encode() not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            pids[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    for server in SESSION_SERVERS:
        pids.pop(server.pid, None)
    return Running(pids, _listening_ports())


def _listening_ports() -> frozenset[int]:
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/self/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return frozenset(ports)


@pytest.fixture(autouse=True)
def leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test marked `servers` or `processes` fails when a process, a port or an open file of its own outlives it."""
    if not any(request.node.get_closest_marker(mark) for mark in ("servers", "processes")):
        yield
        return
    for name in ("kafka_server", "minio_server"):  # so that a session's server never counts as a test's
        if name in request.fixturenames:
            request.getfixturevalue(name)
    before = running()
    yield
    gc.collect()  # what a test left open warns now, in this test, and a warning is an error
    clock = SystemClock()
    deadline = clock.monotonic_ms() + LEAK_GRACE_MS
    while True:
        now = running()
        left = {pid: what for pid, what in now.pids.items() if pid not in before.pids}
        ports = now.ports - before.ports
        if not left and not ports:
            return
        if clock.monotonic_ms() > deadline:
            pytest.fail(f"left behind: processes {left or 'none'}, listening ports {sorted(ports) or 'none'}")
        clock.sleep_ms(50)


@pytest.fixture
def unused_port() -> int:
    """A loopback port nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
