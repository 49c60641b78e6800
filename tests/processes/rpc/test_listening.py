"""Ports that are in use: the error names the process and the option, before anything is started."""

import os
import socket
import sys

import pytest

from penstock.cli.main import app
from penstock.core.errors import PenstockError
from penstock.rpc.listening import REST, holder

HOST = "127.0.0.1"


@pytest.fixture
def taken():
    """A port on which this process listens."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


def test_the_holder_of_a_port_is_named(taken):
    assert holder(taken).startswith(f"process {os.getpid()}: ")
    with pytest.raises(PenstockError) as refused:
        REST.require_free(HOST, taken)
    said = str(refused.value)
    assert f"the REST API cannot listen on {HOST}:{taken}: Address already in use by process {os.getpid()}: " in said
    assert "choose another --rest-port (0: a free one), or stop the process" in said


def test_a_port_that_only_connects_is_not_held(taken):
    with socket.create_connection((HOST, taken)) as connection:
        assert holder(connection.getsockname()[1]) == ""


def test_free_ports_pass(unused_port):
    REST.require_free(HOST, 0)
    REST.require_free(HOST, unused_port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_another_machines_address_is_not_a_port_in_use(host):
    with pytest.raises(PenstockError, match="--host takes an address of this machine"):
        REST.require_free(host, 8081)


def test_a_cluster_is_refused_before_a_process_starts(taken, tmp_path, monkeypatch, capsys):
    home = tmp_path / "home"
    monkeypatch.setenv("PENSTOCK_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["penstock", "cluster", "start", "--rest-port", str(taken)])
    with pytest.raises(SystemExit) as ended:
        app()
    assert ended.value.code == 1
    assert capsys.readouterr().err.count("penstock: ") == 1
    assert not (home / "cluster.log").exists()
