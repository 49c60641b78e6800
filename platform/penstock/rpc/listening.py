"""Errors of ports that cannot be used: the address, the process that holds it, and the option that names another.

The JobManager's REST and control ports and a TaskManager's `/metrics` raise them. `penstock cluster start` checks its
REST port before it starts a process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from penstock.core.errors import PenstockError

#: The state of a listening socket in /proc/net/tcp.
_LISTENING = "0A"
#: Later arguments may contain passwords.
_MOST_ARGUMENTS = 3


@dataclass(frozen=True, slots=True)
class Listener:
    """The name of a listener in error messages, and the option of its port."""

    name: str
    port_option: str

    def refused(self, host: str, port: int, error: OSError) -> PenstockError:
        """Return the error to raise when the system refused the address."""
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        msg = f"{self.name} cannot listen on {host}:{port}: {reason}"
        if error.errno == errno.EADDRINUSE:
            by = holder(port)
            way_out = f"choose another {self.port_option} (0: a free one), or stop the process that uses it"
            return PenstockError(f"{msg} by {by}" if by else msg, hint=way_out)
        if error.errno == errno.EACCES:
            return PenstockError(msg, hint=f"choose another {self.port_option} (0: a free one)")
        return PenstockError(msg, hint="--host takes an address of this machine")

    def require_free(self, host: str, port: int) -> None:
        """Check that the address can be used; 0 stands for any free port.

        Raises:
            PenstockError: it cannot.
        """
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise self.refused(host, port, error) from error


REST = Listener("the REST API", "--rest-port")
CONTROL = Listener("the JobManager", "--rpc-port")
METRICS = Listener("/metrics", "--metrics-port")


def holder(port: int) -> str:
    """Return the process that listens on a TCP port of this machine; empty if it is not one of this user's."""
    inodes = _listening_inodes(port)
    for folder in Path("/proc").glob("[0-9]*") if inodes else ():
        try:
            if _open_files(folder / "fd") & inodes:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                command = " ".join([Path(words[0]).name, *words[1:_MOST_ARGUMENTS]]).strip()
                return f"process {folder.name}: {command}"
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or is another user's
    return ""


def _open_files(folder: Path) -> set[str]:
    found = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.add(os.readlink(entry.path))  # noqa: PTH115 - processes have many
    return found


def _listening_inodes(port: int) -> set[str]:
    """Return the names that /proc/PID/fd has for the sockets that listen on a port."""
    found = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found
