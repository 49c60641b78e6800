"""The JobManager's end of the control streams: a grpc.aio server that turns each TaskManager's stream into a `Session`.

Started by `penstock.jobmanager.main`; what arrives goes to a `SessionHandler`
(`penstock.jobmanager.taskmanagers`), on the event loop, in order. A stream that ends, for whatever reason, is one
`disconnected` call.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

import grpc
import msgspec
from grpc import aio

from penstock.core.errors import PenstockError
from penstock.rpc.channel import METHOD, OPTIONS, SERVICE, SendQueue
from penstock.rpc.messages import (
    RegisterTaskManager,
    TaskManagerCommand,
    TaskManagerReport,
    decode_taskmanager_report,
    encode,
)

_REGISTER_TIMEOUT_S = 10.0
_STOP_GRACE_S = 0.5


class Session:
    """One connected TaskManager."""

    def __init__(self, registration: RegisterTaskManager, peer: str) -> None:
        """Made by the server when the first message has arrived."""
        self.registration = registration
        self.peer = peer
        self.queue = SendQueue()

    @property
    def taskmanager_id(self) -> str:
        """Who is at the other end."""
        return self.registration.taskmanager_id

    def send(self, command: TaskManagerCommand) -> bool:
        """Queue a command; False when the stream is gone (its handler hears of that separately)."""
        return self.queue.put(encode(command))

    def close(self) -> None:
        """End the stream after what is queued."""
        self.queue.close()


class SessionHandler(Protocol):
    """What the server calls, on the event loop; must not block."""

    def connected(self, session: Session) -> None:
        """A TaskManager has registered."""

    def received(self, session: Session, report: TaskManagerReport) -> None:
        """A message after the registration."""

    def disconnected(self, session: Session, reason: str) -> None:
        """The stream has ended; nothing more comes from this session."""


class RpcServer:
    """Listens for TaskManagers."""

    def __init__(self, handler: SessionHandler, host: str = "127.0.0.1", port: int = 0) -> None:
        """`port` 0 takes a free one."""
        self._handler = handler
        self._host = host
        self._port = port
        self._server: aio.Server | None = None
        self._sessions: set[Session] = set()

    @property
    def address(self) -> str:
        """`host:port` that TaskManagers dial; known after `start`."""
        return f"{self._host}:{self._port}"

    async def start(self) -> str:
        """Bind and listen; return the address.

        Raises:
            PenstockError: the port is taken.
        """
        server = aio.server(options=OPTIONS)
        method = grpc.stream_stream_rpc_method_handler(self._connect)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
        try:
            self._port = server.add_insecure_port(self.address)
        except RuntimeError as error:
            msg = f"the JobManager cannot listen on {self.address}: {error}"
            raise PenstockError(msg, hint="choose another rpc port, or 0 for a free one") from error
        await server.start()
        self._server = server
        return self.address

    async def stop(self) -> None:
        """Close all streams and the port; idempotent."""
        for session in tuple(self._sessions):
            session.close()
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)
            self._server = None

    async def _connect(self, _requests: Any, context: Any) -> None:
        first = await asyncio.wait_for(context.read(), _REGISTER_TIMEOUT_S)
        if first is aio.EOF:
            return
        registration = decode_taskmanager_report(first)
        if not isinstance(registration, RegisterTaskManager):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the first message must be RegisterTaskManager")
            return
        session = Session(registration, context.peer())
        self._sessions.add(session)
        writer = asyncio.create_task(self._write(session, context))
        reason = "the connection was lost"
        try:
            self._handler.connected(session)
            reason = await self._read(session, context, writer)
        except msgspec.MsgspecError as error:
            reason = f"sent something that is no message: {error}"
        finally:
            session.close()
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError, aio.AioRpcError, grpc.RpcError):
                await writer
            self._sessions.discard(session)
            self._handler.disconnected(session, reason)

    async def _read(self, session: Session, context: Any, writer: asyncio.Task[None]) -> str:
        while True:
            read = asyncio.ensure_future(context.read())
            await asyncio.wait((read, writer), return_when=asyncio.FIRST_COMPLETED)
            if not read.done():
                read.cancel()
                return "the JobManager closed the stream"
            data = read.result()
            if data is aio.EOF:
                return "the TaskManager closed the stream"
            self._handler.received(session, decode_taskmanager_report(data))

    async def _write(self, session: Session, context: Any) -> None:
        while (data := await session.queue.get()) is not None:
            await context.write(data)
