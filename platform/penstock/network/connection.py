"""The sockets of one worker: one multiplexed connection per pair of workers, one thread for all of them.

The only module of the data plane with sockets and a thread; made once per worker process, after the fork. Of two
workers the one with the lower id dials, so that there is never a second connection. A connection that is lost,
refused or broken fails every channel on it. Docs of the calls: `data_plane`.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError
from penstock.network.addresses import Listener, dial
from penstock.network.channel_table import ChannelTable, Peer
from penstock.network.frame import (
    ChannelKey,
    FrameDecoder,
    FrameError,
    FrameKind,
    Message,
    decode_hello,
    encode_message,
)
from penstock.network.greeting import Greeter
from penstock.network.session import Session

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.graph.deployment import TaskDeployment
    from penstock.network.data_plane import ConnectionLost, Wake
    from penstock.network.input_gate import InputGate
    from penstock.network.output import ResultPartition
    from penstock.network.partitioner import SplitKernels
    from penstock.network.subpartition import Subpartition

#: How long the lower id tries to reach the other, and how long the other waits for it.
CONNECT_DEADLINE_MS = 10_000
ACCEPT_DEADLINE_MS = 30_000
_RETRY_MS = 50
_IDLE_SECONDS = 1.0
_SEND_BYTES = 1 << 20
_SEND_BUFFERS = 64
#: Read from one socket before the others get their turn.
_READ_BYTES_PER_TURN = 4 << 20
_CLOSE_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _Link:
    """One socket."""

    sock: socket.socket
    decoder: FrameDecoder = field(default_factory=FrameDecoder)
    #: None until an accepted socket has said who it is.
    session: Session | None = None
    unsent: deque[memoryview] = field(default_factory=deque)
    #: Whether the other side's hello has been seen.
    greeted: bool = False
    connecting: bool = False
    wants_write: bool = False


@dataclass(slots=True, eq=False)
class _PeerState:
    """What is known of one peer: its channels, and the socket once there is one."""

    session: Session
    endpoint: str
    deadline_ms: float
    link: _Link | None = None
    retry_at_ms: float = 0.0
    last_error: str = ""


class WorkerNetwork:
    """The data plane of one worker process."""

    def __init__(
        self,
        worker_id: str,
        listen: str,
        clock: Clock,
        *,
        on_connection_lost: ConnectionLost | None = None,
        kernels: SplitKernels | None = None,
        key: bytes = b"",
    ) -> None:
        """Listen at `unix:<folder>` or `tcp:<host>:<port>` (port 0: any) and start the thread; `key`: `greeting`."""
        self._worker_id, self._greeter = worker_id, Greeter(worker_id, key)
        self._clock = clock
        self._on_lost = on_connection_lost
        self._listener = Listener(worker_id, listen)
        self._table = ChannelTable(worker_id, clock, self, kernels)
        self._peers: dict[str, _PeerState] = {}
        #: Peers without a socket that is up: only these are looked at in every turn.
        self._waiting: set[str] = set()
        self._links: set[_Link] = set()
        self._commands: deque[Callable[[], None]] = deque()
        self._dirty: deque[Session] = deque()
        self._woken = False
        self._closing = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock, what in ((self._wake_in, "wake"), (self._listener.sock, "accept")):
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, what)
        self._thread = threading.Thread(target=self._run, name="penstock-network", daemon=True)
        self._thread.start()

    # --- any thread ---------------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """Where other workers reach this one."""
        return self._listener.endpoint

    def create_gate(self, deployment: TaskDeployment, on_data: Wake) -> InputGate | None:
        """Make the gate of one subtask; None when it has no inputs."""
        return self._table.create_gate(deployment, on_data)

    def create_outputs(self, deployment: TaskDeployment, on_available: Wake | None = None) -> list[ResultPartition]:
        """Make the outgoing partitions of one subtask, one an outgoing edge."""
        return self._table.create_outputs(deployment, on_available)

    def start_channels(self, job_id: str) -> None:
        """Connect all channels made so far for the job; returns at once."""
        self._table.start_channels(job_id)

    def release(self, job_id: str) -> None:
        """Close and forget all channels of the job; peers that still use them are told."""
        self._table.release(job_id)

    def close(self) -> None:
        """Release everything, send what can be sent at once, stop the thread and remove the socket file."""
        if self._closing:
            return
        for job_id in self._table.job_ids():
            self._table.release(job_id)
        self._closing = True
        self._wake()
        self._thread.join(_CLOSE_SECONDS)

    def attach_output(self, peer: Peer, key: ChannelKey, source: Subpartition) -> None:
        """Carry `source` to the peer (called by the channel table)."""
        self._post(lambda: self._session_of(peer).attach_output(key, source))

    def attach_input(self, peer: Peer, key: ChannelKey, gate: InputGate, channel: int) -> None:
        """Deliver what the peer sends under `key` (called by the channel table)."""
        self._post(lambda: self._session_of(peer).attach_input(key, gate, channel))

    def detach(self, keys: list[ChannelKey]) -> None:
        """Forget channels (called by the channel table)."""
        self._post(partial(self._detach, keys))

    def _post(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._wake()

    def _session_changed(self, session: Session) -> None:
        self._dirty.append(session)
        self._wake()

    def _wake(self) -> None:
        # the flag is cleared before the queues are looked at, so what was appended before this check is always seen
        if self._woken or threading.get_ident() == self._thread.ident:
            return
        self._woken = True
        try:
            self._wake_out.send(b"\0")
        except OSError:
            self._woken = False  # closed: nobody is left to wake

    # --- network thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
            self._run_commands()
            self._flush_dirty()
        except BaseException as error:  # noqa: BLE001 - a fault of ours must fail the tasks, not hang them
            self._fail_everything(f"the network thread of worker {self._worker_id} failed: {error!r}")
        finally:
            self._fail_everything("the worker's network was closed", report=False)
            for link in list(self._links):
                self._drop_link(link)
            self._selector.close()
            self._listener.close()
            self._wake_in.close()
            self._wake_out.close()

    def _turn(self) -> None:
        for key, mask in self._selector.select(self._timeout()):
            if key.data == "wake":
                self._wake_in.recv(4096)
            elif key.data == "accept":
                self._accept()
            else:
                self._serve(key.data, mask)
        self._woken = False
        self._run_commands()
        self._connect_due()
        self._flush_dirty()

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _timeout(self) -> float:
        if self._commands or self._dirty:
            return 0.0
        return _RETRY_MS / 1000 if self._waiting else _IDLE_SECONDS

    def _serve(self, link: _Link, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                if link.connecting:
                    self._finish_connect(link)
                else:
                    self._send(link)
            if mask & selectors.EVENT_READ and not link.connecting and link in self._links:
                self._receive(link)
        except (OSError, PenstockError) as error:
            self._lost(link, str(error))

    def _receive(self, link: _Link) -> None:
        taken = 0
        while taken < _READ_BYTES_PER_TURN:
            try:
                count = link.sock.recvmsg_into(link.decoder.buffers())[0]
            except (BlockingIOError, InterruptedError):
                return
            if count == 0:
                self._lost(link, "the connection was closed by the peer")
                return
            taken += count
            for message in link.decoder.received(count):
                if link.session is not None and link.greeted:
                    link.session.dispatch(message)
                else:
                    self._greeted(link, message)

    def _send(self, link: _Link) -> None:
        session = link.session
        while True:
            if not link.unsent and session is not None:
                link.unsent.extend(memoryview(frame).cast("B") for frame in session.next_frames(_SEND_BYTES))
            if not link.unsent:
                self._want_write(link, wanted=False)
                return
            buffers = [link.unsent[index] for index in range(min(len(link.unsent), _SEND_BUFFERS))]
            try:
                sent = link.sock.sendmsg(buffers)
            except (BlockingIOError, InterruptedError):
                self._want_write(link, wanted=True)
                return
            while sent:
                first = link.unsent[0]
                if sent < len(first):
                    link.unsent[0] = first[sent:]
                    break
                sent -= len(first)
                link.unsent.popleft()

    def _flush_dirty(self) -> None:
        while self._dirty:
            session = self._dirty.popleft()
            state = self._peers.get(session.peer)
            link = state.link if state is not None and state.session is session else None
            if link is None or link.connecting or link.wants_write:
                continue  # sent when the socket is there, or can take more
            try:
                self._send(link)
            except OSError as error:
                self._lost(link, str(error))

    def _want_write(self, link: _Link, *, wanted: bool) -> None:
        if link.wants_write != wanted:
            link.wants_write = wanted
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            self._selector.modify(link.sock, events, link)

    # --- connecting ---------------------------------------------------------------------------------------------------

    def _session_of(self, peer: Peer) -> Session:
        state = self._peers.get(peer.worker_id)
        if state is None:
            dials = self._worker_id < peer.worker_id
            deadline = self._clock.monotonic_ms() + (CONNECT_DEADLINE_MS if dials else ACCEPT_DEADLINE_MS)
            session = Session(peer.worker_id, self._session_changed)
            state = self._peers[peer.worker_id] = _PeerState(session, peer.endpoint, deadline)
            self._waiting.add(peer.worker_id)
        return state.session

    def _detach(self, keys: list[ChannelKey]) -> None:
        for state in self._peers.values():
            state.session.detach(keys)

    def _connect_due(self) -> None:
        for worker_id in list(self._waiting):
            state = self._peers[worker_id]
            if state.link is not None and not state.link.connecting:
                self._waiting.discard(worker_id)
                continue
            now = self._clock.monotonic_ms()
            if now >= state.deadline_ms:
                why = state.last_error or "it did not connect in time"
                self._lose_peer(worker_id, f"worker {worker_id} at {state.endpoint} cannot be reached: {why}")
            elif state.link is None and self._worker_id < worker_id and now >= state.retry_at_ms:
                state.retry_at_ms = now + _RETRY_MS
                self._dial(state)

    def _dial(self, state: _PeerState) -> None:
        try:
            sock, connected = dial(state.endpoint)
        except OSError as error:
            state.last_error = str(error)
            return
        link = _Link(sock, session=state.session, connecting=not connected)
        state.link = link
        self._links.add(link)
        link.wants_write = True
        self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, link)
        if connected:
            state.session.greet(self._greeter.hello(state.session.peer))

    def _finish_connect(self, link: _Link) -> None:
        code = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        state = self._peers.get(link.session.peer) if link.session is not None else None
        if code or state is None:
            if state is not None:
                state.last_error, state.link = f"connect failed (errno {code})", None
            self._drop_link(link)
            return
        link.connecting = False
        state.session.greet(self._greeter.hello(state.session.peer))
        self._send(link)

    def _accept(self) -> None:
        while (sock := self._listener.accept()) is not None:
            link = _Link(sock)
            self._links.add(link)
            self._selector.register(sock, selectors.EVENT_READ, link)

    def _greeted(self, link: _Link, message: Message) -> None:
        """Take the first message of a connection."""
        if message.kind is FrameKind.RESET and link.session is not None:
            link.session.dispatch(message)
        hello = decode_hello(message)
        if reason := self._greeter.refusal(hello):
            link.sock.sendmsg([encode_message(FrameKind.RESET, payload=reason.encode())])
            raise FrameError(f"worker {hello.worker_id} is refused: {reason}")
        link.greeted = True
        if link.session is not None:  # we dialled
            if hello.worker_id != link.session.peer:
                raise FrameError(f"expected worker {link.session.peer}, reached {hello.worker_id}")
            return
        state = self._peers.get(hello.worker_id)
        if state is not None and state.link is not None:
            self._lost(state.link, "the peer has connected anew")
        session = self._session_of(Peer(hello.worker_id, ""))
        self._peers[hello.worker_id].link = link
        link.session = session
        session.greet(self._greeter.hello(hello.worker_id))
        self._send(link)

    # --- losing -------------------------------------------------------------------------------------------------------

    def _lost(self, link: _Link, reason: str) -> None:
        self._drop_link(link)
        session = link.session
        if session is not None:
            state = self._peers.get(session.peer)
            if state is not None and state.link is link:
                self._lose_peer(session.peer, f"connection to worker {session.peer} lost: {reason}")

    def _lose_peer(self, worker_id: str, reason: str, *, report: bool = True) -> None:
        state = self._peers.pop(worker_id)
        self._waiting.discard(worker_id)
        if state.link is not None:
            self._drop_link(state.link)
        if state.session.fail(reason) and report and self._on_lost is not None:
            self._on_lost(worker_id, reason)

    def _drop_link(self, link: _Link) -> None:
        if link in self._links:
            self._links.discard(link)
            self._selector.unregister(link.sock)
            link.sock.close()

    def _fail_everything(self, reason: str, *, report: bool = True) -> None:
        for worker_id in list(self._peers):
            self._lose_peer(worker_id, reason, report=report)
