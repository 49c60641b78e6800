"""The listening sockets of a worker, ignored for a while when no connection can be accepted.

Made by `connection` and used in its thread. A process without a free descriptor keeps its connections: waiting ones are
accepted when there is one.
"""

from __future__ import annotations

import logging
import selectors
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from penstock.core.clock import Clock
    from penstock.network.addresses import Listener

_PAUSE_MS = 100


class Door:
    """The listening sockets of a worker in its selector."""

    def __init__(self, listeners: list[Listener], selector: selectors.BaseSelector, clock: Clock) -> None:
        """Register them, each with its `Listener` as data."""
        self._listeners, self._selector, self._clock = listeners, selector, clock
        self._opens_at_ms: float | None = None
        for listener in listeners:
            listener.sock.setblocking(False)
            selector.register(listener.sock, selectors.EVENT_READ, listener)

    @property
    def host(self) -> str:
        """Return the host that others dial; empty if there are Unix sockets only."""
        return self._listeners[0].host

    @property
    def endpoint(self) -> str:
        """Return the address at which other workers reach this one."""
        return ",".join(listener.endpoint for listener in self._listeners)

    @property
    def shut(self) -> bool:
        """Return whether `reopen` has to be called soon."""
        return self._opens_at_ms is not None

    def come_in(self, listener: Listener) -> Iterator[socket.socket]:
        """Yield the connections waiting at `listener`, until one cannot be accepted."""
        try:
            while (sock := listener.accept()) is not None:
                yield sock
        except OSError as error:
            logging.getLogger(__name__).warning("no connection can be accepted at %s now: %s", listener.endpoint, error)
            self._opens_at_ms = self._clock.monotonic_ms() + _PAUSE_MS
            self._watch(0)

    def reopen(self) -> None:
        """Listen again when the pause is over."""
        if self._opens_at_ms is not None and self._clock.monotonic_ms() >= self._opens_at_ms:
            self._opens_at_ms = None
            self._watch(selectors.EVENT_READ)

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.close()

    def _watch(self, events: int) -> None:
        for listener in self._listeners:
            self._selector.modify(listener.sock, events, listener)
