"""The deployment of one subtask: chain, channels, range of key hashes, state to restore.

Made by `penstock.graph.execution_graph` in the JobManager; decoded in the worker by `penstock.task`. The channels of an
all-to-all edge are not listed but derived from a `PeerTable`, one for the whole deployment: lists would grow with the
square of the parallelism.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from penstock.config.settings import JobSettings
from penstock.core.snapshot import Committable, InFlightRows, KeyedStateSnapshot, OperatorStateSnapshot
from penstock.core.structs import prepare
from penstock.graph.job_graph import OperatorSpec, Partitioner


class ExecutionId(msgspec.Struct, frozen=True, order=True):
    """One attempt of one subtask."""

    vertex_id: str
    subtask: int
    attempt: int

    def __str__(self) -> str:
        """Return a short readable form."""
        return f"{self.vertex_id[:8]}_{self.subtask}#{self.attempt}"


class Attempts(msgspec.Struct, frozen=True):
    """The newest attempt of each vertex of a job: tasks of earlier ones must not run."""

    #: Of the vertices that were deployed last; 0: no tasks may run.
    newest: int = 0
    #: Vertex id -> attempt of the others: they continued while a region restarted.
    earlier: dict[str, int] = {}

    def of(self, vertex_id: str) -> int:
        """Return the newest attempt of a vertex."""
        return self.earlier.get(vertex_id, self.newest)


class ChannelId(msgspec.Struct, frozen=True, order=True):
    """A channel between two subtasks of one deployment.

    `epoch`, the job's restart number, distinguishes frames of an older deployment.
    """

    edge: int
    source_subtask: int
    target_subtask: int
    epoch: int


class InputChannelSpec(msgspec.Struct, frozen=True):
    """One incoming channel: the sender and the network endpoint of its worker."""

    id: ChannelId
    worker_id: str
    endpoint: str


class AllToAll(msgspec.Struct, frozen=True):
    """The channels of a job edge by rule: one with each subtask of the vertex at the other end, in their order."""

    edge: int
    vertex_id: str
    epoch: int


class InputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One input of the head operator: the channels of one job edge."""

    input_index: int
    schema: str
    channels: tuple[InputChannelSpec, ...] = ()
    #: Replaces `channels` until `with_channels`.
    all_of: AllToAll | None = None
    #: The largest number of channels of this edge at a subtask of either end; both divide their credit by it.
    width: int = 1
    #: Id of the edge (`graph.in_flight.edge_id`) if barriers may overtake its rows; else empty.
    overtakes: str = ""


class OutputChannelSpec(msgspec.Struct, frozen=True):
    """One outgoing channel: the receiver and its worker."""

    id: ChannelId
    worker_id: str
    endpoint: str


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One outgoing job edge; `channels[i]` leads to subtask i (a single one for Forward)."""

    partitioner: Partitioner
    schema: str
    channels: tuple[OutputChannelSpec, ...] = ()
    #: Replaces `channels` until `with_channels`.
    all_of: AllToAll | None = None
    #: As in `InputSpec`.
    width: int = 1
    overtakes: str = ""
    side_output: str | None = None
    #: As in `JobEdge`.
    combine: dict[str, Any] = {}


class OperatorRestore(msgspec.Struct, frozen=True, kw_only=True):
    """The restored state of one operator of one subtask; keyed segments are already clipped to the subtask's range."""

    uid: str
    keyed: tuple[KeyedStateSnapshot, ...] = ()
    operator: tuple[OperatorStateSnapshot, ...] = ()
    #: Withheld output of this sink subtask and run: it is still uncommitted.
    held: tuple[Committable, ...] = ()


class RestoredRows(msgspec.Struct, frozen=True, kw_only=True):
    """A file of rows in flight that a subtask processes first."""

    part: InFlightRows
    input_index: int
    #: Only rows whose key is the subtask's; empty: all rows.
    key: tuple[str, ...] = ()


class TaskDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """One subtask, ready to be started."""

    job_id: str
    job_name: str
    run_id: str
    generation: int
    execution: ExecutionId
    vertex_name: str
    parallelism: int
    #: Lowest hash that this subtask owns. The parallelism of each operator's vertex is that of its chain.
    hash_low: int
    hash_high: int
    operators: tuple[OperatorSpec, ...]
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    restore: tuple[OperatorRestore, ...] = ()
    #: In the order in which they are processed.
    in_flight: tuple[RestoredRows, ...] = ()
    #: The restored checkpoint, or None for a fresh start.
    restored_checkpoint: int | None = None
    settings: JobSettings


def encode_deployment(deployment: TaskDeployment) -> bytes:
    """Return the deployment in its wire form."""
    return msgspec.msgpack.encode(deployment)


def decode_deployment(data: bytes) -> TaskDeployment:
    """Invert `encode_deployment`."""
    return msgspec.msgpack.decode(data, type=TaskDeployment)


class PeerTable(msgspec.Struct, frozen=True, kw_only=True):
    """The places of a deployment's subtasks, as far as all-to-all edges need them."""

    epoch: int
    #: (worker id, network endpoint).
    workers: tuple[tuple[str, str], ...]
    #: Vertex id -> index in `workers` of each of its subtasks.
    places: dict[str, tuple[int, ...]]


prepare(TaskDeployment, PeerTable)


def encode_peers(table: PeerTable) -> bytes:
    """Return the table in its wire form, compressed, as ids and endpoints share most of their text."""
    return zlib.compress(msgspec.msgpack.encode(table), 1)


def decode_peers(data: bytes) -> PeerTable:
    """Invert `encode_peers`."""
    return msgspec.msgpack.decode(zlib.decompress(data), type=PeerTable)


def needs_peers(task: TaskDeployment) -> bool:
    """Return whether some of its channels are derived from a table of peers."""
    return any(spec.all_of for spec in task.inputs) or any(spec.all_of for spec in task.outputs)


def with_channels(task: TaskDeployment, peers: PeerTable | None) -> TaskDeployment:
    """Return the deployment with the channels that its edges are short for.

    Raises:
        ValueError: the table is of another deployment, or missing.
    """
    if not needs_peers(task):
        return task
    me, replace = task.execution.subtask, msgspec.structs.replace

    def ends(rule: AllToAll) -> list[tuple[int, str, str]]:
        if peers is None or peers.epoch != rule.epoch:
            msg = f"the deployment of subtask {task.execution} lacks the peer table of deployment {rule.epoch}"
            raise ValueError(msg)
        return [(other, *peers.workers[place]) for other, place in enumerate(peers.places[rule.vertex_id])]

    def input_channels(rule: AllToAll) -> tuple[InputChannelSpec, ...]:
        return tuple(
            InputChannelSpec(ChannelId(rule.edge, other, me, rule.epoch), worker, endpoint)
            for other, worker, endpoint in ends(rule)
        )

    def output_channels(rule: AllToAll) -> tuple[OutputChannelSpec, ...]:
        return tuple(
            OutputChannelSpec(ChannelId(rule.edge, me, other, rule.epoch), worker, endpoint)
            for other, worker, endpoint in ends(rule)
        )

    inputs = (
        s if s.all_of is None else replace(s, channels=input_channels(s.all_of), all_of=None) for s in task.inputs
    )
    outputs = (
        s if s.all_of is None else replace(s, channels=output_channels(s.all_of), all_of=None) for s in task.outputs
    )
    return replace(task, inputs=tuple(inputs), outputs=tuple(outputs))
