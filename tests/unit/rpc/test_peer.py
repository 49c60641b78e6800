"""Whose connection it is, by the kernel's table of sockets."""

import os
import socket
import subprocess

import pytest

from penstock.rpc.peer import is_same_user, owner_of

NOBODY = 65534
# Two ends of one connection, one that its process has closed, one of IPv4 that came through IPv6.
TABLE = """\
   0: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     7        0 11 1 0 100 0 0 10 0
   1: 0100007F:0005 0100007F:1F91 01 00000000:00000000 00:00000000 00000000  1000        0 12 1 0 20 4 30 10 -1
   2: 0100007F:1F91 0100007F:0005 01 00000000:00000000 00:00000000 00000000     7        0 13 1 0 20 4 30 10 -1
   3: 0100007F:0006 0100007F:1F91 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1
   4: 0000000000000000FFFF00000100007F:0007 0000000000000000FFFF00000100007F:1F91 01 0 0 0 1002 0 14 1
   5: 00000000000000000000000001000000:0008 00000000000000000000000001000000:1F91 01 0 0 0 1003 0 15 1
   6: nonsense
""".splitlines()


@pytest.mark.parametrize(
    ("client", "server", "owner"),
    [
        (("127.0.0.1", 5), ("127.0.0.1", 8081), 1000),
        (("127.0.0.1", 8081), ("127.0.0.1", 5), 7),
        (("127.0.0.1", 6), ("127.0.0.1", 8081), None),
        (("127.0.0.1", 7), ("127.0.0.1", 8081), 1002),
        (("::ffff:127.0.0.1", 5), ("::ffff:127.0.0.1", 8081), 1000),
        (("::1", 8), ("::1", 8081), 1003),
        (("127.0.0.2", 5), ("127.0.0.1", 8081), None),
        (("127.0.0.1", 9), ("127.0.0.1", 8081), None),
    ],
)
def test_the_far_end_has_an_owner(client, server, owner):
    assert owner_of(client, server, TABLE) == owner


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


CALLER = "exec 3<>/dev/tcp/127.0.0.1/$1; read"  # of bash: another user may not be able to read our Python


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
