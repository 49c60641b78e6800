"""Ports that processes are told before they listen."""

import socket
from pathlib import Path

import pytest

from penstock.client import local_cluster
from penstock.client.processes import free_port
from penstock.core.errors import PenstockError
from penstock.core.rand import SeededRand

HOST = "127.0.0.1"


@pytest.fixture
def taken():
    """A port on which somebody listens."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        yield listener.getsockname()[1]


def test_one_in_use_is_passed_over(taken):
    found = {free_port(HOST, range(taken - 3, taken + 1), SeededRand(seed)) for seed in range(20)}
    assert found
    assert taken not in found


def test_where_all_are_in_use_it_says_so(taken):
    with pytest.raises(PenstockError, match=f"no free port found on {HOST}: all tried ports of {taken} to {taken}"):
        free_port(HOST, range(taken, taken + 1), SeededRand(1))


def test_a_host_that_is_not_here_is_not_a_port_in_use():
    with pytest.raises(OSError, match="assign requested address"):
        free_port("192.0.2.1", range(10_000, 10_010), SeededRand(1))


def test_those_of_a_local_cluster_lie_below_those_of_outgoing_connections():
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert local_cluster.RPC_PORTS[-1] < low
