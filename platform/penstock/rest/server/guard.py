"""The outermost ASGI application: accepts or refuses a request before any other code handles it.

It wraps `rest.server.fast_app`; `rest.server.access` decides. It reads the whole body within limits of size and
time, so that a slow sender blocks only its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.core.secrets import redact
from penstock.rest.flink.request_fields import is_count
from penstock.rest.server.access import Endpoints, Refusal, RequestHead, body_limit, caller, check_request
from penstock.rpc.authentication import is_same_user

if TYPE_CHECKING:
    from penstock.config.security import Security

Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


#: Scope key of a request's `rest.server.access.Caller`.
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
class BodyTimeouts:
    """Time limits for a sender, in seconds."""

    #: For the next chunk of a body.
    piece: float = 10.0
    #: For the whole body.
    whole: float = 120.0
    #: For the rest of the body of a refused request.
    linger: float = 1.0


class _RefusedError(Exception):
    """Raised when the body is refused."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.error)
        self.refusal = refusal


class Guard:
    """An ASGI application that guards another one."""

    def __init__(
        self,
        application: Application,
        security: Security,
        log: Callable[[str], None],
        times: BodyTimeouts = BodyTimeouts(),
    ) -> None:
        """Guard `application`; `log` gets a line for every modifying and every refused request."""
        self._application = application
        self._security = security
        self._log = log
        self._times = times

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return  # no lifespan and no WebSocket
        head = _request_head(scope)
        refusal = check_request(head, self._security, _same_user)
        body = b""
        if refusal is None and head.method not in _BODYLESS:
            try:
                body = await self._body(head, receive)
            except _RefusedError as error:
                refusal = error.refusal
        if refusal is not None:
            self._log(f"refused {_shown(head)} from {_sender(head)}: {shortened(redact(refusal.error))}")
            await self._refuse(refusal, receive, send)
            return
        sender = caller(head, self._security)
        if head.method not in _BODYLESS:
            self._log(f"{redact(sender.name or 'the user')} at {_sender(head)}: {_shown(head)}")
        await self._application({**scope, CALLER: sender}, _once(body, receive), _with_headers(send))

    async def _body(self, head: RequestHead, receive: Receive) -> bytes:
        limit = body_limit(head.method, head.path)
        declared = head.headers.get("content-length", "0")
        if not is_count(declared) or int(declared) > limit:
            raise _RefusedError(_too_large(limit))
        parts, more = bytearray(), True
        try:
            async with asyncio.timeout(self._times.whole):
                while more:
                    async with asyncio.timeout(self._times.piece):
                        message = await receive()
                    if message["type"] != "http.request":
                        raise _RefusedError(Refusal(400, "the request body is incomplete (send it again)"))
                    parts += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(parts) > limit:
                        raise _RefusedError(_too_large(limit))
        except TimeoutError as error:
            late = f"the body did not arrive in time, only {len(parts):,} bytes of it (send it without pauses)"
            raise _RefusedError(Refusal(408, late)) from error
        return bytes(parts)

    async def _refuse(self, refusal: Refusal, receive: Receive, send: Send) -> None:
        body = json.dumps({"errors": [refusal.error]}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), _CLOSE]
        await send({"type": "http.response.start", "status": refusal.status, "headers": [*headers, *refusal.headers]})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        # Closing at once with unread bytes would reset the connection before the sender has read the response.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._times.linger):
                dropped = 0
                while dropped < _MOST_DROPPED_BYTES and (message := await receive())["type"] == "http.request":
                    dropped += len(message.get("body", b""))
                    if not message.get("more_body", False):
                        break
        await send({"type": "http.response.body", "body": b""})


def _request_head(scope: dict[str, Any]) -> RequestHead:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    client, server = scope.get("client"), scope.get("server")
    ends = ((client[0], client[1]), (server[0], server[1])) if client and server and server[1] is not None else None
    return RequestHead(scope["method"], scope["path"], headers, ends)


def _same_user(ends: Endpoints) -> bool:
    return is_same_user(*ends)


def _sender(head: RequestHead) -> str:
    return head.ends[0][0] if head.ends else "an unknown address"


def _shown(head: RequestHead) -> str:
    return f"{shortened(redact(head.method))} {shortened(redact(repr(head.path)))}"


def shortened(text: str) -> str:
    """Return a text from an untrusted sender, shortened for a log line or an answer."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text):,} characters)"


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the body is larger than {limit:,} bytes (pass large data in files or topics)")


def _once(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body already read, then the connection's messages."""
    given = False

    async def read() -> dict[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read


def _with_headers(send: Send) -> Send:
    """Return a `send` that adds headers against type sniffing and framing."""

    async def write(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return write
