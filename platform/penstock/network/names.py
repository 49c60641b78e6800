"""Look-ups of host names in separate threads, as a name server may be slow.

Used by `connection`, whose thread carries the rows of all peers. The threads are daemons: they end with the process,
even during a look-up.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.core.clock import Clock

#: How long an address is cached, and how long a failure. Much shorter than the time for which a peer is dialled, for a
#: host that returns with another address.
_KEPT_MS = 1000
_FAILED_MS = 500


class Names:
    """Resolves host names; called by one thread.

    A name is looked up by one thread at a time, several names in parallel.
    """

    def __init__(self, clock: Clock) -> None:
        """Start with an empty cache."""
        self._clock = clock
        #: The result for a name, and when it expires; written by the threads.
        self._found: dict[str, tuple[str | OSError, float]] = {}
        self._asking: dict[str, threading.Thread] = {}

    def address_of(self, host: str) -> str | None:
        """Return a numeric address of `host`; None while it is being looked up: call again soon.

        Raises:
            OSError: the name is unknown.
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
        except UnicodeError as error:  # an invalid host name: a part of it is empty or too long
            found, kept_ms = OSError(f"{host!r} is not a valid host name: {error}"), _FAILED_MS
        except OSError as error:
            found, kept_ms = error, _FAILED_MS
        self._found[host] = found, self._clock.monotonic_ms() + kept_ms


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
