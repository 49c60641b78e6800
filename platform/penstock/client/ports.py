"""Chooses free ports for processes that get their port as an argument.

Used by `LocalCluster` for its JobManager and by `testing.servers`.
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
    """Return one of `ports` that is currently unused.

    The range should be below the ephemeral ports of outgoing connections (32768 and up by default):
    an ephemeral port may be taken before the process listens, or while it restarts.

    Raises:
        PenstockError: no unused port was found.
        OSError: `host` is not an address of this machine.
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
    msg = f"no free port found on {host}: all tried ports of {ports.start} to {ports.stop - 1} are in use"
    raise PenstockError(msg, hint="stop the processes that listen there")
