"""What one slot worker is told of one subtask: its chain, its channels, its range of key hashes, what to restore.

Made by `penstock.graph.execution_graph` in the JobManager; decoded in the worker by `penstock.task`.
"""

from __future__ import annotations

import msgspec

from penstock.config.settings import JobSettings
from penstock.core.snapshot import KeyedStateSnapshot, OperatorStateSnapshot
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


class InputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One input of the head operator: the channels of one job edge."""

    input_index: int
    schema: str
    channels: tuple[InputChannelSpec, ...]


class OutputChannelSpec(msgspec.Struct, frozen=True):
    """One outgoing channel: who receives, and in which worker."""

    id: ChannelId
    worker_id: str
    endpoint: str


class OutputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One outgoing job edge; `channels[i]` leads to subtask i (a single one for Forward)."""

    partitioner: Partitioner
    schema: str
    channels: tuple[OutputChannelSpec, ...]
    side_output: str | None = None


class OperatorRestore(msgspec.Struct, frozen=True, kw_only=True):
    """What one operator of one subtask gets back; keyed segments already clipped to the subtask's range."""

    uid: str
    keyed: tuple[KeyedStateSnapshot, ...] = ()
    operator: tuple[OperatorStateSnapshot, ...] = ()


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
