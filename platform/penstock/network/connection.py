"""The sockets of one worker: one multiplexed connection per pair of workers, one thread for all of them.

`NetworkLimits` bounds how long a worker waits for others. Made once per worker process, after the fork.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError
from penstock.core.rand import SystemRand
from penstock.network.channel_table import ChannelTable, Peer
from penstock.network.frame import ChannelKey, Message
from penstock.network.handshake import NO_TRUST, NONCE_BYTES, Handshake, RefusedError, Trust, refusal
from penstock.network.link import Certificates, Link, is_transient
from penstock.network.session import Session
from penstock.network.sockets import Acceptor, HostResolver, Listener, address_to_dial, dial, listeners

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.graph.task_deployment import TaskDeployment
    from penstock.network.data_plane import ConnectionLost, Wake
    from penstock.network.input_gate import InputGate
    from penstock.network.network_memory import GateShare
    from penstock.network.output import ResultPartition
    from penstock.network.subpartition import Subpartition


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLimits:
    """Times and counts; immutable."""

    #: Time in which the worker with the lower id tries to connect, and for which the other waits.
    connect_deadline_ms: float = 10_000
    accept_deadline_ms: float = 30_000
    #: Time for a peer to prove its identity, and the largest number of such peers.
    handshake_deadline_ms: float = 10_000
    max_unauthenticated: int = 256


DEFAULT_LIMITS = NetworkLimits()


_RETRY_MS = 50
_IDLE_SECONDS = 1.0
_SEND_BYTES = 1 << 20
#: Bytes read from one socket before the next socket is read.
_READ_BYTES_PER_TURN = 4 << 20
_CLOSE_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _PeerState:
    """The state of one peer: its channels, and the socket once there is one."""

    session: Session
    endpoint: str
    deadline_ms: float
    link: Link | None = None
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
        trust: Trust = NO_TRUST,
        limits: NetworkLimits = DEFAULT_LIMITS,
    ) -> None:
        """Listen (`sockets.listeners`: `unix:<folder>`, `tcp:<host>:<port>`, or both) and start the thread."""
        self._worker_id, self._trust, self._limits = worker_id, trust, limits
        self._certificates = None if trust.tls is None else Certificates(trust.tls)
        self._clock, self._rand, self._resolver = clock, SystemRand(), HostResolver(clock)
        self._on_lost = on_connection_lost
        self._selector = selectors.DefaultSelector()
        self._acceptor = Acceptor(listeners(worker_id, listen), self._selector, clock)
        self._table = ChannelTable(worker_id, clock, self)
        self._peers: dict[str, _PeerState] = {}
        #: Peers without a connected socket: only these are checked in every turn.
        self._waiting: set[str] = set()
        self._links: set[Link] = set()
        #: Connections without a proof so far, oldest first, and their deadlines.
        self._unauthenticated: dict[Link, float] = {}
        self._commands: deque[Callable[[], None]] = deque()
        self._dirty: deque[Session] = deque()
        self._woken = False
        self._closing = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="penstock-network", daemon=True)
        self._thread.start()

    # --- any thread ---------------------------------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """Return the address at which other workers reach this one."""
        return self._acceptor.endpoint

    def create_gate(
        self, deployment: TaskDeployment, on_data: Wake, share: GateShare | None = None
    ) -> InputGate | None:
        """Make the gate of one subtask; None when it has no inputs. `share`: see `InputGate`."""
        return self._table.create_gate(deployment, on_data, share)

    def create_outputs(self, deployment: TaskDeployment, on_available: Wake | None = None) -> list[ResultPartition]:
        """Make the outgoing partitions of one subtask, one per outgoing edge."""
        return self._table.create_outputs(deployment, on_available)

    def start_channels(self, job_id: str) -> None:
        """Connect all channels made so far for the job; does not block."""
        self._table.start_channels(job_id)

    def release(self, job_id: str) -> None:
        """Close and forget all channels of the job; peers that still use them are notified."""
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
        """Deliver messages of the peer for `key` (called by the channel table)."""
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
        # the flag is cleared before the queues are checked, so that elements appended before are always found
        if self._woken or threading.get_ident() == self._thread.ident:
            return
        self._woken = True
        try:
            self._wake_out.send(b"\0")
        except OSError:
            self._woken = False  # the socket is closed: there is no thread to wake

    # --- network thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._run_once()
            self._run_commands()
            self._flush_dirty()
        except BaseException as error:  # noqa: BLE001 - a fault of ours must fail the tasks, not hang them
            self._fail_everything(f"the network thread of worker {self._worker_id} failed: {error!r}")
        finally:
            self._fail_everything("the worker's network was closed", report=False)
            for link in list(self._links):
                self._drop_link(link)
            self._selector.close()
            self._acceptor.close()
            self._wake_in.close()
            self._wake_out.close()

    def _run_once(self) -> None:
        for key, mask in self._selector.select(self._timeout()):
            if key.data is None:
                self._wake_in.recv(4096)
            elif isinstance(key.data, Listener):
                self._accept(key.data)
            else:
                self._serve(key.data, mask)
        self._woken = False
        self._run_commands()
        self._connect_due()
        self._drop_unauthenticated()
        self._acceptor.resume()
        self._flush_dirty()

    def _run_commands(self) -> None:
        while self._commands:
            self._commands.popleft()()

    def _timeout(self) -> float:
        if self._commands or self._dirty:
            return 0.0
        return _RETRY_MS / 1000 if self._waiting or self._acceptor.paused else _IDLE_SECONDS

    def _serve(self, link: Link, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                if link.connecting:
                    self._finish_connect(link)
                else:
                    self._send(link)
            if mask & selectors.EVENT_READ and not link.connecting and link in self._links:
                self._receive(link)
                if link.waits_for_peer and link in self._links:
                    link.waits_for_peer = False
                    self._send(link)
        except (OSError, PenstockError) as error:
            self._lost(link, str(error), retry=is_transient(error))

    def _receive(self, link: Link) -> None:
        taken = 0
        while taken < _READ_BYTES_PER_TURN or link.pending:
            count = link.receive()
            if count is None:
                return
            if count == 0:
                raise ConnectionResetError("the connection was closed by the peer")
            taken += count
            while messages := link.decoder.received(count):
                count = 0
                for message in messages:
                    if link.session is not None and link.handshake.done:
                        link.session.dispatch(message)
                    else:
                        self._on_handshake_message(link, message)

    def _send(self, link: Link) -> None:
        while True:
            if not link.unsent and link.session is not None and link.handshake.done:
                link.unsent.extend(memoryview(frame).cast("B") for frame in link.session.next_frames(_SEND_BYTES))
            if not link.unsent:
                self._want_write(link, wanted=False)
                return
            if not link.send():
                self._want_write(link, wanted=not link.waits_for_peer)
                return

    def _flush_dirty(self) -> None:
        while self._dirty:
            session = self._dirty.popleft()
            state = self._peers.get(session.peer)
            link = state.link if state is not None and state.session is session else None
            if link is None or link.connecting or link.wants_write:
                continue  # sent when the socket is connected, or can take more
            try:
                self._send(link)
            except OSError as error:
                self._lost(link, str(error), retry=is_transient(error))

    def _want_write(self, link: Link, *, wanted: bool) -> None:
        if link.wants_write != wanted:
            link.wants_write = wanted
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            self._selector.modify(link.sock, events, link)

    # --- connecting ---------------------------------------------------------------------------------------------------

    def _session_of(self, peer: Peer) -> Session:
        state = self._peers.get(peer.worker_id)
        if state is None:
            dials, limits = self._worker_id < peer.worker_id, self._limits
            deadline = self._clock.monotonic_ms() + (limits.connect_deadline_ms if dials else limits.accept_deadline_ms)
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
            if state.link is not None and state.link.handshake.done:
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
            dialled = dial(address_to_dial(state.endpoint, self._acceptor.host), self._resolver.address_of)
        except OSError as error:
            state.last_error = str(error)
            return
        if dialled is None:
            state.last_error = "the name of its host is being looked up"
            return
        sock, connected = dialled
        link = Link(sock, self._handshake(state.session.peer), state.session, self._certificates)
        state.link = link
        self._links.add(link)
        link.connecting, link.wants_write = not connected, True
        self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, link)
        link.unsent.append(memoryview(link.handshake.opening()))

    def _finish_connect(self, link: Link) -> None:
        code = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        state = self._peers.get(link.session.peer) if link.session is not None else None
        if code or state is None:
            if state is not None:
                state.last_error, state.link = f"connect failed (errno {code})", None
            self._drop_link(link)
            return
        link.connecting = False
        self._send(link)

    def _accept(self, listener: Listener) -> None:
        for sock in self._acceptor.accept_all(listener):
            link = Link(sock, self._handshake(), certificates=self._certificates)
            self._links.add(link)
            self._unauthenticated[link] = self._clock.monotonic_ms() + self._limits.handshake_deadline_ms
            self._selector.register(sock, selectors.EVENT_READ, link)
            if len(self._unauthenticated) > self._limits.max_unauthenticated:
                self._drop_link(next(iter(self._unauthenticated)))

    def _drop_unauthenticated(self) -> None:
        now = self._clock.monotonic_ms()
        for link in [link for link, deadline in self._unauthenticated.items() if deadline <= now]:
            self._drop_link(link)

    def _handshake(self, expected: str = "") -> Handshake:
        return Handshake(self._worker_id, self._trust.key, bytes.fromhex(self._rand.token(2 * NONCE_BYTES)), expected)

    def _on_handshake_message(self, link: Link, message: Message) -> None:
        """Handle a message of a connection whose handshake is not complete."""
        handshake = link.handshake
        try:
            answer = handshake.take(message)
        except RefusedError as error:
            link.unsent.append(memoryview(refusal(error)))
            link.send()
            raise
        if answer:
            link.unsent.append(memoryview(answer))
        if handshake.done:
            link.decoder.trust()
            if link.session is None:
                self._admit(link)
        self._send(link)

    def _admit(self, link: Link) -> None:
        """Attach the connection of a worker that dialled this one and has proved its identity."""
        del self._unauthenticated[link]
        state = self._peers.get(link.handshake.peer)
        if state is not None and state.link is not None:
            self._lost(state.link, "the peer has connected again")
        link.session = self._session_of(Peer(link.handshake.peer, ""))
        self._peers[link.handshake.peer].link = link

    # --- losing -------------------------------------------------------------------------------------------------------

    def _lost(self, link: Link, reason: str, *, retry: bool = False) -> None:
        """Close a connection.

        `retry`: if the handshake was not answered (the peer may have too many connections), dial again until the
        deadline.
        """
        self._drop_link(link)
        session = link.session
        if session is not None:
            state = self._peers.get(session.peer)
            if state is not None and state.link is link and retry and not link.handshake.done:
                state.last_error, state.link = reason, None
            elif state is not None and state.link is link:
                self._lose_peer(session.peer, f"connection to worker {session.peer} lost: {reason}")

    def _lose_peer(self, worker_id: str, reason: str, *, report: bool = True) -> None:
        state = self._peers.pop(worker_id)
        self._waiting.discard(worker_id)
        if state.link is not None:
            self._drop_link(state.link)
        if state.session.fail(reason) and report and self._on_lost is not None:
            self._on_lost(worker_id, reason)

    def _drop_link(self, link: Link) -> None:
        if link in self._links:
            self._links.discard(link)
            self._unauthenticated.pop(link, None)
            self._selector.unregister(link.sock)
            link.sock.close()

    def _fail_everything(self, reason: str, *, report: bool = True) -> None:
        for worker_id in list(self._peers):
            self._lose_peer(worker_id, reason, report=report)
