"""Fixtures every level shares: real servers, fresh names in them, and the check that a test leaves nothing running.

A test that asks for `kafka_server` or `minio_server` gets one or fails with the way out; it is never skipped.
"""

from __future__ import annotations

import gc
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import class_archives, leaks
from tests.support.depth import depth, register
from tests.support.lanes import LanesPlugin, level_of

from penstock.client.kernels import compile_kernels
from penstock.core.errors import PenstockError
from penstock_lab.servers import KafkaServer, MinioServer, choose, start_kafka, start_minio

register()

os.environ.setdefault("JAVA_TOOL_OPTIONS", class_archives.SHORT_RUNS)

#: Levels whose tests start Spark.
WITH_SPARK = {"spark", "bench"}
UNIT = Path(__file__).parent / "unit"
TEMP = leaks.prepare()


# --- servers ----------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Let several processes share the tests, and record how long each takes."""
    config.pluginmanager.register(LanesPlugin(), "penstock-lanes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests with the mark `nightly` to a nightly run."""
    if depth() == "nightly":
        return
    parts = {True: [], False: []}
    for item in items:
        parts[item.get_closest_marker("nightly") is not None].append(item)
    if parts[True]:
        config.hook.pytest_deselected(items=parts[True])
        items[:] = parts[False]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Prepare kernels, servers and Spark before the first test: that takes minutes once, in no test's time."""
    if session.config.option.collectonly:
        return
    if session.items:
        compile_kernels()  # a checkout that is new, or that was updated, lacks some
    gc.collect()
    gc.freeze()  # the look for leaks after each test collects garbage: it need not visit all that was imported
    gc.set_threshold(50_000, 20, 20)  # after a freeze, Python would collect all generations far more often
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    marked = any(item.get_closest_marker("servers") for item in session.items)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    tell = reporter.write_line if reporter else print  # a process of xdist has no reporter
    try:
        if any(level_of(item.nodeid) in WITH_SPARK for item in session.items):
            class_archives.use_spark(tell)
        if marked or wanted & {"kafka_server", "minio_server"}:
            choose.prepare(tell)
    except PenstockError as error:
        tell(f"servers: {error}")  # the tests that need them will fail with the same words


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
    with leaks.held(lambda: [server.pid]):
        yield server
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


@pytest.fixture(autouse=True)
def import_path() -> Iterator[None]:
    """Restore the import path after each test: a module that it added could hide one that a later test imports."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True)
def leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a process or a listening socket, and a unit test also for a thread or a file.

    It checks unit tests, and tests with the mark `servers` or `processes`. A killed process leaves its temporary
    files, so only unit tests are judged by files.
    """
    processes = any(request.node.get_closest_marker(mark) for mark in ("servers", "processes"))
    unit = request.path.is_relative_to(UNIT)
    if not processes and not unit:
        yield
        return
    before = leaks.look(processes=processes)
    yield
    leaks.check(before, processes=processes, everything=unit)


def pytest_unconfigure() -> None:
    """Remove the temporary folder of this process."""
    leaks.remove(TEMP)
    gc.unfreeze()  # a native library that is never collected reports leaks at the end of the process


@pytest.fixture
def unused_port() -> int:
    """A loopback port nobody listened on a moment ago."""
    return leaks.unused_port()
