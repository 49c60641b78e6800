"""Names of hosts: looked up beside whoever asks, kept for a while, failures too."""

import socket
import threading

import pytest
from tests.support.waiting import wait_until

from penstock.core.clock import ManualClock
from penstock.network.sockets import HostResolver

DEADLINE = 120


class NameServer:
    """Answers when it is let go; counts how often it was asked."""

    def __init__(self, monkeypatch):
        self.go, self.asked, self.answer = threading.Event(), [], "192.0.2.7"
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host, _port, **_options):
        self.asked.append(host)
        assert self.go.wait(DEADLINE)
        if isinstance(self.answer, Exception):
            raise self.answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.answer, 0))]


def settled(names, host):
    """What is known of a host once the name server has answered."""
    return wait_until(lambda: names.address_of(host), f"the address of {host}")


@pytest.mark.parametrize("address", ["10.0.0.5", "::1", "fe80::1%eth0"])
def test_addresses_are_what_they_are(monkeypatch, address):
    server = NameServer(monkeypatch)
    assert HostResolver(ManualClock()).address_of(address) == address
    assert server.asked == []


def test_nobody_waits_and_the_answer_is_kept_for_a_while(monkeypatch):
    server, clock = NameServer(monkeypatch), ManualClock()
    names = HostResolver(clock)
    assert [names.address_of("node7") for _ in range(3)] == [None] * 3
    assert names.address_of("node8") is None, "others are looked up beside it"
    server.go.set()
    assert settled(names, "node7") == settled(names, "node8") == "192.0.2.7"
    assert sorted(server.asked) == ["node7", "node8"]
    server.answer = "192.0.2.8"
    clock.advance(999)
    assert settled(names, "node7") == "192.0.2.7"
    clock.advance(1)
    assert settled(names, "node7") == "192.0.2.8", "a host may move"


def test_a_name_that_is_not_known_is_told_and_asked_for_again(monkeypatch):
    server, clock = NameServer(monkeypatch), ManualClock()
    server.go.set()
    server.answer = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    names = HostResolver(clock)
    for _ in range(2):
        with pytest.raises(OSError, match="not known"):
            settled(names, "node7")
    assert server.asked == ["node7"]
    server.answer = "192.0.2.7"
    clock.advance(500)
    assert settled(names, "node7") == "192.0.2.7"


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example"])
def test_what_can_be_no_name_is_told_too_and_asked_for_again_as_late(monkeypatch, host):
    asked, look_up = [], socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **more: asked.append(1) or look_up(*given, **more))
    names = HostResolver(ManualClock())
    for _ in range(3):
        with pytest.raises(OSError, match=r"host"):
            settled(names, host)
    assert len(asked) == 1
