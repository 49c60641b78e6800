"""The JobManager's end of the control streams: a grpc.aio server with a `Session` for each TaskManager's stream.

Started by `penstock.jobmanager.main`. Messages are passed to a `SessionHandler`
(`penstock.jobmanager.cluster.taskmanagers`) on the event loop, in order. Any end of a stream leads to one
`disconnected` call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import grpc
import msgspec
from grpc import aio

from penstock.config.security import UNPROTECTED, Security, is_loopback
from penstock.core.errors import PenstockError
from penstock.core.rand import Rand, SystemRand
from penstock.rpc import channel
from penstock.rpc.authentication import NONCE_BYTES, AuthenticationError, JobManagerEnd, is_same_user, split_address
from penstock.rpc.channel import METHOD, OPTIONS, SERVICE, SendQueue
from penstock.rpc.messages import (
    RegisterTaskManager,
    TaskManagerCommand,
    TaskManagerReport,
    decode_taskmanager_reports,
    encode,
)

_REGISTER_TIMEOUT_S = 10.0
_STOP_GRACE_S = 0.5
#: The reason for the end of a stream that its TaskManager did not announce.
_BROKEN = "the connection broke: its process ended or was killed, or its machine is lost"


class Session:
    """A connected TaskManager."""

    def __init__(self, registration: RegisterTaskManager, peer: str) -> None:
        """Create the session from the first message."""
        self.registration = registration
        self.peer = peer
        self.queue = SendQueue()

    @property
    def taskmanager_id(self) -> str:
        """The id of the TaskManager."""
        return self.registration.taskmanager_id

    def send(self, command: TaskManagerCommand) -> bool:
        """Queue a command; return False if the stream has ended (the handler is notified separately)."""
        return self.queue.put(encode(command))

    def close(self) -> None:
        """End the stream after the queued messages."""
        self.queue.close()


class SessionHandler(Protocol):
    """The callbacks of the server, called on the event loop; they must not block."""

    def connected(self, session: Session) -> None:
        """Handle a TaskManager's registration."""

    def received(self, session: Session, report: TaskManagerReport) -> None:
        """Handle a message after the registration."""

    def disconnected(self, session: Session, reason: str) -> None:
        """Handle the end of the stream; the session delivers no further messages."""


class RpcServer:
    """Listens for TaskManagers."""

    def __init__(
        self,
        handler: SessionHandler,
        host: str = "127.0.0.1",
        port: int = 0,
        security: Security = UNPROTECTED,
        log: Callable[[str], None] = lambda _text: None,
        register_timeout_s: float = _REGISTER_TIMEOUT_S,
    ) -> None:
        """Prepare the server; `port` 0 takes a free one, `log` gets a line for each refused connection.

        A connection must register within `register_timeout_s`.
        """
        self._handler = handler
        self._host = host
        self._port = port
        self._security = security
        self._log = log
        self._register_timeout_s = register_timeout_s
        self._rand: Rand = SystemRand()
        self._server: aio.Server | None = None
        self._sessions: set[Session] = set()

    @property
    def address(self) -> str:
        """`host:port` that TaskManagers connect to; known after `start`."""
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
            cluster = self._security.cluster
            self._port = (
                server.add_insecure_port(self.address)
                if cluster is None
                else server.add_secure_port(self.address, channel.server_credentials(cluster))
            )
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
        try:
            registration = await asyncio.wait_for(self._admit(context), self._register_timeout_s)
        except (PenstockError, TimeoutError, msgspec.MsgspecError) as error:
            late = isinstance(error, TimeoutError)
            reason = "it did not register in time" if late else str(error)
            self._log(f"refused a TaskManager at {context.peer()}: {reason}")
            # The slow end is unknown, so this is not reported as distrust, which ends a TaskManager soon.
            code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.UNAUTHENTICATED
            await context.abort(code, reason)
            return
        if registration is None:
            return
        session = Session(registration, context.peer())
        self._sessions.add(session)
        writer = asyncio.create_task(self._write(session, context))
        reason = _BROKEN
        try:
            self._handler.connected(session)
            reason = await self._read(session, context, writer)
        except msgspec.MsgspecError as error:
            reason = f"it sent an invalid message: {error}"
        finally:
            session.close()
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError, aio.AioRpcError, grpc.RpcError):
                await writer
            self._sessions.discard(session)
            self._handler.disconnected(session, reason)

    async def _admit(self, context: Any) -> RegisterTaskManager | None:
        """Verify a connection; return its registration, or None if the stream ended."""
        self._check_peer(context)
        end = JobManagerEnd(self._security.secret, bytes.fromhex(self._rand.token(2 * NONCE_BYTES)))
        if (greeting := await context.read()) is aio.EOF:
            return None
        await context.write(end.answer(greeting))
        if (proof := await context.read()) is aio.EOF:
            return None
        end.check(proof)
        if (first := await context.read()) is aio.EOF:
            return None
        registration, *_ = decode_taskmanager_reports(first) or (None,)
        if not isinstance(registration, RegisterTaskManager):
            raise AuthenticationError("the first message must be RegisterTaskManager", hint="it has another version")
        return registration

    def _check_peer(self, context: Any) -> None:
        """Refuse a foreign certificate, or without certificates another local user, before reading any byte."""
        if self._security.cluster is not None:
            if not channel.is_cluster_certificate(context.auth_context()):
                raise AuthenticationError("its certificate is not the cluster's", hint="use the cluster's cluster.pem")
            return
        host, port = split_address(context.peer())
        if is_loopback(self._host) and not is_same_user((host, port), (self._host, self._port)):
            raise AuthenticationError("it runs as another user", hint="start it as the user that runs the JobManager")

    async def _read(self, session: Session, context: Any, writer: asyncio.Task[None]) -> str:
        """Pass on messages until one end closes the stream; return why it ended."""
        reading = asyncio.create_task(self._pass_on(session, context))
        try:
            await asyncio.wait((reading, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
        if not reading.done():
            return "the JobManager closed the stream"
        reading.result()
        return _BROKEN

    async def _pass_on(self, session: Session, context: Any) -> None:
        while (data := await context.read()) is not aio.EOF:
            for report in decode_taskmanager_reports(data):
                self._handler.received(session, report)

    async def _write(self, session: Session, context: Any) -> None:
        while (data := await session.queue.get()) is not None:
            await context.write(data)
