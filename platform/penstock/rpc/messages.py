"""All control messages, and their encoding. There are two connections.

JobManager and TaskManager have a gRPC stream, TaskManager and worker a socket pair; the TaskManager relays
unchanged. A receiver drops messages whose (job, run, generation, attempt) is older than its own; `generation` is that
of the job's leader that sends a command.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.core.permits import CommitPermit
from penstock.core.snapshot import CheckpointMetrics, Committable, FileRef, SubtaskSnapshot


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Common options of all control messages."""


class DeployTasks(Message, frozen=True, kw_only=True):
    """Start these subtasks (`graph.task_deployment.encode_deployment`) in this worker, with their channels first."""

    job_id: str
    generation: int
    tasks: tuple[bytes, ...]


class DeployPeers(Message, frozen=True, kw_only=True):
    """Addresses of the other subtasks, for the following `DeployTasks`; the same for all workers of a TaskManager."""

    job_id: str
    #: `graph.task_deployment.encode_peers` bytes.
    table: bytes


class PrepareTasks(Message, frozen=True, kw_only=True):
    """Load the state of these subtasks, which a later `DeployTasks` starts here; answered by TasksPrepared.

    Asked again with a later checkpoint, load what it adds.
    """

    job_id: str
    generation: int
    #: Number of the request.
    round: int
    #: `graph.task_deployment.encode_deployment` bytes.
    tasks: tuple[bytes, ...]


class PauseCompaction(Message, frozen=True, kw_only=True):
    """Merge no segments of the job's state until `paused` is false, so that checkpoints differ by new segments only."""

    job_id: str
    run_id: str
    generation: int
    paused: bool


class CancelTasks(Message, frozen=True, kw_only=True):
    """Cancel all subtasks of the job in this worker and report each as CANCELED."""

    job_id: str
    generation: int


class TriggerCheckpoint(Message, frozen=True, kw_only=True):
    """Emit the barrier in sources; other subtasks learn that it is coming."""

    job_id: str
    run_id: str
    generation: int
    checkpoint_id: int
    #: A `core.elements.BarrierKind`.
    kind: str
    #: Its barriers overtake rows.
    overtakes: bool = False


class LetBarriersOvertake(Message, frozen=True, kw_only=True):
    """Let the barriers of a checkpoint under way overtake rows: they were not aligned in time."""

    job_id: str
    run_id: str
    generation: int
    checkpoint_id: int


class CheckpointCompleted(Message, frozen=True, kw_only=True):
    """The manifest is durable: sinks may publish output, sources may publish offsets."""

    permit: CommitPermit
    #: Sinks (uids) that must withhold their output: the run is on trial.
    held: tuple[str, ...] = ()


class CheckpointAborted(Message, frozen=True, kw_only=True):
    """The checkpoint was aborted."""

    job_id: str
    run_id: str
    generation: int
    checkpoint_id: int


class AlignWatermarks(Message, frozen=True, kw_only=True):
    """Source subtasks (`<vertex>/<subtask>`) wait while their watermark is above their limit (microseconds)."""

    job_id: str
    generation: int
    attempt: int
    limits: dict[str, int]


class AssignSplits(Message, frozen=True, kw_only=True):
    """Splits for one source subtask; `splits` are `connector.source.SourceSplit` as builtins."""

    job_id: str
    generation: int
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
    """Copy some subtasks of a completed checkpoint to `uri`, as a part of a savepoint; answered by SavepointPart."""

    job_id: str
    savepoint_id: str
    uri: str
    checkpoint_root: str
    job_name: str
    #: The checkpoint with the subtasks of this part (`checkpoint.savepoint_parts`), as `encode_manifest` bytes.
    manifest: bytes
    #: Number of the part.
    part: int


class SealSavepoint(Message, frozen=True, kw_only=True):
    """Write the manifest of a savepoint whose parts are written; answered by SavepointWritten."""

    job_id: str
    savepoint_id: str
    uri: str
    checkpoint_root: str
    job_name: str
    #: The joined parts, as `encode_manifest` bytes.
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
    #: (`kernels.keys.key_text`), or the range of key hashes.
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
    generation: int


class AskTasks(Message, frozen=True, kw_only=True):
    """A new leader asks what runs in the worker; answered by TasksReported.

    From then on the worker drops commands about the job's tasks from earlier leaders.
    """

    job_id: str
    generation: int


class LeaseRenewed(Message, frozen=True, kw_only=True):
    """Renew the worker's kernel lease: the JobManager has acknowledged a heartbeat."""

    sequence: int
    #: Host's monotonic clock (ms) at which the lease ends, counted from when the acknowledged heartbeat was *sent*: a
    #: worker never outlives the JobManager's view of it. 0: a full lease from now.
    expires_monotonic_ms: float = 0.0


class NetworkShare(Message, frozen=True, kw_only=True):
    """Divide this much network memory among the worker's input gates: its guaranteed part and what it is lent."""

    #: Counts the shares of the worker; `NetworkNeed` repeats it.
    number: int
    total_bytes: int


WorkerCommand = (
    DeployTasks
    | DeployPeers
    | PrepareTasks
    | PauseCompaction
    | CancelTasks
    | TriggerCheckpoint
    | LetBarriersOvertake
    | CheckpointCompleted
    | CheckpointAborted
    | AlignWatermarks
    | AssignSplits
    | ResolvePending
    | WriteSavepoint
    | SealSavepoint
    | AskSubtask
    | SampleStacks
    | DumpThreads
    | FinishTasks
    | AskTasks
    | LeaseRenewed
    | NetworkShare
)


# --- worker -> JobManager (relayed)


class TaskState(Message, frozen=True, kw_only=True):
    """A subtask changed its state: DEPLOYING, INITIALIZING, RUNNING, FINISHED, CANCELED, FAILED."""

    job_id: str
    vertex_id: str
    subtask: int
    attempt: int
    state: str
    error: str = ""
    #: Long text of a failure (traceback), user frames first.
    detail: str = ""
    #: Last metrics and texts of a finished or failed subtask.
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    texts: dict[str, str] = msgspec.field(default_factory=dict)


class InputEnded(Message, frozen=True, kw_only=True):
    """The subtask has processed all its input; it waits for the final checkpoint."""

    job_id: str
    vertex_id: str
    subtask: int
    attempt: int


class CheckpointAck(msgspec.Struct, frozen=True, kw_only=True):
    """A subtask's part of a checkpoint is durable; in `CheckpointAcks`."""

    run_id: str
    generation: int
    checkpoint_id: int
    attempt: int
    snapshot: SubtaskSnapshot
    metrics: CheckpointMetrics


class CheckpointAcks(Message, frozen=True, kw_only=True):
    """Acknowledgements of subtasks of one worker, in their order."""

    job_id: str
    acks: tuple[CheckpointAck, ...]


class CheckpointDeclined(Message, frozen=True, kw_only=True):
    """A subtask could not take part; its segments stay in its log."""

    job_id: str
    run_id: str
    generation: int
    checkpoint_id: int
    vertex_id: str
    subtask: int
    attempt: int
    reason: str


class OutputPublished(Message, frozen=True, kw_only=True):
    """Committables known to be published (their marker was read back)."""

    job_id: str
    run_id: str
    committable_ids: tuple[str, ...]


class PendingResolved(Message, frozen=True, kw_only=True):
    """Answer to ResolvePending; an empty `error` means that all pending output is published."""

    job_id: str
    generation: int
    published: tuple[str, ...] = ()
    error: str = ""


class TasksPrepared(Message, frozen=True, kw_only=True):
    """Answer to PrepareTasks of the same round; an empty `error` means that the state is loaded."""

    job_id: str
    round: int
    error: str = ""


class SavepointPart(Message, frozen=True, kw_only=True):
    """Answer to WriteSavepoint: the part's manifest, which refers to the written files, or an error."""

    job_id: str
    savepoint_id: str
    uri: str
    part: int
    #: `encode_manifest` bytes.
    manifest: bytes = b""
    error: str = ""


class SavepointWritten(Message, frozen=True, kw_only=True):
    """Answer to SealSavepoint."""

    job_id: str
    savepoint_id: str
    uri: str
    manifest: FileRef | None = None
    error: str = ""


class SlowCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call to an external system, or of the user's function, that takes long."""

    #: Number of the call in its worker.
    number: int
    #: Description of the call, with its target.
    what: str
    #: Time it has taken so far.
    for_ms: int
    #: Place in the user's code, such as `job.py:11 in lookup`; empty for a call to an external system.
    at: str = ""


class WorkerMetrics(Message, frozen=True, kw_only=True):
    """Metrics of all subtasks of a worker.

    `<vertex>/<subtask>` -> name -> value (Flink's metric names), and the worker's own.
    """

    worker_id: str
    job_id: str
    tasks: dict[str, dict[str, float]]
    worker: dict[str, float]
    #: Slow calls of the job in progress.
    slow: tuple[SlowCall, ...] = ()
    #: Texts of subtasks, such as their first bad record: `<vertex>/<subtask>` -> name -> text.
    texts: dict[str, dict[str, str]] = {}


class RunningTask(msgspec.Struct, frozen=True, kw_only=True):
    """A subtask in a worker's answer to a new leader."""

    vertex_id: str
    subtask: int
    #: As in TaskState.
    state: str
    input_ended: bool = False
    #: Ids of the splits that were assigned to a source's subtask; None before its first assignment.
    splits: tuple[str, ...] | None = None


class TasksReported(Message, frozen=True, kw_only=True):
    """Answer to AskTasks of `generation`; without tasks if none were deployed in the worker."""

    job_id: str
    generation: int
    endpoint: str
    pid: int
    run_id: str = ""
    attempt: int = 0
    #: A barrier that ends the job was triggered: the sources emit nothing any longer.
    stopping: bool = False
    #: The largest id of a checkpoint that was triggered in the worker; 0 before the first.
    newest_checkpoint: int = 0
    #: It was started beside another worker, for tasks that are not deployed.
    beside: bool = False
    tasks: tuple[RunningTask, ...] = ()


class WorkerReady(Message, frozen=True, kw_only=True):
    """First message of a worker: its network endpoint (`unix:<path>` or `tcp:host:port`)."""

    worker_id: str
    endpoint: str
    pid: int


class SubtaskAnswer(Message, frozen=True, kw_only=True):
    """Answer to AskSubtask, SampleStacks or DumpThreads.

    With `error`, `kind` is its class: `not-found`, `usage` or empty.
    """

    job_id: str
    request_id: str
    answer: dict[str, Any] = msgspec.field(default_factory=dict)
    error: str = ""
    kind: str = ""


#: Reports to the job.
WorkerReport = (
    TaskState
    | InputEnded
    | CheckpointAcks
    | CheckpointDeclined
    | OutputPublished
    | PendingResolved
    | TasksPrepared
    | SavepointPart
    | SavepointWritten
    | WorkerMetrics
    | WorkerReady
    | TasksReported
)
#: All messages of a worker to the JobManager.
WorkerMessage = WorkerReport | SubtaskAnswer

# --- worker -> TaskManager (not relayed)


class NetworkNeed(Message, frozen=True, kw_only=True):
    """The network memory that the worker's gates use if there is enough."""

    #: The newest share that its gates are within. 0: that of its start.
    number: int
    needed_bytes: int


# --- TaskManager -> JobManager


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A taken slot and its worker; before a rescale the successor of a worker has the same slot."""

    slot: int
    worker_id: str
    job_id: str
    #: A `taskmanager.slots.SlotState`.
    state: str = "ACTIVE"


class MemoryParts(msgspec.Struct, frozen=True, kw_only=True):
    """The division of a TaskManager's memory in bytes (`taskmanager.memory_division`); all 0: it is unknown."""

    total_bytes: int = 0
    framework_bytes: int = 0
    task_bytes: int = 0
    network_bytes: int = 0
    #: The part of `network_bytes` that is lent to slots (`taskmanager.network_pool`).
    network_shared_bytes: int = 0
    managed_bytes: int = 0


class RegisterTaskManager(Message, frozen=True, kw_only=True):
    """First message on the stream; a reconnecting TaskManager offers the slots whose workers it still runs."""

    taskmanager_id: str
    host: str
    pid: int
    slots: int
    offered: tuple[SlotStatus, ...] = ()
    #: host:port of its `/metrics` endpoint; empty: none.
    metrics_address: str = ""
    memory: MemoryParts = MemoryParts()
    #: CPU cores of its part of the host; 0: unknown.
    cpu_cores: float = 0.0


class Heartbeat(Message, frozen=True, kw_only=True):
    """Sent every heartbeat interval; the answer renews the workers' leases."""

    taskmanager_id: str
    sequence: int
    #: Its taken slots, by number.
    slot_report: tuple[SlotStatus, ...] = ()
    #: Worker id -> bytes of memory it holds (`process_control.unreclaimable_bytes`).
    worker_memory: dict[str, int] = msgspec.field(default_factory=dict)
    #: The shared network memory that workers have.
    network_lent_bytes: int = 0
    #: Resource usage of the process, with Flink's names.
    process: dict[str, float] = msgspec.field(default_factory=dict)


class FromWorker(Message, frozen=True, kw_only=True):
    """A relayed report of a worker."""

    taskmanager_id: str
    worker_id: str
    #: An encoded `WorkerReport`.
    report: bytes


class WorkerStopped(Message, frozen=True, kw_only=True):
    """A killed worker executes nothing any more; its memory and its slot are free once it has exited."""

    taskmanager_id: str
    worker_id: str


class WorkerExited(Message, frozen=True, kw_only=True):
    """A worker process ended; the supervisor reports it at once."""

    taskmanager_id: str
    worker_id: str
    #: Exit status as in `Popen.returncode` (negative = signal).
    returncode: int
    #: Last lines of its log.
    log_tail: str = ""
    #: The line at which native code crashed, such as `job.py:11 in lookup`; empty if the log has no trace of a crash.
    crashed_at: str = ""
    #: Why the TaskManager ended it; empty if it did not.
    reason: str = ""


class WorkerStartFailed(Message, frozen=True, kw_only=True):
    """A worker could not be started (requirements not installed, template ended, ...)."""

    taskmanager_id: str
    worker_id: str
    error: str
    #: Its slot is refused: another worker has it, until the slot is missing in a later `Heartbeat.slot_report`.
    slot_refused: bool = False


class LogText(Message, frozen=True, kw_only=True):
    """Answer to FetchLog."""

    request_id: str
    text: str


class ThreadsText(Message, frozen=True, kw_only=True):
    """Answer to FetchThreads: names and stacks of the TaskManager's own threads."""

    request_id: str
    threads: tuple[tuple[str, str], ...]


TaskManagerReport = (
    (RegisterTaskManager | Heartbeat | FromWorker)
    | (WorkerStopped | WorkerExited | WorkerStartFailed)
    | (LogText | ThreadsText)
)

# --- JobManager -> TaskManager


class Registered(Message, frozen=True, kw_only=True):
    """Answer to RegisterTaskManager; workers not in `keep_workers` must be killed at once."""

    jobmanager_id: str
    generation: int
    heartbeat_interval_ms: int
    worker_lease_ms: int
    keep_workers: tuple[str, ...] = ()


class HeartbeatAck(Message, frozen=True, kw_only=True):
    """The JobManager received heartbeat `sequence`."""

    sequence: int


class StartWorker(Message, frozen=True, kw_only=True):
    """Request a slot for a worker of a job.

    The first report of the worker accepts. While the slot is RELEASING, the answer waits. A refused slot
    (`WorkerStartFailed.slot_refused`) is the job's no longer: it gets another one. No job gets the refused one until a
    heartbeat reports it as free.
    """

    worker_id: str
    job_id: str
    slot: int
    requirements: tuple[str, ...]
    python_path: tuple[str, ...]
    #: None: the TaskManager's default.
    managed_memory_bytes: int | None
    #: Modules that the job's template imports beforehand.
    preload: tuple[str, ...] = ()
    #: For display.
    job_name: str = ""
    #: The slot's worker runs: this one of the same job takes the slot over when that has ended.
    beside: bool = False


class StopWorker(Message, frozen=True, kw_only=True):
    """Kill the worker (SIGKILL: its effects are fenced or repeatable) and free its slot."""

    worker_id: str


class ForgetJob(Message, frozen=True, kw_only=True):
    """The job has ended: remove the local copies of its checkpoints."""

    job_id: str


class ToWorker(Message, frozen=True, kw_only=True):
    """Relay `command` (an encoded `WorkerCommand`) to one or more workers."""

    worker_ids: tuple[str, ...]
    command: bytes


class FetchLog(Message, frozen=True, kw_only=True):
    """Send the tail of a worker's log, or of the TaskManager's own if `worker_id` is empty."""

    request_id: str
    worker_id: str
    max_bytes: int = 65536


class FetchThreads(Message, frozen=True, kw_only=True):
    """Send the stacks of the TaskManager's own threads."""

    request_id: str


class Shutdown(Message, frozen=True, kw_only=True):
    """Stop all workers and exit."""


TaskManagerCommand = (
    Registered | HeartbeatAck | StartWorker | StopWorker | ForgetJob | ToWorker | FetchLog | FetchThreads | Shutdown
)

_encoder = msgspec.msgpack.Encoder()
_worker_commands: msgspec.msgpack.Decoder[WorkerCommand] = msgspec.msgpack.Decoder(WorkerCommand)
_worker_reports: msgspec.msgpack.Decoder[WorkerMessage] = msgspec.msgpack.Decoder(WorkerMessage)
_network_needs: msgspec.msgpack.Decoder[NetworkNeed] = msgspec.msgpack.Decoder(NetworkNeed)
_taskmanager_commands: msgspec.msgpack.Decoder[tuple[TaskManagerCommand, ...]] = msgspec.msgpack.Decoder(
    tuple[TaskManagerCommand, ...]
)
_taskmanager_reports: msgspec.msgpack.Decoder[tuple[TaskManagerReport, ...]] = msgspec.msgpack.Decoder(
    tuple[TaskManagerReport, ...]
)


def encode(message: WorkerCommand | WorkerMessage | NetworkNeed | TaskManagerCommand | TaskManagerReport) -> bytes:
    """Return the encoded form of any message."""
    return _encoder.encode(message)


def decode_worker_command(data: bytes) -> WorkerCommand:
    """Decode a message to a worker."""
    return _worker_commands.decode(data)


def decode_network_need(data: bytes) -> NetworkNeed:
    """Decode a message of a worker to its TaskManager."""
    return _network_needs.decode(data)


def decode_worker_report(data: bytes) -> WorkerMessage:
    """Decode a message of a worker."""
    return _worker_reports.decode(data)


def joined(messages: Iterable[bytes]) -> bytes:
    """Return encoded messages as one of the stream, which costs more than their bytes."""
    return _encoder.encode([msgspec.Raw(message) for message in messages])


def decode_taskmanager_commands(data: bytes) -> tuple[TaskManagerCommand, ...]:
    """Decode `joined` messages to a TaskManager."""
    return _taskmanager_commands.decode(data)


def decode_taskmanager_reports(data: bytes) -> tuple[TaskManagerReport, ...]:
    """Decode `joined` messages of a TaskManager."""
    return _taskmanager_reports.decode(data)
