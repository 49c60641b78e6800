"""What one slot worker is told of one subtask: its chain, its channels, its range of key hashes, what to restore.

Made by `penstock.graph.execution_graph` in the JobManager; decoded in the worker by `penstock.task`. The channels of an
edge from all subtasks to all are not listed but follow from a `PeerTable`, one for the whole deployment: lists of them
would grow with the square of the parallelism.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from penstock.config.settings import JobSettings
from penstock.core.snapshot import Committable, KeyedStateSnapshot, OperatorStateSnapshot
from penstock.graph.job_graph import OperatorSpec, Partitioner


class ExecutionId(msgspec.Struct, frozen=True, order=True):
    """One attempt of one subtask."""

    vertex_id: str
    subtask: int
    attempt: int

    def __str__(self) -> str:
        """Return a short readable form."""
        return f"{self.vertex_id[:8]}_{self.subtask}#{self.attempt}"


class ChannelId(msgspec.Struct, frozen=True, order=True):
    """A channel between two subtasks of one deployment; `epoch`, the job's restart number, tells old frames apart."""

    edge: int
    source_subtask: int
    target_subtask: int
    epoch: int


class InputChannelSpec(msgspec.Struct, frozen=True):
    """One incoming channel: who sends, and from which worker (its network endpoint)."""

    id: ChannelId
    worker_id: str
    endpoint: str


class AllOf(msgspec.Struct, frozen=True):
    """The channels of a job edge, by rule: one with each subtask of the vertex at its other end, in their order."""

    edge: int
    vertex_id: str
    epoch: int


class InputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One input of the head operator: the channels of one job edge."""

    input_index: int
    schema: str
    channels: tuple[InputChannelSpec, ...] = ()
    #: In place of `channels` until `with_channels`.
    all_of: AllOf | None = None
    #: The most channels of this edge that a subtask at either end has: both share out their credit by it.
    width: int = 1


class OutputChannelSpec(msgspec.Struct, frozen=True):
    """One outgoing channel: who receives, and in which worker."""

    id: ChannelId
    worker_id: str
    endpoint: str


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One outgoing job edge; `channels[i]` leads to subtask i (a single one for Forward)."""

    partitioner: Partitioner
    schema: str
    channels: tuple[OutputChannelSpec, ...] = ()
    #: In place of `channels` until `with_channels`.
    all_of: AllOf | None = None
    #: As in `InputSpec`.
    width: int = 1
    side_output: str | None = None
    #: As in `JobEdge`.
    combine: dict[str, Any] = {}


class OperatorRestore(msgspec.Struct, frozen=True, kw_only=True):
    """What one operator of one subtask gets back; keyed segments already clipped to the subtask's range."""

    uid: str
    keyed: tuple[KeyedStateSnapshot, ...] = ()
    operator: tuple[OperatorStateSnapshot, ...] = ()
    #: Output of this sink subtask and run that was held back: it is owed still.
    held: tuple[Committable, ...] = ()


class TaskDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """One subtask, ready to be started."""

    job_id: str
    job_name: str
    run_id: str
    generation: int
    execution: ExecutionId
    vertex_name: str
    parallelism: int
    #: Parallelism of every operator's vertex is the chain's own; range of hashes this subtask owns.
    hash_low: int
    hash_high: int
    operators: tuple[OperatorSpec, ...]
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    restore: tuple[OperatorRestore, ...] = ()
    #: Checkpoint restored from, or None for a fresh start.
    restored_checkpoint: int | None = None
    settings: JobSettings


def encode_deployment(deployment: TaskDeployment) -> bytes:
    """Return the deployment in its wire form."""
    return msgspec.msgpack.encode(deployment)


def decode_deployment(data: bytes) -> TaskDeployment:
    """Inverse of `encode_deployment`."""
    return msgspec.msgpack.decode(data, type=TaskDeployment)


class PeerTable(msgspec.Struct, frozen=True, kw_only=True):
    """Where the subtasks of a deployment run, as far as edges from all to all need it."""

    epoch: int
    #: (worker id, network endpoint).
    workers: tuple[tuple[str, str], ...]
    #: Vertex id -> index in `workers` of each of its subtasks.
    places: dict[str, tuple[int, ...]]


def encode_peers(table: PeerTable) -> bytes:
    """Return the table in its wire form; ids and endpoints have most of their text in common."""
    return zlib.compress(msgspec.msgpack.encode(table), 1)


def decode_peers(data: bytes) -> PeerTable:
    """Inverse of `encode_peers`."""
    return msgspec.msgpack.decode(zlib.decompress(data), type=PeerTable)


def needs_peers(task: TaskDeployment) -> bool:
    """Whether some of its channels follow from a table of peers."""
    return any(spec.all_of for spec in task.inputs) or any(spec.all_of for spec in task.outputs)


def with_channels(task: TaskDeployment, peers: PeerTable | None) -> TaskDeployment:
    """Return the deployment with the channels its edges stand for.

    Raises:
        ValueError: the table is that of another deployment, or there is none.
    """
    if not needs_peers(task):
        return task
    me, replace = task.execution.subtask, msgspec.structs.replace

    def ends(rule: AllOf) -> list[tuple[int, str, str]]:
        if peers is None or peers.epoch != rule.epoch:
            msg = f"subtask {task.execution} came without the table of peers of its deployment {rule.epoch}"
            raise ValueError(msg)
        return [(other, *peers.workers[place]) for other, place in enumerate(peers.places[rule.vertex_id])]

    def entering(rule: AllOf) -> tuple[InputChannelSpec, ...]:
        return tuple(
            InputChannelSpec(ChannelId(rule.edge, other, me, rule.epoch), worker, endpoint)
            for other, worker, endpoint in ends(rule)
        )

    def leaving(rule: AllOf) -> tuple[OutputChannelSpec, ...]:
        return tuple(
            OutputChannelSpec(ChannelId(rule.edge, me, other, rule.epoch), worker, endpoint)
            for other, worker, endpoint in ends(rule)
        )

    inputs = (s if s.all_of is None else replace(s, channels=entering(s.all_of), all_of=None) for s in task.inputs)
    outputs = (s if s.all_of is None else replace(s, channels=leaving(s.all_of), all_of=None) for s in task.outputs)
    return replace(task, inputs=tuple(inputs), outputs=tuple(outputs))
