"""Control messages but those to workers (`rpc.worker_commands`), and the coding of all.

Two legs: JobManager <-> TaskManager (gRPC stream) and TaskManager <-> worker (socket pair).

The JobManager talks to workers through the TaskManager, which relays encoded `WorkerCommand`s without looking inside,
and relays `WorkerReport`s back. All are frozen msgspec structs with a tag, encoded as msgpack. Whoever receives one
drops it when its (job, run, generation, attempt) is older than what it knows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.core.snapshot import CheckpointMetrics, FileRef, SubtaskSnapshot
from penstock.rpc.worker_commands import Message, WorkerCommand

# --- worker -> JobManager (relayed)


class TaskState(Message, frozen=True, kw_only=True):
    """A subtask changed state: DEPLOYING, INITIALIZING, RUNNING, FINISHED, CANCELED, FAILED."""

    job_id: str
    vertex_id: str
    subtask: int
    attempt: int
    state: str
    error: str = ""
    #: Long text of a failure (traceback), user frames first.
    detail: str = ""
    #: Its last metrics, of one that has finished.
    metrics: dict[str, float] = msgspec.field(default_factory=dict)


class InputEnded(Message, frozen=True, kw_only=True):
    """The subtask has seen the end of all its input and finished its operators; it waits for the final checkpoint."""

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
    """Answer to ResolvePending; `error` empty = all owed output is published."""

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
    """A call to an outside system that takes long."""

    #: Of this call in its worker.
    number: int
    #: What it does, and to whom.
    what: str
    #: How long it has taken so far.
    for_ms: int


class WorkerMetrics(Message, frozen=True, kw_only=True):
    """Counters of all subtasks of a worker.

    `<vertex>/<subtask>` -> name -> value (Flink's metric names), and the worker's own.
    """

    worker_id: str
    job_id: str
    tasks: dict[str, dict[str, float]]
    worker: dict[str, float]
    #: Calls of the job that are slow right now.
    slow: tuple[SlowCall, ...] = ()


class WorkerReady(Message, frozen=True, kw_only=True):
    """First message of a worker: its network endpoint (`unix:<path>` or `tcp:host:port`)."""

    worker_id: str
    endpoint: str
    pid: int


class SubtaskAnswer(Message, frozen=True, kw_only=True):
    """Answer to AskSubtask, SampleStacks or DumpThreads.

    With `error`, `kind` is the class of it: `not-found`, `usage` or empty.
    """

    job_id: str
    request_id: str
    answer: dict[str, Any] = msgspec.field(default_factory=dict)
    error: str = ""
    kind: str = ""


#: What the job itself hears of.
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
#: All that a worker sends.
WorkerMessage = WorkerReport | SubtaskAnswer

# --- TaskManager -> JobManager


class RegisterTaskManager(Message, frozen=True, kw_only=True):
    """First message on the stream. A TaskManager that reconnects names the workers it still holds."""

    taskmanager_id: str
    host: str
    pid: int
    slots: int
    workers: tuple[str, ...] = ()
    #: host:port of its `/metrics`; empty: there is none.
    metrics_address: str = ""


class Heartbeat(Message, frozen=True, kw_only=True):
    """Every heartbeat interval; the answer renews the workers' leases."""

    taskmanager_id: str
    sequence: int
    #: Worker id -> bytes it holds (`lineage.held_bytes`).
    worker_memory: dict[str, int] = msgspec.field(default_factory=dict)
    #: What the process itself uses, by Flink's names.
    process: dict[str, float] = msgspec.field(default_factory=dict)


class FromWorker(Message, frozen=True, kw_only=True):
    """A worker's report, relayed."""

    taskmanager_id: str
    worker_id: str
    #: An encoded `WorkerReport`.
    report: bytes


class WorkerExited(Message, frozen=True, kw_only=True):
    """A worker process ended: seen at once by the supervisor."""

    taskmanager_id: str
    worker_id: str
    #: Exit status as of `Popen.returncode` (negative = signal).
    returncode: int
    #: Last lines of its log.
    log_tail: str = ""
    #: Whether the JobManager had asked for it.
    asked: bool = False


class WorkerStartFailed(Message, frozen=True, kw_only=True):
    """A worker could not be started (requirements failed to install, template died...)."""

    taskmanager_id: str
    worker_id: str
    error: str


class LogText(Message, frozen=True, kw_only=True):
    """Answer to FetchLog."""

    request_id: str
    text: str


class ThreadsText(Message, frozen=True, kw_only=True):
    """Answer to FetchThreads: names of the TaskManager's own threads, and where each is."""

    request_id: str
    threads: tuple[tuple[str, str], ...]


TaskManagerReport = (
    RegisterTaskManager | Heartbeat | FromWorker | WorkerExited | WorkerStartFailed | LogText | ThreadsText
)

# --- JobManager -> TaskManager


class Registered(Message, frozen=True, kw_only=True):
    """Answer to RegisterTaskManager; workers not in `keep_workers` are to be killed at once."""

    jobmanager_id: str
    generation: int
    heartbeat_interval_ms: int
    worker_lease_ms: int
    keep_workers: tuple[str, ...] = ()


class HeartbeatAck(Message, frozen=True, kw_only=True):
    """The coordinator has heard heartbeat `sequence`."""

    sequence: int


class StartWorker(Message, frozen=True, kw_only=True):
    """Start a slot worker for a job."""

    worker_id: str
    job_id: str
    slot: int
    requirements: tuple[str, ...]
    python_path: tuple[str, ...]
    managed_memory_bytes: int
    #: Modules the template imports beforehand for this job.
    preload: tuple[str, ...] = ()
    #: For people.
    job_name: str = ""


class StopWorker(Message, frozen=True, kw_only=True):
    """Kill the worker (SIGKILL: everything it may do is fenced or repeatable) and free its slot."""

    worker_id: str


class ToWorker(Message, frozen=True, kw_only=True):
    """Relay `command` (an encoded `WorkerCommand`) to a worker, or to several."""

    worker_ids: tuple[str, ...]
    command: bytes


class FetchLog(Message, frozen=True, kw_only=True):
    """Send the tail of a worker's log, or of the TaskManager's own when `worker_id` is empty."""

    request_id: str
    worker_id: str
    max_bytes: int = 65536


class FetchThreads(Message, frozen=True, kw_only=True):
    """Say where each thread of the TaskManager's own process is."""

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
    """Return the wire form of any message."""
    return _encoder.encode(message)


def decode_worker_command(data: bytes) -> WorkerCommand:
    """Decode what a worker receives."""
    return _worker_commands.decode(data)


def decode_worker_report(data: bytes) -> WorkerMessage:
    """Decode what a worker sent."""
    return _worker_reports.decode(data)


def decode_taskmanager_command(data: bytes) -> TaskManagerCommand:
    """Decode what a TaskManager receives."""
    return _taskmanager_commands.decode(data)


def decode_taskmanager_report(data: bytes) -> TaskManagerReport:
    """Decode what a TaskManager sent."""
    return _taskmanager_reports.decode(data)
