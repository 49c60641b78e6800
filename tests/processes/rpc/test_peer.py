"""Peer credentials: a real connection, and one of another user."""

import os
import socket
import subprocess

import pytest

from penstock.rpc import authentication
from penstock.rpc.authentication import is_same_user, owner_by_kernel, owner_of

NOBODY = 65534
CALLER = "exec 3<>/dev/tcp/127.0.0.1/$1; read"  # of bash: another user may not be able to read our Python


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_real_connection(family, host):
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        assert family == socket.AF_INET6, "a machine without IPv6 has nothing to show here"
        return
    with listener, socket.create_connection(listener.getsockname()[:2]) as client:
        accepted, far = listener.accept()
        with accepted:
            near = accepted.getsockname()[:2]
            assert is_same_user(far[:2], near)
            client.close()
            assert not is_same_user(far[:2], near), "nobody holds it any more, whatever the table says"


def test_the_user_of_another_process():
    """As root another user can be had; else it is one's own that must be recognised."""
    stranger = NOBODY if os.getuid() == 0 else None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        command = ["bash", "-c", CALLER, "caller", str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, user=stranger) as caller:
            accepted, far = listener.accept()
            with accepted:
                assert is_same_user(far, accepted.getsockname()) == (stranger is None)
            caller.stdin.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_the_kernel_says_of_one_socket_what_its_table_says(host):
    """A listener of both families, and clients of either."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        listener.settimeout(30)
        command = ["bash", "-c", CALLER.replace("127.0.0.1", host), "caller", str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, user=NOBODY if os.getuid() == 0 else None) as caller:
            accepted, far = listener.accept()
            with accepted:
                ends = far[:2], accepted.getsockname()[:2]
                expected = NOBODY if os.getuid() == 0 else os.getuid()
                assert owner_by_kernel(*ends) == owner_of(*ends, authentication._lines()) == expected
            caller.stdin.close()
        assert owner_by_kernel(*ends) is None


def test_a_kernel_that_does_not_answer_has_a_table(monkeypatch):
    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(authentication, "owner_by_kernel", refused)
    test_a_real_connection(socket.AF_INET, "127.0.0.1")
