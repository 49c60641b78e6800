"""Where a TaskManager finds the JobManager that leads: among listed addresses, or through the lease of an HA root.

Used by `rpc.stream`, which calls both methods in threads. Only a leader listens on its control port.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Callable
from typing import Protocol

_CONNECT_S = 1.0


class JobManagers(Protocol):
    """The JobManagers of one cluster."""

    def next_address(self) -> str:
        """Return `host:port` of the JobManager to connect to; may raise a PenstockError."""

    def other_leader(self, address: str) -> str:
        """Return the address of a leader other than `address`; empty if none is known."""


class ListedJobManagers:
    """Addresses given by the user, with commas between them; they are tried in turn."""

    def __init__(self, addresses: str) -> None:
        """Take the list."""
        self._addresses = [address.strip() for address in addresses.split(",")]
        self._turn = itertools.cycle(range(len(self._addresses)))

    def next_address(self) -> str:
        """Return the next one of the list."""
        return self._addresses[next(self._turn)]

    def other_leader(self, address: str) -> str:
        """Return the first other address that accepts a connection, and begin there at the next turn."""
        for place, other in enumerate(self._addresses):
            if other == address:
                continue
            host, _, port = other.rpartition(":")
            with (
                contextlib.suppress(OSError, ValueError),
                socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S),
            ):
                self._turn = itertools.cycle([*range(place, len(self._addresses)), *range(place)])
                return other
        return ""


class ElectedJobManager:
    """The leader of an HA root, as its lease says."""

    def __init__(self, read: Callable[[], str]) -> None:
        """Take the function that reads the leader's address; it may block and raise a PenstockError."""
        self._read = read

    def next_address(self) -> str:
        """Return the leader's address."""
        return self._read()

    def other_leader(self, address: str) -> str:
        """Return the leader's address if it has changed."""
        found = self._read()
        return found if found != address else ""
