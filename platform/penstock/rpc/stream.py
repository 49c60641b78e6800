"""The control stream between TaskManager and JobManager: its queue, the JobManager's end, and the TaskManager's end.

A gRPC stream of msgpack bytes (`rpc.messages`). `penstock.jobmanager.main` starts the server, which passes messages to
a `SessionHandler` (`penstock.jobmanager.cluster.taskmanagers`). `penstock.taskmanager` has the link, which connects,
registers, and reconnects with backoff. Everything runs on the event loops of the two, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import msgspec
from grpc import aio

from penstock.config.security import UNPROTECTED, Security
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import PenstockError
from penstock.core.rand import Rand, SystemRand
from penstock.rpc import tls
from penstock.rpc.admission import OPTIONS, SERVICE, Admission, open_channel, prove
from penstock.rpc.authentication import AuthenticationError
from penstock.rpc.jobmanagers import JobManagers, ListedJobManagers
from penstock.rpc.messages import (
    RegisterTaskManager,
    TaskManagerCommand,
    TaskManagerReport,
    decode_taskmanager_commands,
    decode_taskmanager_reports,
    encode,
    joined,
)
from penstock.rpc.probes import METHOD as PROBE
from penstock.rpc.probes import LeaderProber, ProbeAnswer, ProbeService

METHOD = "Connect"
PATH = f"/{SERVICE}/{METHOD}"
#: Messages waiting in one stream; a peer that lets the queue fill up counts as lost.
SEND_QUEUE_LIMIT = 10_000
#: Waiting messages are sent together up to this size; a larger one is sent alone.
JOINED_BYTES = 1 << 20


class SendQueue:
    """A bounded queue of encoded messages with one reader; `put` never waits: an overflow closes it."""

    def __init__(self, limit: int = SEND_QUEUE_LIMIT) -> None:
        """Create a queue of at most `limit` messages."""
        self._messages: deque[bytes] = deque()
        self._limit = limit
        self._filled = asyncio.Event()
        self.closed = False

    def put(self, data: bytes) -> bool:
        """Append a message; return False if the queue is closed or overflows, which closes it."""
        if self.closed:
            return False
        if len(self._messages) >= self._limit:
            self.close()
            return False
        self._messages.append(data)
        self._filled.set()
        return True

    def close(self) -> None:
        """Let the reader end after the queued messages; idempotent."""
        self.closed = True
        self._filled.set()

    async def get(self) -> bytes | None:
        """Return the waiting messages, `joined`, or None if the queue is closed and empty."""
        await self._filled.wait()
        taken: list[bytes] = []
        size = 0
        while self._messages and (not taken or size + len(self._messages[0]) <= JOINED_BYTES):
            size += len(self._messages[0])
            taken.append(self._messages.popleft())
        if not self._messages and not self.closed:
            self._filled.clear()
        return joined(taken) if taken else None


# --- the JobManager's end -------------------------------------------------------------------------------

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
        self._admission = Admission(security, SystemRand())
        self._probes: ProbeService | None = None
        self._server: aio.Server | None = None
        self._sessions: set[Session] = set()

    @property
    def address(self) -> str:
        """`host:port` that TaskManagers connect to; known after `start`."""
        return f"{self._host}:{self._port}"

    async def start(self, probed: Callable[[], ProbeAnswer] | None = None) -> str:
        """Bind and listen; return the address. `probed` answers the probes of standbys.

        Raises:
            PenstockError: the port is taken.
        """
        server = aio.server(options=OPTIONS)
        methods = {METHOD: grpc.stream_stream_rpc_method_handler(self._connect)}
        if probed is not None:
            self._probes = ProbeService(self._admission, probed)
            methods[PROBE] = grpc.stream_stream_rpc_method_handler(self._probes.serve)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        try:
            cluster = self._security.cluster
            self._port = (
                server.add_insecure_port(self.address)
                if cluster is None
                else server.add_secure_port(self.address, tls.server_credentials(cluster))
            )
        except RuntimeError as error:
            msg = f"the JobManager cannot listen on {self.address}: {error}"
            raise PenstockError(msg, hint="choose another rpc port, or 0 for a free one") from error
        self._admission.bound(self._host, self._port)
        await server.start()
        self._server = server
        return self.address

    async def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """Close all streams and the port; idempotent. A stream that does not end within `grace_s` is cancelled."""
        for session in tuple(self._sessions):
            session.close()
        if self._probes is not None:
            self._probes.close()
        if self._server is not None:
            await self._server.stop(grace_s)
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
        if not await self._admission.passed(context) or (first := await context.read()) is aio.EOF:
            return None
        registration, *_ = decode_taskmanager_reports(first) or (None,)
        if not isinstance(registration, RegisterTaskManager):
            raise AuthenticationError("the first message must be RegisterTaskManager", hint="it has another version")
        return registration

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


# --- the TaskManager's end ------------------------------------------------------------------------------

_RECHECK_MS = 200.0
#: After this silence of the JobManager another one may lead, and how often that is asked from then on.
_SUSPECT_MS = 750.0
_ASK_AGAIN_MS = 200.0


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """Delays between connection attempts, and limits after which to give up."""

    first_delay_ms: int = 50
    max_delay_ms: int = 500
    #: For this time after the start and after a loss the delay does not grow: a JobManager starts or takes over.
    starting_ms: int = 5_000
    #: Unreachable for this long: `run` raises; None waits forever.
    give_up_after_ms: int | None = 600_000
    #: Limit for a JobManager that answers, if the mutual proof fails.
    authentication_timeout_ms: int = 10_000
    #: A new stream without an answer is closed after this time; the time doubles up to the maximum.
    answer_ms: int = 5_000
    max_answer_ms: int = 10_000
    #: A JobManager that does not answer a probe within this time does not lead.
    probe_ms: int = 1_500


class TaskManagerLink:
    """The TaskManager's connection to its JobManager."""

    def __init__(
        self,
        jobmanagers: str | JobManagers,
        register: Callable[[], RegisterTaskManager],
        handle: Callable[[TaskManagerCommand], None],
        on_disconnect: Callable[[str], None] = lambda _reason: None,
        policy: ReconnectPolicy = ReconnectPolicy(),
        security: Security = UNPROTECTED,
    ) -> None:
        """Prepare the link; `register` returns the first message of each stream, `handle` must not block; see `run`.

        `jobmanagers` as a text is `host:port` of a JobManager's control port, or several with commas between them.
        """
        self._jobmanagers = (
            ListedJobManagers(jobmanagers, self._generation_of) if isinstance(jobmanagers, str) else jobmanagers
        )
        #: Of the present or last stream.
        self.address = ""
        self._register = register
        self._handle = handle
        self._on_disconnect = on_disconnect
        #: Called after each attempt with what the link waits for; empty once a JobManager answers.
        self.on_waiting: Callable[[str], None] = lambda _text: None
        self._policy = policy
        self._security = security
        self._authentication_failed = False
        self._clock: Clock = SystemClock()
        self._rand: Rand = SystemRand()
        self._queue: SendQueue | None = None
        self._closing = asyncio.Event()
        #: Allowed silence of the stream; None: unlimited.
        self._silence_ms: float | None = None
        #: When the last message of the stream arrived (monotonic), and whether there was one.
        self._heard_ms, self._heard = 0.0, False
        self._limit_changed = asyncio.Event()
        self._answer_ms = float(policy.answer_ms)

    @property
    def connected(self) -> bool:
        """Whether a stream is open."""
        return self._queue is not None and not self._queue.closed

    def send(self, report: TaskManagerReport) -> bool:
        """Queue a report; return False if not connected: the JobManager has already counted the workers as lost."""
        return self._queue is not None and self._queue.put(encode(report))

    def expect(self, silence_ms: float) -> None:
        """Close the stream if it is silent for this long: a lost connection may not be reported."""
        self._silence_ms = silence_ms
        self._limit_changed.set()

    def close(self) -> None:
        """Let `run` return."""
        self._closing.set()
        if self._queue is not None:
            self._queue.close()

    async def run(self) -> None:
        """Keep a stream open until `close`.

        Raises:
            PenstockError: the JobManager was unreachable for `give_up_after_ms`.
        """
        delay_ms = float(self._policy.first_delay_ms)
        lost_since = self._clock.monotonic_ms()
        distrusted_since: float | None = None
        grows_at = lost_since + self._policy.starting_ms
        while not self._closing.is_set():
            heard, reason = await self._one_stream()
            if self._closing.is_set():
                return
            now = self._clock.monotonic_ms()
            if not heard:
                place = f"the control port of a JobManager at {self.address}" if self.address else "a JobManager"
                self.on_waiting(f"waiting for {place}: {reason}")
            if heard:
                delay_ms, lost_since, grows_at = float(self._policy.first_delay_ms), now, now + self._policy.starting_ms
            # Counted separately from `lost_since`: this JobManager may have started just now.
            distrusted_since = (
                (now if distrusted_since is None else distrusted_since) if self._authentication_failed else None
            )
            self._check_patience(now - lost_since, None if distrusted_since is None else now - distrusted_since, reason)
            wait_s = delay_ms * (0.8 + 0.4 * self._rand.fraction()) / 1000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait_s)
            if now >= grows_at:
                delay_ms = min(delay_ms * 2, self._policy.max_delay_ms)

    def _check_patience(self, lost_ms: float, distrusted_ms: float | None, reason: str) -> None:
        """Raise if the JobManager has been unreachable, or its proof has failed, for too long."""
        give_up = self._policy.give_up_after_ms
        distrusted = distrusted_ms is not None and distrusted_ms > self._policy.authentication_timeout_ms
        if distrusted or (give_up is not None and lost_ms > give_up):
            msg = f"the JobManager at {self.address} is unreachable: {reason}"
            raise PenstockError(msg, hint="it answers" if distrusted else "check that it is running, and its address")

    async def _one_stream(self) -> tuple[bool, str]:
        """Connect, register and serve one stream; return whether the JobManager answered, and why the stream ended."""
        self._heard = self._authentication_failed = False
        self._silence_ms = self._answer_ms
        reason = "the JobManager closed the stream"
        queue = SendQueue()
        try:
            self.address = await asyncio.to_thread(self._jobmanagers.next_address)
        except PenstockError as error:
            return False, str(error)
        channel = open_channel(self.address, self._security)
        reading: asyncio.Task[None] | None = None
        try:
            self._heard_ms = self._clock.monotonic_ms()
            reading = asyncio.create_task(self._serve(channel.stream_stream(PATH)(), queue))
            await self._watch(reading)
        except AuthenticationError as error:
            reason, self._authentication_failed = str(error), True
        except (grpc.RpcError, aio.UsageError) as error:
            reason = _reason_of(error)
            self._authentication_failed = getattr(error, "code", lambda: None)() == grpc.StatusCode.UNAUTHENTICATED
        except asyncio.InvalidStateError as error:
            reason = str(error)
        except TimeoutError as error:
            reason = str(error) or f"the JobManager did not answer within {self._answer_ms / 1000:.0f} s"
            if not self._heard:
                self._answer_ms = min(2 * self._answer_ms, float(self._policy.max_answer_ms))
        except msgspec.MsgspecError as error:
            reason = f"the JobManager sent an invalid message: {error}"
        finally:
            self._queue = None
            queue.close()
            if reading is not None and not reading.done():
                await _cancelled(reading)
            await channel.close()
        if self._heard:
            self._on_disconnect(reason)
        return self._heard, reason

    async def _serve(self, call: Any, queue: SendQueue) -> None:
        """Register, then handle messages until the end of the stream."""
        await prove(call, self._security.secret, self._rand)
        await call.write(joined([encode(self._register())]))
        self._heard_ms, self._queue = self._clock.monotonic_ms(), queue
        writer = asyncio.create_task(_write(queue, call))
        try:
            while (data := await call.read()) is not aio.EOF:
                self._heard_ms = self._clock.monotonic_ms()
                if not self._heard:  # from now on the handler sets the limit
                    self._heard, self._silence_ms, self._answer_ms = True, None, float(self._policy.answer_ms)
                    self._limit_changed.set()
                    self.on_waiting("")
                for command in decode_taskmanager_commands(data):
                    self._handle(command)
        finally:
            await _cancelled(writer)

    async def _watch(self, reading: asyncio.Task[None]) -> None:
        """Wait for the end of the stream or of the link.

        A message costs no timer: its time is read once the wait for the message before it has passed.

        Raises:
            TimeoutError: the stream was silent for too long, or for a while and another JobManager leads.
        """
        closing = asyncio.create_task(self._closing.wait())
        passed, last = 0, (self._heard_ms, self._silence_ms)
        try:
            while True:
                now, silence_ms = (self._heard_ms, self._silence_ms), self._silence_ms
                passed, last = (passed, last) if now == last else (0, now)
                waits = _waits_ms(silence_ms)
                if passed == len(waits):
                    raise TimeoutError(f"the JobManager was silent for {(silence_ms or 0) / 1000:.1f} s")
                timeout_ms = waits[passed]
                elapsed_ms = 0.0 if passed else self._clock.monotonic_ms() - self._heard_ms
                wait_s = None if timeout_ms is None else max(0.0, timeout_ms - elapsed_ms) / 1000
                if await self._ended(reading, closing, wait_s):
                    return
                asks = timeout_ms in (_SUSPECT_MS, _ASK_AGAIN_MS) and last == (self._heard_ms, self._silence_ms)
                if asks and (other := await self._other_leader(reading)):
                    raise TimeoutError(f"the JobManager at {other} leads")
                passed += 1
        finally:
            closing.cancel()

    async def _ended(self, reading: asyncio.Task[None], closing: asyncio.Task[Any], wait_s: float | None) -> bool:
        """Wait, or until the limit changes; return whether the stream or the link has ended."""
        self._limit_changed.clear()
        changed = asyncio.create_task(self._limit_changed.wait())
        await asyncio.wait((reading, closing, changed), timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        if reading.done():
            reading.result()
        return reading.done() or closing.done()

    async def _other_leader(self, reading: asyncio.Task[None]) -> str:
        """Return the address of another leader; empty if there is none, or a message arrives before it is known."""
        before = self._heard_ms
        asking = asyncio.create_task(self._jobmanagers.other_leader(self.address))
        asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())  # an error is no answer
        await asyncio.wait((reading, asking), timeout=self._policy.probe_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        asking.cancel()
        answered = asking.done() and asking.exception() is None and not reading.done()
        return asking.result() if answered and self._heard_ms == before else ""

    async def _generation_of(self, address: str) -> int:
        prober = LeaderProber(self._security, self._rand)
        try:
            return (await prober.ask(address, self._policy.probe_ms / 1000)).generation
        except PenstockError:
            return 0
        finally:
            await prober.close()


def _waits_ms(silence_ms: float | None) -> list[float | None]:
    """Return how long to wait for a message, step by step, if it may be silent for `silence_ms`."""
    if silence_ms is None:
        return [None]
    suspect: list[float] = []
    if silence_ms >= _SUSPECT_MS:
        suspect = [_SUSPECT_MS, *[_ASK_AGAIN_MS] * int((silence_ms - _SUSPECT_MS) // _ASK_AGAIN_MS)]
    return [*suspect, max(0.0, silence_ms - sum(suspect)), _RECHECK_MS]


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, grpc.RpcError, asyncio.InvalidStateError):
        await task


async def _write(queue: SendQueue, call: Any) -> None:
    while (data := await queue.get()) is not None:
        await call.write(data)
    await call.done_writing()


def _reason_of(error: BaseException) -> str:
    details = getattr(error, "details", None)
    text = str((details() if callable(details) else None) or error)
    if "failed to connect" in text:  # gRPC lists each try
        cause = text.rpartition(": ")[2]
        return f"{cause} (start `penstock jobmanager`, or check the port: it is not the one of the REST API)"
    return text
