"""Addresses of hosts that are known by name, looked up by threads of their own: a name server may take its time.

Used by `connection`, whose thread carries the rows of all peers. The threads end with the process, whatever they wait
for.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.clock import Clock

#: How long an address is believed, and how long a failure is, before the name server is asked again: far less than a
#: peer is dialled, for a host that comes back under another address.
_KEPT_MS = 1000
_FAILED_MS = 500


class Names:
    """Called by one thread; a name is looked up by one thread at a time, several names beside each other."""

    def __init__(self, clock: Clock) -> None:
        """Nothing is known."""
        self._clock = clock
        #: What was found for a name, and until when that holds; written by the threads.
        self._found: dict[str, tuple[str | OSError, float]] = {}
        self._asking: dict[str, threading.Thread] = {}

    def address_of(self, host: str) -> str | None:
        """Return a numeric address of `host`; None while it is being looked up: ask again soon.

        Raises:
            OSError: nothing is known under that name.
        """
        if _is_address(host):
            return host
        asking = self._asking.get(host)
        if asking is not None and asking.is_alive():
            return None
        found, until_ms = self._found.get(host, (None, 0.0))
        if found is None or self._clock.monotonic_ms() >= until_ms:
            self._asking[host] = threading.Thread(target=self._ask, args=(host,), name="penstock-names", daemon=True)
            self._asking[host].start()
            return None
        if isinstance(found, OSError):
            raise found
        return found

    def _ask(self, host: str) -> None:
        found: str | OSError
        try:
            found = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
            kept_ms = _KEPT_MS
        except UnicodeError as error:  # what can be no name: a part of it is empty, or too long
            found, kept_ms = OSError(f"{host!r} is no name of a host: {error}"), _FAILED_MS
        except OSError as error:
            found, kept_ms = error, _FAILED_MS
        self._found[host] = found, self._clock.monotonic_ms() + kept_ms


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
