"""Commands from the JobManager to workers; TaskManagers relay them unchanged. Encoded by `rpc.messages`."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.permits import CommitPermit
from penstock.core.snapshot import Committable


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Common options of all control messages."""


class DeployTasks(Message, frozen=True, kw_only=True):
    """Start these subtasks (`graph.deployment.encode_deployment`) in this worker, with their channels first."""

    job_id: str
    generation: int
    tasks: tuple[bytes, ...]


class DeployPeers(Message, frozen=True, kw_only=True):
    """Addresses of the other subtasks, for the following `DeployTasks`; the same for all workers of a TaskManager."""

    job_id: str
    #: `graph.deployment.encode_peers` bytes.
    table: bytes


class CancelTasks(Message, frozen=True, kw_only=True):
    """Cancel all subtasks of the job in this worker and report each as CANCELED."""

    job_id: str


class TriggerCheckpoint(Message, frozen=True, kw_only=True):
    """Emit the barrier in sources; other subtasks learn that it is coming."""

    job_id: str
    run_id: str
    generation: int
    checkpoint_id: int
    #: A `core.elements.BarrierKind`.
    kind: str


class CheckpointCompleted(Message, frozen=True, kw_only=True):
    """The manifest is durable: sinks may publish output, sources may publish offsets."""

    permit: CommitPermit
    #: Sinks (uids) that must withhold their output: the run is on trial.
    held: tuple[str, ...] = ()


class CheckpointAborted(Message, frozen=True, kw_only=True):
    """The checkpoint was aborted."""

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
    """Before the start: fence older runs, read markers, publish pending output, for every sink of the job.

    Answered by PendingResolved.
    """

    permit: CommitPermit
    job_name: str
    checkpoint_root: str
    #: uid -> `connector.sink.SinkSpec` as builtins.
    sinks: dict[str, dict[str, Any]]
    #: By uid: transactional id prefixes `<job>.<uid>.<run>.` whose writers must be fenced.
    prefixes: dict[str, tuple[str, ...]]
    committables: tuple[Committable, ...]


class WriteSavepoint(Message, frozen=True, kw_only=True):
    """Write a completed checkpoint to `uri` as a self-contained savepoint; answered by SavepointWritten."""

    job_id: str
    savepoint_id: str
    uri: str
    checkpoint_root: str
    job_name: str
    #: `checkpoint.manifest.encode_manifest` bytes.
    manifest: bytes


class AskSubtask(Message, frozen=True, kw_only=True):
    """Query a running subtask between two batches; answered by SubtaskAnswer of the same request, or not at all."""

    job_id: str
    request_id: str
    vertex_id: str
    subtask: int
    #: `state`: the rows of one key; `keys`: existing keys; `states`: all states with sizes; `hot-keys`; `watermarks`:
    #: those of the splits of its sources.
    what: str
    #: How long the caller waits for the answer.
    wait_ms: float = 10_000.0
    #: For `state` and `keys`: the operator, its state, the maximum number of rows or keys; the key's parts as texts
    #: (`state.keys.key_text`), or the range of key hashes.
    uid: str = ""
    state: str = ""
    key: tuple[str, ...] = ()
    between: tuple[int, int] = (0, 0)
    most: int = 0


class SampleStacks(Message, frozen=True, kw_only=True):
    """Sample the stacks of this worker's subtasks of a vertex; answered by SubtaskAnswer at the end."""

    job_id: str
    request_id: str
    vertex_id: str
    #: Duration and interval of the sampling.
    duration_ms: float
    interval_ms: float


class DumpThreads(Message, frozen=True, kw_only=True):
    """Report the stacks of all threads of the worker; answered by SubtaskAnswer."""

    job_id: str
    request_id: str


class FinishTasks(Message, frozen=True, kw_only=True):
    """The final checkpoint is completed and published: close all subtasks of the job and report FINISHED."""

    job_id: str


class LeaseRenewed(Message, frozen=True, kw_only=True):
    """Renew the worker's kernel lease: the JobManager has acknowledged a heartbeat."""

    sequence: int
    #: Host's monotonic clock (ms) at which the lease ends, counted from when the acknowledged heartbeat was *sent*: a
    #: worker never outlives the JobManager's view of it. 0: a full lease from now.
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
