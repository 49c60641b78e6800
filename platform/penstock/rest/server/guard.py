"""The first to see a request: lets it in or refuses it, before anything of ours looks at it (ASGI).

Around `rest.server.fast_app.Door`; the decision is `rest.server.access`. A body is read here, whole, within its limits
of size and time, so that no sender holds up anything but its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.core.secrets import redact
from penstock.rest.flink.counts import is_count
from penstock.rest.server.access import Asked, Ends, Refusal, body_limit, caller, judge
from penstock.rpc.peer import is_same_user

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.config.security import Security
    from penstock.rest.server.asgi import Application, Receive, Send

#: Where the application finds the `rest.server.access.Caller` of a request in its scope.
CALLER = "penstock.caller"
_CLOSE = (b"connection", b"close")
_MOST_DROPPED_BYTES = 256 << 20
_MOST_SHOWN = 200
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
)
_BODYLESS = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyTimes:
    """How long a sender may take, in seconds."""

    #: For the next piece of a body.
    piece: float = 10.0
    #: For all of it.
    whole: float = 120.0
    #: For the rest of a body whose request was refused.
    linger: float = 1.0


class _RefusedError(Exception):
    """The body is refused."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.error)
        self.refusal = refusal


class Guard:
    """Stands before an application."""

    def __init__(
        self,
        application: Application,
        security: Security,
        log: Callable[[str], None],
        times: BodyTimes = BodyTimes(),
    ) -> None:
        """`log` gets a line for every request that changes something, and for every refused one."""
        self._application = application
        self._security = security
        self._log = log
        self._times = times

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return  # there is no lifespan and no WebSocket here
        asked = _asked(scope)
        refusal = judge(asked, self._security, _same_user)
        body = b""
        if refusal is None and asked.method not in _BODYLESS:
            try:
                body = await self._body(asked, receive)
            except _RefusedError as error:
                refusal = error.refusal
        if refusal is not None:
            self._log(f"refused {_shown(asked)} of {_sender(asked)}: {_cut(redact(refusal.error))}")
            await self._refuse(refusal, receive, send)
            return
        sender = caller(asked, self._security)
        if asked.method not in _BODYLESS:
            self._log(f"{redact(sender.name or 'the user')} at {_sender(asked)}: {_shown(asked)}")
        await self._application({**scope, CALLER: sender}, _once(body, receive), _with_headers(send))

    async def _body(self, asked: Asked, receive: Receive) -> bytes:
        limit = body_limit(asked.method, asked.path)
        declared = asked.headers.get("content-length", "0")
        if not is_count(declared) or int(declared) > limit:
            raise _RefusedError(_too_large(limit))
        parts, more = bytearray(), True
        try:
            async with asyncio.timeout(self._times.whole):
                while more:
                    async with asyncio.timeout(self._times.piece):
                        message = await receive()
                    if message["type"] != "http.request":
                        raise _RefusedError(Refusal(400, "the request was cut short (send it again)"))
                    parts += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(parts) > limit:
                        raise _RefusedError(_too_large(limit))
        except TimeoutError as error:
            late = f"the body did not come in time, {len(parts):,} bytes did (send it without pauses)"
            raise _RefusedError(Refusal(408, late)) from error
        return bytes(parts)

    async def _refuse(self, refusal: Refusal, receive: Receive, send: Send) -> None:
        body = json.dumps({"errors": [refusal.error]}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), _CLOSE]
        await send({"type": "http.response.start", "status": refusal.status, "headers": [*headers, *refusal.headers]})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        # Closed at once, with bytes unread, the connection would be reset under a sender that has not read the answer.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._times.linger):
                dropped = 0
                while dropped < _MOST_DROPPED_BYTES and (message := await receive())["type"] == "http.request":
                    dropped += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        break
        await send({"type": "http.response.body", "body": b""})


def _asked(scope: dict[str, Any]) -> Asked:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    client, server = scope.get("client"), scope.get("server")
    ends = ((client[0], client[1]), (server[0], server[1])) if client and server and server[1] is not None else None
    return Asked(scope["method"], scope["path"], headers, ends)


def _same_user(ends: Ends) -> bool:
    return is_same_user(*ends)


def _sender(asked: Asked) -> str:
    return asked.ends[0][0] if asked.ends else "somebody unknown"


def _shown(asked: Asked) -> str:
    return f"{_cut(redact(asked.method))} {_cut(redact(repr(asked.path)))}"


def _cut(text: str) -> str:
    """Return what a line of the log holds of a text that anybody may have sent."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text):,} letters)"


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the body is larger than {limit:,} bytes (pass large data through files or topics)")


def _once(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body that was read, then what the connection says."""
    given = False

    async def read() -> dict[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read


def _with_headers(send: Send) -> Send:
    """Return a `send` that tells browsers not to guess types and not to show us inside other pages."""

    async def write(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return write
