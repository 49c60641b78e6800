"""TaskManagers that claim different hosts: rows go by TCP, and the output stays exact when one is killed."""

import contextlib
import socket

import pytest
from tests.cluster.harness import Scene
from tests.cluster.orders import Orders
from tests.cluster.ports import listening

from penstock.cli.start.certs import certs

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

HOSTS = ("127.0.0.1", "127.0.0.2")
EVENTS, RATE = 12_000, 2_000


def data_ports(scene):
    """What the job's workers listen on."""
    return listening([int(worker["pid"]) for worker in scene.look_at_workers()])


def knock(address):
    """What somebody gets who connects to a worker and talks HTTP."""
    with contextlib.suppress(ConnectionResetError), socket.create_connection(address, timeout=20) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(100))
        return sock.recv(1000)
    return b""


@pytest.mark.parametrize(("victim", "secured"), [("worker", True), ("taskmanager", False)])
def test_output_is_exact_over_kills(stage, tmp_path, monkeypatch, victim, secured):
    if secured:
        certs(tmp_path / "certs", host=None, days=1, client_certificates=False)
        monkeypatch.setenv("PENSTOCK_SECURITY", str(tmp_path / "certs"))
        monkeypatch.setenv("PENSTOCK_CA", str(tmp_path / "certs" / "ca.pem"))
        monkeypatch.setenv("PENSTOCK_TOKEN_FILE", str(tmp_path / "certs" / "admin.token"))
    with Scene(stage, Orders(31, EVENTS), rate=RATE, hosts=HOSTS) as scene:
        scene.begin()
        scene.wait_checkpoints(2)
        ports = data_ports(scene)
        assert {host for host, _ in ports} == set(HOSTS), "each worker listens at the address of its host alone"
        for address in ports:
            assert knock(address) in (b"", *([] if not secured else [ALERT]))
        for pick in range(2):
            scene.look_at_workers()
            gone = {int(worker["pid"]) for worker in scene.workers}
            scene.kill(scene.victim_pid(victim, pick=pick))
            scene.wait_replaced(gone)
        scene.feed.join()
        scene.wait_finished()
        assert scene.check_exact().windows


#: TLS's answer to what is no TLS.
ALERT = b"\x15\x03\x01\x00\x02\x02\x46"


def test_a_worker_of_one_host_listens_nowhere_else(stage):
    with Scene(stage, Orders(32, 4000), rate=RATE) as scene:
        scene.begin()
        scene.wait_checkpoints(1)
        assert data_ports(scene) == set()
