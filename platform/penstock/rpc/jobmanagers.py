"""Where a TaskManager finds the JobManager that leads: among listed addresses, or through the lease of an HA root.

Used by `rpc.stream`. Only a leader listens on its control port.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Protocol


class JobManagers(Protocol):
    """The JobManagers of one cluster."""

    def next_address(self) -> str:
        """Return `host:port` of the JobManager to connect to; may block, and raise a PenstockError."""

    async def other_leader(self, address: str) -> str:
        """Return the address of a leader other than `address`; empty if none is known. May raise a PenstockError."""


class ListedJobManagers:
    """Addresses given by the user, with commas between them; they are tried in turn."""

    def __init__(self, addresses: str, generation_of: Callable[[str], Awaitable[int]]) -> None:
        """Take the list; `generation_of` probes an address: 0 if no leader answers, as a suspended one does not."""
        self._addresses = [address.strip() for address in addresses.split(",")]
        self._generation_of = generation_of
        self._turn = itertools.cycle(range(len(self._addresses)))

    def next_address(self) -> str:
        """Return the next one of the list."""
        return self._addresses[next(self._turn)]

    async def other_leader(self, address: str) -> str:
        """Return the other address with the newest leader, and begin there at the next turn."""
        places = [place for place, other in enumerate(self._addresses) if other != address]
        found = await asyncio.gather(*(self._generation_of(self._addresses[place]) for place in places))
        newest, place = max(zip(found, places, strict=True), default=(0, 0))
        if not newest:
            return ""
        self._turn = itertools.cycle([*range(place, len(self._addresses)), *range(place)])
        return self._addresses[place]


class ElectedJobManager:
    """The leader of an HA root, as its lease says."""

    def __init__(self, read: Callable[[], str]) -> None:
        """Take the function that reads the leader's address; it may block and raise a PenstockError."""
        self._read = read

    def next_address(self) -> str:
        """Return the leader's address."""
        return self._read()

    async def other_leader(self, address: str) -> str:
        """Return the leader's address if it has changed."""
        found = await asyncio.to_thread(self._read)
        return found if found != address else ""
