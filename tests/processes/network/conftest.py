"""Two workers that are connected, by a Unix socket or by TCP."""

import contextlib

import pytest
from tests.unit.network.conftest import KEY, net  # noqa: F401 - fixtures

from penstock.core.clock import SystemClock
from penstock.network.connection import NetworkLimits, WorkerNetwork
from penstock.network.handshake import Trust


@pytest.fixture(params=["unix", "tcp"])
def listen(request, tmp_path):
    return f"unix:{tmp_path}" if request.param == "unix" else "tcp:127.0.0.1:0"


@pytest.fixture
def limits():
    """Those of production; a test that needs others is parametrized with them."""
    return NetworkLimits()


@pytest.fixture
def planes(listen, limits):
    with contextlib.ExitStack() as stack:
        found = {}
        for worker in "ab":
            lost = []
            plane = WorkerNetwork(
                worker,
                listen,
                SystemClock(),
                on_connection_lost=lambda p, r, lost=lost: lost.append((p, r)),
                trust=Trust(KEY),
                limits=limits,
            )
            plane.lost = lost
            stack.callback(plane.close)
            found[worker] = plane
        yield found
