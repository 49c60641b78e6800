"""The REST API of a JobManager in either role: the leader answers, a standby forwards to the leader.

Used by `rest.server.http_server`, inside the guard: a standby accepts and refuses requests as the leader does. A leader
whose lease may have lapsed, such as one that was suspended, renews it before it answers, and else forwards. While no
JobManager leads, a standby shows the recorded jobs as SUSPENDED.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import h11

from penstock.core.errors import LeadershipLostError, NotFoundError, PenstockError, StorageError
from penstock.rest.flink import documents as flink_json

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.checkpoint.leader_lease import LeaderLease
    from penstock.core.clock import Clock
    from penstock.jobmanager.jobs.suspended_jobs import SuspendedJobs
    from penstock.jobmanager.main import JobManager
    from penstock.rest.server.guard import Application, Receive, Send

_LOGGER = logging.getLogger(__name__)
#: Who leads, as this process knows; answered in both roles.
LEADER_PATH = "/v1/penstock/leader"
#: The other JobManagers of the HA root; answered by the leader.
_STANDBYS_PATH = "/v1/penstock/standbys"
#: Ends the lead of the process that leads.
_HAND_OVER_PATH = f"{LEADER_PATH}/hand-over"
_CONNECT_S = 5.0
#: A leader that says nothing for this long is suspended or overloaded; no answer takes longer.
_SILENCE_S = 60.0
#: How often a forwarded read looks whether another JobManager leads.
_LOOK_S = 0.2
_CHUNK_BYTES = 1 << 16
#: Headers of one connection, which the forwarded request and answer do not have.
_OF_CONNECTION = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"content-length", b"server", b"date"}
_FORWARDED = b"x-penstock-forwarded"
#: In an answer of a standby that knows no leader: a client may ask another JobManager.
_OF_STANDBY = (b"x-penstock-role", b"standby")
_RETRY = (b"retry-after", b"1")


class RoleApp:
    """The application of one process, for as long as it runs."""

    def __init__(self, clock: Clock, look_s: float = _LOOK_S) -> None:
        """Start without a JobManager; a forwarded read looks every `look_s` whether another one leads."""
        self._clock, self._look_s = clock, look_s
        self._manager: JobManager | None = None
        self._leading: Application | None = None
        #: The newest lease that was read.
        self._lease: LeaderLease | None = None

    def standing(self, manager: JobManager) -> None:
        """Forward requests, as a standby."""
        self._manager, self._leading = manager, None

    def leading(self, application: Application) -> None:
        """Answer requests as the leader."""
        self._leading = application

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer or forward one request (ASGI)."""
        leads = self._leading is not None and await self._confirmed()
        if _is_for(scope, "GET", LEADER_PATH):
            await _answer(send, 200, self._leader(leads=leads))
        elif leads and _is_for(scope, "POST", _HAND_OVER_PATH):
            self._hand_over()
            await _answer(send, 202, {})
        elif leads and _is_for(scope, "GET", _STANDBYS_PATH):
            await _answer(send, 200, {"standbys": self._standbys()})
        elif leads and self._leading is not None:
            await self._leading(scope, receive, send)
        else:
            await self._forward(scope, receive, send)

    async def _confirmed(self) -> bool:
        """Return whether this process still leads; if the store fails, as far as it knows."""
        manager = self._manager
        if manager is None or manager.leadership is None:
            return False
        try:
            await manager.leadership.confirm()
        except LeadershipLostError as error:
            if self._manager is manager:
                self._leading = None
            manager.fail(error)
            return False
        except StorageError as error:
            _LOGGER.warning("cannot confirm the leadership: %s", error)
        return self._leading is not None

    def _hand_over(self) -> None:
        if self._manager is not None:
            self._leading = None
            self._manager.hand_over()

    def _newest_lease(self) -> LeaderLease | None:
        if self._manager is not None and self._manager.leadership is not None:
            self._lease = self._manager.leadership.leader or self._lease
        return self._lease

    def _leader(self, *, leads: bool) -> dict[str, Any]:
        lease = self._newest_lease()
        return {
            "role": "leader" if leads else "standby",
            "leader": None if lease is None else {"url": lease.rest, "rpc": lease.rpc, "generation": lease.generation},
        }

    def _standbys(self) -> list[dict[str, Any]]:
        if self._manager is None or self._manager.leadership is None:
            return []
        found = self._manager.leadership.standbys
        return [{"url": one.rest, "host": one.holder.host, "pid": one.holder.pid} for one in found]

    async def _forward(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Forward to the leader over http; over https redirect, because a client's certificate cannot be forwarded."""
        lease = self._newest_lease()
        place = "" if lease is None else lease.rest
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        target = f"{path}?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else path
        own = self._manager is not None and place == self._manager.rest_url
        if not place or own or any(name == _FORWARDED for name, _ in scope["headers"]):
            text = "this JobManager is a standby, and no other leads yet (try again in a few seconds)"
            await self._answer_without_leader(scope if own else None, send, text)
        elif place.startswith("https:"):
            await _answer(
                send, 307, {"errors": [f"{place} leads"]}, (b"location", f"{place}{target}".encode("latin-1"))
            )
        else:
            try:
                await self._relay(place, (scope["method"], target, scope["headers"]), receive, send)
            except _NotReachedError as error:
                text, hint = f"the leader at {place} does not answer: {error}", "a standby takes over within seconds"
                await self._answer_without_leader(scope if error.gone else None, send, f"{text} (try again: {hint})")
            except _ReplacedError:
                await self(scope, receive, send)

    async def _answer_without_leader(self, scope: dict[str, Any] | None, send: Send, text: str) -> None:
        """Let the caller try again: `text` says why. With `scope`, show the recorded jobs if the request is for them.

        Without it, another JobManager may lead.
        """
        shown, manager = None, self._manager
        if scope is not None and scope["method"] == "GET" and manager is not None and manager.has_joined:
            try:
                shown = await _suspended(manager.suspended_jobs, scope["path"], self._clock.now_ms())
            except NotFoundError:
                pass  # a leader may know it since
            except PenstockError as error:
                _LOGGER.warning("cannot read the recorded jobs: %s", error)
        if shown is None:
            await _answer(send, 503, {"errors": [text]}, _RETRY)
        else:
            await _answer(send, 200, shown, _OF_STANDBY)

    async def _relay(
        self, place: str, head: tuple[str, str, list[tuple[bytes, bytes]]], receive: Receive, send: Send
    ) -> None:
        """Forward one request; only one that the leader has not received, or a read, may be sent again.

        Raises:
            _NotReachedError: the leader takes no connection, or the caller has not sent the whole request.
            _ReplacedError: a read has no answer, and another JobManager leads.
        """
        begun = False

        async def relay(message: dict[str, Any]) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            body, streams = await _body(receive), await _connected(place)
        except (OSError, TimeoutError) as error:
            gone = isinstance(error, ConnectionRefusedError)
            raise _NotReachedError(str(error) or type(error).__name__, gone=gone) from error
        try:
            exchange = _exchange(streams, head, body, relay)
            await (exchange if body or head[0] not in ("GET", "HEAD") else self._while_leading(place, exchange))
        except _ReplacedError:
            if begun:
                raise ConnectionAbortedError(f"{place} leads no longer") from None
            raise
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            if begun:
                raise
            text = f"the leader at {place} has not answered: {str(error) or type(error).__name__}"
            again: tuple[tuple[bytes, bytes], ...] = (_RETRY,) if head[0] in ("GET", "HEAD") else ()
            await _answer(
                send, 503 if again else 504, {"errors": [f"{text} (the request may have been received)"]}, *again
            )

    async def _while_leading(self, place: str, exchange: Coroutine[Any, Any, None]) -> None:
        """Await an exchange with the leader; give it up when another one leads: a suspended process never answers."""
        task = asyncio.create_task(exchange)
        try:
            while not (await asyncio.wait({task}, timeout=self._look_s))[0]:
                lease, own = self._newest_lease(), self._manager and self._manager.rest_url
                if self._leading is not None or (lease is not None and lease.rest not in (place, own)):
                    raise _ReplacedError
            task.result()
        finally:
            task.cancel()


class _NotReachedError(Exception):
    """The leader has not received the request."""

    def __init__(self, text: str, *, gone: bool) -> None:
        """`gone`: its host refuses connections, so its process has ended; else the path to it may be broken."""
        super().__init__(text)
        self.gone = gone


class _ReplacedError(Exception):
    """Another JobManager leads than the one that was asked."""


async def _suspended(jobs: SuspendedJobs | None, path: str, now_ms: int) -> dict[str, Any] | None:
    """Return the answer to a read of all jobs or of one; None for any other path.

    `/jobs/:id/status` is none of them: Flink's client polls it, and programs take SUSPENDED there for the job's end.
    """
    if jobs is None:
        return None
    match path.removeprefix("/v1").split("/"):
        case ["", "jobs"]:
            return flink_json.job_ids(await jobs.jobs())
        case ["", "jobs", "overview"]:
            return flink_json.jobs_overview(await jobs.jobs(), now_ms)
        case ["", "jobs", name] if name != "metrics":
            return flink_json.job_detail(await jobs.detail(name), now_ms)
    return None


async def _body(receive: Receive) -> bytes:
    """Return the body; the guard has read it within its limits."""
    parts, more = bytearray(), True
    while more:
        message = await receive()
        parts += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(parts)


async def _connected(place: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = urlsplit(place)
    async with asyncio.timeout(_CONNECT_S):
        return await asyncio.open_connection(url.hostname, url.port)


async def _exchange(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    head: tuple[str, str, list[tuple[bytes, bytes]]],
    body: bytes,
    send: Send,
) -> None:
    """Send a request and relay the answer; the caller's headers go along, also Host and Authorization."""
    method, target, given = head
    (reader, writer), connection = streams, h11.Connection(h11.CLIENT)
    headers = [(name, value) for name, value in given if name.lower() not in _OF_CONNECTION]
    headers += [(b"connection", b"close"), (b"content-length", str(len(body)).encode()), (_FORWARDED, b"1")]
    try:
        request = h11.Request(method=method, target=target, headers=headers)
        for part in (request, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(part) or b"")
        async with asyncio.timeout(_SILENCE_S):
            await writer.drain()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(_SILENCE_S):
                    data = await reader.read(_CHUNK_BYTES)
                connection.receive_data(data)
            elif isinstance(event, h11.Response):
                kept = [(name, value) for name, value in event.headers if name.lower() not in _OF_CONNECTION]
                await send({"type": "http.response.start", "status": event.status_code, "headers": kept})
            elif isinstance(event, h11.Data):
                await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                await send({"type": "http.response.body", "body": b""})
                return
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _is_for(scope: dict[str, Any], method: str, path: str) -> bool:
    """Return whether a request is for a path, which may lack its version."""
    return scope["path"] in (path, path.removeprefix("/v1")) and scope["method"] == method


async def _answer(send: Send, status: int, document: dict[str, Any], *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps(document).encode()
    given = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": body})
