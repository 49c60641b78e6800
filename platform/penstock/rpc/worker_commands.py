"""What the JobManager tells workers; TaskManagers relay it without looking inside. Coded by `rpc.messages`."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Common options of all control messages."""


class DeployTasks(Message, frozen=True, kw_only=True):
    """Start these subtasks (`graph.deployment.encode_deployment`), all of one region in this worker: channels first."""

    job_id: str
    generation: int
    tasks: tuple[bytes, ...]


class DeployPeers(Message, frozen=True, kw_only=True):
    """Where the other subtasks run, for the `DeployTasks` that follows; the same for all workers of a TaskManager."""

    job_id: str
    #: `graph.deployment.encode_peers` bytes.
    table: bytes


class CancelTasks(Message, frozen=True, kw_only=True):
    """Cancel all subtasks of the job in this worker and report each as CANCELED."""

    job_id: str


class TriggerCheckpoint(Message, frozen=True, kw_only=True):
    """Sources put the barrier into the stream; the others learn that one is on its way."""

    job_id: str
    run_id: str
    generation: int
    checkpoint_id: int
    #: A `core.elements.BarrierKind`.
    kind: str


class CheckpointCompleted(Message, frozen=True, kw_only=True):
    """The manifest exists: sinks may publish, readers may publish offsets."""

    permit: CommitPermit
    #: Sinks (uids) that may not publish yet: the run is on trial.
    held: tuple[str, ...] = ()


class CheckpointAborted(Message, frozen=True, kw_only=True):
    """The checkpoint will never be complete."""

    job_id: str
    run_id: str
    checkpoint_id: int


class AlignWatermarks(Message, frozen=True, kw_only=True):
    """Source subtasks (`<vertex>/<subtask>`) wait while their watermark is above their limit (microseconds)."""

    job_id: str
    attempt: int
    limits: dict[str, int]


class AssignSplits(Message, frozen=True, kw_only=True):
    """Splits for one source subtask; `splits` are `connector.source.SourceSplit` as builtins."""

    job_id: str
    vertex_id: str
    subtask: int
    attempt: int
    splits: tuple[dict[str, Any], ...]
    no_more: bool


class ResolvePending(Message, frozen=True, kw_only=True):
    """Before a region opens: fence, read markers, publish what is owed, for every sink of the job.

    Answered by PendingResolved.
    """

    permit: CommitPermit
    job_name: str
    checkpoint_root: str
    #: uid -> `connector.sink.SinkSpec` as builtins.
    sinks: dict[str, dict[str, Any]]
    #: Transactional id prefixes `<job>.<uid>.<run>.` whose writers must be fenced, per uid.
    prefixes: dict[str, tuple[str, ...]]
    committables: tuple[Committable, ...]


class WriteSavepoint(Message, frozen=True, kw_only=True):
    """Write the state of a complete checkpoint as a self-contained savepoint at `uri`; answered by SavepointWritten."""

    job_id: str
    savepoint_id: str
    uri: str
    checkpoint_root: str
    job_name: str
    #: `checkpoint.manifest.encode_manifest` bytes.
    manifest: bytes


class AskSubtask(Message, frozen=True, kw_only=True):
    """Look at a running subtask, between two batches; answered by SubtaskAnswer of the same request, or not at all."""

    job_id: str
    request_id: str
    vertex_id: str
    subtask: int
    #: `state`: the rows of one key; `keys`: which there are; `states`: what there is, and how much; `hot-keys`;
    #: `watermarks`: how far the splits of its sources are.
    what: str
    #: How long somebody waits for the answer.
    wait_ms: float = 10_000.0
    #: Of `state` and `keys`: the operator, its state, the most rows or keys; the key's parts as texts
    #: (`state.keys.key_text`), or the range of hashes in which the keys lie.
    uid: str = ""
    state: str = ""
    key: tuple[str, ...] = ()
    between: tuple[int, int] = (0, 0)
    most: int = 0


class SampleStacks(Message, frozen=True, kw_only=True):
    """Look again and again at where this worker's subtasks of a vertex are; answered by SubtaskAnswer at the end."""

    job_id: str
    request_id: str
    vertex_id: str
    #: For how long, and how often.
    duration_ms: float
    interval_ms: float


class DumpThreads(Message, frozen=True, kw_only=True):
    """Say where each thread of the worker is; answered by SubtaskAnswer."""

    job_id: str
    request_id: str


class FinishTasks(Message, frozen=True, kw_only=True):
    """The final checkpoint is complete and published: close all subtasks of the job and report FINISHED."""

    job_id: str


class LeaseRenewed(Message, frozen=True, kw_only=True):
    """The supervisor passes on that the coordinator has heard of it (re-arms the worker's kernel lease)."""

    sequence: int
    #: Host's monotonic clock (ms) at which the lease ends: counted from when the acknowledged heartbeat was *sent*,
    #: so a worker never outlives what the coordinator believes. 0: a full lease from now.
    expires_monotonic_ms: float = 0.0


WorkerCommand = (
    DeployTasks
    | DeployPeers
    | CancelTasks
    | TriggerCheckpoint
    | CheckpointCompleted
    | CheckpointAborted
    | AlignWatermarks
    | AssignSplits
    | ResolvePending
    | WriteSavepoint
    | AskSubtask
    | SampleStacks
    | DumpThreads
    | FinishTasks
    | LeaseRenewed
)
