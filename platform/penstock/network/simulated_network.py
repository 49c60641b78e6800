"""The data plane without sockets: the same gates and partitions over links that move one frame per call.

A `MemoryTransport` is the network between the `MemoryNetwork`s of simulated workers. The simulator takes a link of
`ready_links()` and calls `pump(link)`, in an order that a seed reproduces, or cuts a link.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.network.channel_table import ChannelTable, Peer
from penstock.network.frame import FrameDecoder, FrameError
from penstock.network.session import Session

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.core.clock import Clock
    from penstock.graph.task_deployment import TaskDeployment
    from penstock.network.data_plane import ConnectionLost, Wake
    from penstock.network.frame import ChannelKey
    from penstock.network.input_gate import InputGate
    from penstock.network.network_memory import GateShare
    from penstock.network.output import ResultPartition, SplitKernels
    from penstock.network.subpartition import Subpartition


class WorkerPair(NamedTuple):
    """One direction between two workers."""

    source: str
    target: str


@dataclass(slots=True, eq=False)
class _Direction:
    decoder: FrameDecoder = field(default_factory=FrameDecoder)
    #: Buffers taken from the session that have not moved.
    waiting: deque[Buffer] = field(default_factory=deque)


class MemoryTransport:
    """All links between simulated workers."""

    def __init__(self, frame_limit: int = 0) -> None:
        """Take `frame_limit`, the payload bytes of a frame; 0 for the usual limit."""
        self._frame_limit = frame_limit
        self._networks: dict[str, MemoryNetwork] = {}
        self._directions: dict[WorkerPair, _Direction] = {}
        self._partitioned: set[frozenset[str]] = set()
        #: Frames moved so far.
        self.frames_moved = 0

    def join(self, network: MemoryNetwork) -> None:
        """Add a worker (called by the network itself)."""
        self._networks[network.worker_id] = network

    def leave(self, worker_id: str, reason: str = "the worker has left") -> None:
        """Remove a worker as a crash does: its peers lose their connection."""
        network = self._networks.pop(worker_id, None)
        if network is None:
            return
        for peer in list(network.sessions):
            self.disconnect(worker_id, peer, reason)
            network.lose(peer, reason)

    def partition(self, one: str, other: str) -> None:
        """Stop frames between two workers without notifying them."""
        self._partitioned.add(frozenset((one, other)))

    def heal(self, one: str, other: str) -> None:
        """Undo `partition`."""
        self._partitioned.discard(frozenset((one, other)))

    def disconnect(self, one: str, other: str, reason: str = "the connection was cut") -> None:
        """Break the connection: frames on the way are lost, and both live sides are notified."""
        for link in (WorkerPair(one, other), WorkerPair(other, one)):
            self._directions.pop(link, None)
        for worker_id, peer in ((one, other), (other, one)):
            network = self._networks.get(worker_id)
            if network is not None:
                network.lose(peer, reason)

    def ready_links(self) -> list[WorkerPair]:
        """Return the links on which `pump` would move a frame, in a fixed order."""
        links: list[WorkerPair] = []
        for worker_id in sorted(self._networks):
            sessions = self._networks[worker_id].sessions
            for peer in sorted(sessions):
                link = WorkerPair(worker_id, peer)
                direction = self._directions.get(link)
                if not sessions[peer].has_output and (direction is None or not direction.waiting):
                    continue
                if peer in self._networks and frozenset(link) not in self._partitioned:
                    links.append(link)
        return links

    def pump(self, link: WorkerPair) -> bool:
        """Move one frame over `link`; return whether there was one."""
        source, target = self._networks.get(link.source), self._networks.get(link.target)
        if source is None or target is None or frozenset(link) in self._partitioned:
            return False
        direction = self._directions.setdefault(link, _Direction())
        session = source.sessions.get(link.target)
        if not direction.waiting and session is not None:
            direction.waiting.extend(session.next_frames(1, self._frame_limit))
        if not direction.waiting:
            return False
        self.frames_moved += 1
        data = direction.waiting.popleft()
        self._deliver(link, direction, target, data)
        return True

    def pump_all(self, limit: int = 1_000_000) -> int:
        """Move frames, link after link, until nothing moves (or `limit`); return how many."""
        moved = 0
        while moved < limit and (links := self.ready_links()):
            before = moved
            for link in links:
                moved += self.pump(link)
            if moved == before:
                break
        return moved

    def _deliver(self, link: WorkerPair, direction: _Direction, target: MemoryNetwork, data: Buffer) -> None:
        receiver = target.session_of(Peer(link.source, f"memory:{link.source}"))
        try:
            for message in direction.decoder.feed(data):
                receiver.dispatch(message)
        except FrameError as error:
            self.disconnect(link.source, link.target, str(error))


class MemoryNetwork:
    """The data plane of one simulated worker."""

    def __init__(
        self,
        worker_id: str,
        transport: MemoryTransport,
        clock: Clock,
        *,
        on_connection_lost: ConnectionLost | None = None,
        kernels: SplitKernels | None = None,
    ) -> None:
        """Join the transport as `worker_id`."""
        self.worker_id = worker_id
        #: Sessions by peer, used by the transport.
        self.sessions: dict[str, Session] = {}
        self._transport = transport
        self._on_lost = on_connection_lost
        self._table = ChannelTable(worker_id, clock, self, kernels)
        transport.join(self)

    @property
    def endpoint(self) -> str:
        """Return the address at which other workers reach this one."""
        return f"memory:{self.worker_id}"

    def create_gate(
        self, deployment: TaskDeployment, on_data: Wake, share: GateShare | None = None
    ) -> InputGate | None:
        """Make the gate of one subtask; None when it has no inputs. `share`: see `InputGate`."""
        return self._table.create_gate(deployment, on_data, share)

    def create_outputs(self, deployment: TaskDeployment, on_available: Wake | None = None) -> list[ResultPartition]:
        """Make the outgoing partitions of one subtask, one per outgoing edge."""
        return self._table.create_outputs(deployment, on_available)

    def start_channels(self, job_id: str) -> None:
        """Connect all channels made so far for the job."""
        self._table.start_channels(job_id)

    def release(self, job_id: str) -> None:
        """Close and forget all channels of the job."""
        self._table.release(job_id)

    def close(self) -> None:
        """Release everything and leave the transport; frames that have not moved are lost."""
        for job_id in self._table.job_ids():
            self._table.release(job_id)
        self._transport.leave(self.worker_id)

    def attach_output(self, peer: Peer, key: ChannelKey, source: Subpartition) -> None:
        """Carry `source` to the peer (called by the channel table)."""
        self.session_of(peer).attach_output(key, source)

    def attach_input(self, peer: Peer, key: ChannelKey, gate: InputGate, channel: int) -> None:
        """Deliver messages of the peer for `key` (called by the channel table)."""
        self.session_of(peer).attach_input(key, gate, channel)

    def detach(self, keys: list[ChannelKey]) -> None:
        """Forget channels (called by the channel table)."""
        for session in self.sessions.values():
            session.detach(keys)

    def session_of(self, peer: Peer) -> Session:
        """Return the session with a peer, made on first use."""
        session = self.sessions.get(peer.worker_id)
        if session is None:
            session = self.sessions[peer.worker_id] = Session(peer.worker_id, lambda _: None)
        return session

    def lose(self, peer: str, reason: str) -> None:
        """Fail the channels to `peer`, whose connection is gone (called by the transport)."""
        session = self.sessions.pop(peer, None)
        if session is None:
            return
        text = f"connection to worker {peer} lost: {reason}"
        if session.fail(text) and self._on_lost is not None:
            self._on_lost(peer, text)
