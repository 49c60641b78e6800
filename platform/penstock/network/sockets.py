"""Sockets between workers: endpoints, listening, dialling, and look-ups of host names in separate threads.

Used by `network.connection`, whose thread never blocks on a name server or on a full process.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import logging
import re
import selectors
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.core.clock import Clock

#: How long an address is cached, and how long a failure. Much shorter than the time for which a peer is dialled, for a
#: host that returns with another address.
_KEPT_MS = 1000
_FAILED_MS = 500


class HostResolver:
    """Resolves host names; called by one thread.

    A name is looked up by one thread at a time, several names in parallel.
    """

    def __init__(self, clock: Clock) -> None:
        """Start with an empty cache."""
        self._clock = clock
        #: The result for a name, and when it expires; written by the threads.
        self._found: dict[str, tuple[str | OSError, float]] = {}
        self._lookups: dict[str, threading.Thread] = {}

    def address_of(self, host: str) -> str | None:
        """Return a numeric address of `host`; None while it is being looked up: call again soon.

        Raises:
            OSError: the name is unknown.
        """
        if _is_address(host):
            return host
        lookup = self._lookups.get(host)
        if lookup is not None and lookup.is_alive():
            return None
        found, until_ms = self._found.get(host, (None, 0.0))
        if found is None or self._clock.monotonic_ms() >= until_ms:
            self._lookups[host] = threading.Thread(
                target=self._look_up, args=(host,), name="penstock-names", daemon=True
            )
            self._lookups[host].start()
            return None
        if isinstance(found, OSError):
            raise found
        return found

    def _look_up(self, host: str) -> None:
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


#: The kernel allows 107 bytes of path; some tools fewer.
_PATH_LIMIT = 100
_BACKLOG = 512
_BUFFER_BYTES = 2 << 20
#: Time after which a host counts as lost if it answers nothing, not even TCP keep-alive probes.
_SILENCE_SECONDS = 30


class Listener:
    """The listening socket of a worker."""

    def __init__(self, worker_id: str, listen: str) -> None:
        """Listen in the folder of `unix:<folder>` or at `tcp:<host>:<port>[=<advertised host>]` (port 0: any).

        Raises:
            UsageError: the address has another form, or is not of this host.
        """
        #: The host that others dial; empty for Unix sockets.
        self.host = ""
        self._path: Path | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        kind, _, rest = listen.partition(":")
        if kind == "unix" and rest:
            self._path = self._free_path(Path(rest), worker_id)
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.bind(str(self._path))
            self.endpoint = f"unix:{self._path}"
        elif kind == "tcp":
            bind, _, advertised = rest.partition("=")
            host, port = _host_port(bind)
            self.sock = _bound(host, port)
            self.host = advertised or host
            self.endpoint = f"tcp:{self.host}:{self.sock.getsockname()[1]}"
        else:
            raise UsageError(f"cannot listen at {listen!r}", hint="unix:<folder> or tcp:<host>:<port>")
        self.sock.listen(_BACKLOG)

    def accept(self) -> socket.socket | None:
        """Return the next waiting connection, or None."""
        try:
            sock, _ = self.sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None
        _tune(sock)
        return sock

    def close(self) -> None:
        """Stop listening and remove the socket file."""
        self.sock.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._folder is not None:
            self._folder.cleanup()

    def _free_path(self, folder: Path, worker_id: str) -> Path:
        name = worker_id if re.fullmatch(r"[\w.-]{1,40}", worker_id) else _digest(worker_id)
        path = folder.absolute() / f"{name}.sock"
        if len(str(path).encode()) >= _PATH_LIMIT:
            self._folder = tempfile.TemporaryDirectory(prefix="penstock-", dir="/tmp")
            path = Path(self._folder.name) / f"{_digest(worker_id)}.sock"
        else:
            folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # of an earlier worker of that id: two live workers never share an id
        return path


def listeners(worker_id: str, listen: str) -> list[Listener]:
    """Listen at every address of a comma-separated list, with at most one TCP address, which comes first.

    Raises:
        UsageError: see `Listener`.
    """
    return [Listener(worker_id, address) for address in _addresses(listen)]


def address_to_dial(endpoint: str, own_host: str) -> str:
    """Return the address of an endpoint to dial from `own_host` (empty: this worker has no TCP address)."""
    addresses = _addresses(endpoint)
    host = addresses[0].removeprefix("tcp:").rpartition(":")[0]
    return addresses[-1] if host == own_host else addresses[0]


def _addresses(text: str) -> list[str]:
    first, _, second = text.partition(",") if text.startswith("tcp:") else (text, "", "")
    return [first, second] if second else [first]


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:  # `UnicodeError`: an invalid host name
        msg = f"workers cannot listen at {host}: {error}"
        raise UsageError(
            msg, hint="--data-bind takes an address of this host; 0.0.0.0 stands for all of them"
        ) from error


def dial(endpoint: str, address_of: Callable[[str], str | None]) -> tuple[socket.socket, bool] | None:
    """Return a non-blocking socket to `endpoint` and whether it is connected already; never blocks.

    `address_of` returns a host's numeric address, or None while it is being looked up: then the result is None.

    Raises:
        OSError: no process listens there.
        UsageError: the address has another form.
    """
    kind, _, rest = endpoint.partition(":")
    target: str | tuple[str, int]
    if kind == "unix":
        family, target = socket.AF_UNIX, rest
    elif kind == "tcp":
        host, port = _host_port(rest)
        address = address_of(host)
        if address is None:
            return None
        family, target = (socket.AF_INET6 if ":" in address else socket.AF_INET), (address, port)
    else:
        raise UsageError(f"cannot connect to {endpoint!r}", hint="unix:<path> or tcp:<host>:<port>")
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        _tune(sock)
        sock.connect(target)
    except BlockingIOError as error:
        if family == socket.AF_UNIX:  # its queue is full; unlike with TCP the attempt does not continue by itself
            sock.close()
            raise ConnectionRefusedError(f"{endpoint}: {error}") from error
        return sock, False
    except OSError:
        sock.close()
        raise
    return sock, True


def _tune(sock: socket.socket) -> None:
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # a network that drops packets, or a dead host, must end as a lost connection instead of waiting for hours
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_SECONDS // 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENCE_SECONDS // 6)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_SECONDS * 1000)


def _host_port(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise UsageError(f"{text!r} is not host:port", hint="for example tcp:127.0.0.1:0")
    return host, int(port)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_PAUSE_MS = 100


class Acceptor:
    """The listening sockets of a worker in its selector."""

    def __init__(self, listeners: list[Listener], selector: selectors.BaseSelector, clock: Clock) -> None:
        """Register them, each with its `Listener` as data."""
        self._listeners, self._selector, self._clock = listeners, selector, clock
        self._resumes_at_ms: float | None = None
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
    def paused(self) -> bool:
        """Return whether `resume` has to be called soon."""
        return self._resumes_at_ms is not None

    def accept_all(self, listener: Listener) -> Iterator[socket.socket]:
        """Yield the connections waiting at `listener`, until one cannot be accepted."""
        try:
            while (sock := listener.accept()) is not None:
                yield sock
        except OSError as error:
            logging.getLogger(__name__).warning("no connection can be accepted at %s now: %s", listener.endpoint, error)
            self._resumes_at_ms = self._clock.monotonic_ms() + _PAUSE_MS
            self._set_events(0)

    def resume(self) -> None:
        """Listen again when the pause is over."""
        if self._resumes_at_ms is not None and self._clock.monotonic_ms() >= self._resumes_at_ms:
            self._resumes_at_ms = None
            self._set_events(selectors.EVENT_READ)

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.close()

    def _set_events(self, events: int) -> None:
        for listener in self._listeners:
            self._selector.modify(listener.sock, events, listener)
