"""`GET /metrics` of a TaskManager: Prometheus metrics of its process and its workers' processes.

Started by `taskmanager.main` on the supervisor's event loop. It implements minimal HTTP/1.1 with one request per
connection, because a web server would be the largest part of this process. Task metrics are exported by the JobManager
only, so scraping both counts nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from penstock.config.security import Security, check_listening
from penstock.core.errors import PenstockError
from penstock.rpc.peer import is_same_user

_MAX_HEAD_BYTES = 16 << 10
_HEAD_SECONDS = 10.0
_MOST_CONNECTIONS = 20
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 503: "Busy"}
_TYPE = "text/plain; version=0.0.4"


class MetricsServer:
    """Serves the result of `text`; call `start` and `close` on the event loop."""

    def __init__(self, text: Callable[[], str], security: Security) -> None:
        """Prepare the server; it does not listen before `start`."""
        self._text = text
        self._security = security
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> str:
        """Listen; return `host:port` with the actual port.

        Raises:
            UsageError: the address is reachable by others without protection. PenstockError: the port is in use.
        """
        check_listening(self._security, host)
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_MAX_HEAD_BYTES)
        except OSError as error:
            msg = f"/metrics cannot listen on {host}:{port}: {error.strerror}"
            raise PenstockError(msg, hint="choose another --metrics-port, or stop the process that uses it") from error
        address = self._server.sockets[0].getsockname()
        return f"{host}:{address[1]}"

    async def close(self) -> None:
        """Stop listening; idempotent."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            status, body = (503, "") if self._open > _MOST_CONNECTIONS else await self._answer(reader, writer)
            data = body.encode()
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(data)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + data)
            await asyncio.wait_for(writer.drain(), _HEAD_SECONDS)
        except (TimeoutError, ConnectionError):
            return  # the client has gone, or did not complete its request
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, str]:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_SECONDS)
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            return 400, ""
        first, *rest = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or words[0] not in ("GET", "HEAD"):
            return 400, ""
        headers = dict(line.lower().partition(":")[::2] for line in rest if ":" in line)
        if (refused := self._refused(rest, headers, writer)) is not None:
            return refused, ""
        if words[1].partition("?")[0] != "/metrics":
            return 404, ""
        return 200, self._text() if words[0] == "GET" else ""

    def _refused(self, lines: list[str], headers: dict[str, str], writer: asyncio.StreamWriter) -> int | None:
        """Return the refusal status for a missing token or another local user; None accepts the request."""
        if not self._security.tokens:
            if self._security.insecure:
                return None
            ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
            host = headers.get("host", "").strip().rpartition(":")[0]
            known = host in ("127.0.0.1", "localhost", "[::1]")
            return None if known and is_same_user(ends[0][:2], ends[1][:2]) else 403
        given = next((line for line in lines if line.lower().startswith("authorization:")), "")
        scheme, _, token = given.partition(":")[2].strip().partition(" ")
        known = scheme.lower() == "bearer" and self._security.role_of(token.strip()) is not None
        return None if known else 401
