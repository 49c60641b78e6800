"""Ports of this machine that processes are told before any of them listens.

Used by `LocalCluster` for its JobManager, and by `testing.servers` for those it starts.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from penstock.core.rand import Rand

_TRIES = 200


def free_port(host: str, ports: range, rand: Rand) -> int:
    """Return one of `ports` on which nobody listened a moment ago.

    They should lie below those that the kernel gives to outgoing connections (32768 and up, where nothing is
    configured): one of these may be gone before its process listens, or while that is restarted.

    Raises:
        PenstockError: none was found.
        OSError: `host` is no address of this machine.
    """
    for _ in range(_TRIES):
        port = ports[int(rand.fraction() * len(ports))]
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return port
    msg = f"no free port found on {host}: all of {ports.start} to {ports.stop - 1} that were tried are in use"
    raise PenstockError(msg, hint="end what listens there")
