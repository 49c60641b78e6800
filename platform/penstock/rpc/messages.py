"""Control messages except those to workers (`rpc.worker_commands`), and the encoding of all.

There are two connections: JobManager <-> TaskManager (gRPC stream) and TaskManager <-> worker (socket pair).

The JobManager talks to workers through the TaskManager, which relays encoded `WorkerCommand`s and `WorkerReport`s
unchanged. All are frozen msgspec structs with a tag, encoded as msgpack. A receiver drops messages whose (job, run,
generation, attempt) is older than its own.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.snapshot import CheckpointMetrics, FileRef, SubtaskSnapshot
from penstock.rpc.worker_commands import Message, WorkerCommand

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
    #: Last metrics of a finished subtask.
    metrics: dict[str, float] = msgspec.field(default_factory=dict)


class InputEnded(Message, frozen=True, kw_only=True):
    """The subtask has processed all its input; it waits for the final checkpoint."""

    job_id: str
    vertex_id: str
    subtask: int
    attempt: int


class CheckpointAck(Message, frozen=True, kw_only=True):
    """A subtask's part of a checkpoint is durable."""

    job_id: str
    run_id: str
    generation: int
    checkpoint_id: int
    attempt: int
    snapshot: SubtaskSnapshot
    metrics: CheckpointMetrics


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


class SavepointWritten(Message, frozen=True, kw_only=True):
    """Answer to WriteSavepoint."""

    job_id: str
    savepoint_id: str
    uri: str
    manifest: FileRef | None = None
    error: str = ""


class SlowCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call to an external system that takes long."""

    #: Number of the call in its worker.
    number: int
    #: Description of the call, with its target.
    what: str
    #: Time it has taken so far.
    for_ms: int


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
    | CheckpointAck
    | CheckpointDeclined
    | OutputPublished
    | PendingResolved
    | SavepointWritten
    | WorkerMetrics
    | WorkerReady
)
#: All messages of a worker.
WorkerMessage = WorkerReport | SubtaskAnswer

# --- TaskManager -> JobManager


class RegisterTaskManager(Message, frozen=True, kw_only=True):
    """First message on the stream; a reconnecting TaskManager lists the workers it still runs."""

    taskmanager_id: str
    host: str
    pid: int
    slots: int
    workers: tuple[str, ...] = ()
    #: host:port of its `/metrics` endpoint; empty: none.
    metrics_address: str = ""


class Heartbeat(Message, frozen=True, kw_only=True):
    """Sent every heartbeat interval; the answer renews the workers' leases."""

    taskmanager_id: str
    sequence: int
    #: Worker id -> bytes of memory it holds (`lineage.held_bytes`).
    worker_memory: dict[str, int] = msgspec.field(default_factory=dict)
    #: Resource usage of the process, with Flink's names.
    process: dict[str, float] = msgspec.field(default_factory=dict)


class FromWorker(Message, frozen=True, kw_only=True):
    """A relayed report of a worker."""

    taskmanager_id: str
    worker_id: str
    #: An encoded `WorkerReport`.
    report: bytes


class WorkerExited(Message, frozen=True, kw_only=True):
    """A worker process ended; the supervisor reports it at once."""

    taskmanager_id: str
    worker_id: str
    #: Exit status as in `Popen.returncode` (negative = signal).
    returncode: int
    #: Last lines of its log.
    log_tail: str = ""
    #: Whether the JobManager had requested it.
    asked: bool = False


class WorkerStartFailed(Message, frozen=True, kw_only=True):
    """A worker could not be started (requirements not installed, template ended, ...)."""

    taskmanager_id: str
    worker_id: str
    error: str


class LogText(Message, frozen=True, kw_only=True):
    """Answer to FetchLog."""

    request_id: str
    text: str


class ThreadsText(Message, frozen=True, kw_only=True):
    """Answer to FetchThreads: names and stacks of the TaskManager's own threads."""

    request_id: str
    threads: tuple[tuple[str, str], ...]


TaskManagerReport = (
    RegisterTaskManager | Heartbeat | FromWorker | WorkerExited | WorkerStartFailed | LogText | ThreadsText
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
    """Start a worker of a job in a slot."""

    worker_id: str
    job_id: str
    slot: int
    requirements: tuple[str, ...]
    python_path: tuple[str, ...]
    managed_memory_bytes: int
    #: Modules that the job's template imports beforehand.
    preload: tuple[str, ...] = ()
    #: For display.
    job_name: str = ""


class StopWorker(Message, frozen=True, kw_only=True):
    """Kill the worker (SIGKILL: its effects are fenced or repeatable) and free its slot."""

    worker_id: str


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
    Registered | HeartbeatAck | StartWorker | StopWorker | ToWorker | FetchLog | FetchThreads | Shutdown
)

_encoder = msgspec.msgpack.Encoder()
_worker_commands: msgspec.msgpack.Decoder[WorkerCommand] = msgspec.msgpack.Decoder(WorkerCommand)
_worker_reports: msgspec.msgpack.Decoder[WorkerMessage] = msgspec.msgpack.Decoder(WorkerMessage)
_taskmanager_commands: msgspec.msgpack.Decoder[TaskManagerCommand] = msgspec.msgpack.Decoder(TaskManagerCommand)
_taskmanager_reports: msgspec.msgpack.Decoder[TaskManagerReport] = msgspec.msgpack.Decoder(TaskManagerReport)


def encode(message: WorkerCommand | WorkerMessage | TaskManagerCommand | TaskManagerReport) -> bytes:
    """Return the encoded form of any message."""
    return _encoder.encode(message)


def decode_worker_command(data: bytes) -> WorkerCommand:
    """Decode a message to a worker."""
    return _worker_commands.decode(data)


def decode_worker_report(data: bytes) -> WorkerMessage:
    """Decode a message of a worker."""
    return _worker_reports.decode(data)


def decode_taskmanager_command(data: bytes) -> TaskManagerCommand:
    """Decode a message to a TaskManager."""
    return _taskmanager_commands.decode(data)


def decode_taskmanager_report(data: bytes) -> TaskManagerReport:
    """Decode a message of a TaskManager."""
    return _taskmanager_reports.decode(data)
