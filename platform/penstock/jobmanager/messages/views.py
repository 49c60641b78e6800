"""The JobManager's views: plain structs, built by the dispatcher and converted to Flink's JSON by REST.

Times are wall-clock milliseconds, -1 if unset; sizes are bytes. No view references live objects.
"""

from __future__ import annotations

import msgspec

from penstock.config.settings import ClusterSettings, JobSettings
from penstock.rpc.messages import MemoryParts, SlotStatus

#: A source counts as unreachable after this time without an answer of its external system.
UNREACHABLE_MS = 2_000


class _View(msgspec.Struct, frozen=True, kw_only=True):
    """Common options of all views."""


class SubtaskView(_View, frozen=True, kw_only=True):
    """The current attempt of a subtask."""

    subtask: int
    #: Flink's states: CREATED, SCHEDULED, DEPLOYING, INITIALIZING, RUNNING, FINISHED, CANCELING, CANCELED, FAILED.
    state: str
    attempt: int
    worker_id: str = ""
    taskmanager_id: str = ""
    host: str = ""
    start_ms: int = -1
    end_ms: int = -1
    input_ended: bool = False
    #: Newest metrics of the subtask, with Flink's names.
    metrics: dict[str, float] = {}
    #: Texts of the subtask: `badRecord` is its first bad record.
    texts: dict[str, str] = {}


class OperatorView(_View, frozen=True, kw_only=True):
    """An operator of a chain."""

    uid: str
    name: str
    kind: str
    #: Where a source reads or a sink writes: `topic orders at broker:9092`; empty if the connector does not say it.
    place: str = ""


class VertexView(_View, frozen=True, kw_only=True):
    """A vertex of the job graph with its subtasks."""

    id: str
    name: str
    parallelism: int
    max_parallelism: int
    state: str
    operators: tuple[OperatorView, ...]
    subtasks: tuple[SubtaskView, ...]
    start_ms: int = -1
    end_ms: int = -1
    #: Counters up to the restored checkpoint; the totals are these and the subtasks' metrics.
    carried: dict[str, int] = {}
    #: The smallest and the largest parallelism that the scheduler may choose.
    bounds: tuple[int, int] = (1, 1)


class EdgeView(_View, frozen=True, kw_only=True):
    """An edge of the job graph."""

    source: str
    target: str
    #: `forward`, `key_group`, `rebalance` or `broadcast`.
    partitioner: str
    columns: tuple[str, ...] = ()
    input_index: int = 0


class RestoredView(_View, frozen=True, kw_only=True):
    """The checkpoint or savepoint that a job was restored from."""

    checkpoint_id: int
    #: When it was restored, and when it was taken.
    restored_ms: int
    taken_ms: int
    #: Whether it is a savepoint: one that a user started the job from, or that of a stop.
    savepoint: bool = False
    #: The savepoint's URI.
    uri: str = ""


class SlowCallView(_View, frozen=True, kw_only=True):
    """A slow call in progress."""

    what: str
    since_ms: int
    #: Place in the user's code; empty for a call to an external system.
    at: str = ""


class OpenRequestView(_View, frozen=True, kw_only=True):
    """A savepoint or stop that is not complete."""

    #: `savepoint`, `stop` or `drain`.
    what: str
    since_ms: int
    #: What it waits for: `checkpoint`, `publish` (the sinks) or `copy` (of the checkpoint to the savepoint's folder).
    phase: str


class AdaptiveView(_View, frozen=True, kw_only=True):
    """The slots of a job whose parallelism follows them."""

    #: Those that it runs with, or is to start with.
    slots: int
    #: Those without which it does not start, and those that it takes when they are free.
    least: int
    most: int
    #: The earliest time at which it rescales to the free slots; -1: there are not enough for that.
    rescale_ms: int = -1


class JobSummary(_View, frozen=True, kw_only=True):
    """A line of `penstock list`."""

    job_id: str
    name: str
    #: Flink's job states.
    state: str
    run_id: str
    start_ms: int
    end_ms: int
    last_modified_ms: int
    #: Execution state -> number of subtasks.
    tasks: dict[str, int]
    restarts: int
    #: Newest completed checkpoint, or None.
    checkpoint_id: int | None = None
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    #: Why the job failed or is restarting; one line.
    error: str = ""
    #: Missing resources of the start, such as `9 slots, 4 of 6 are free`.
    waits_for: str = ""
    #: None without the adaptive scheduler.
    adaptive: AdaptiveView | None = None
    #: Time until the next start after a failure; -1 if the job is not waiting for one.
    next_attempt_in_ms: int = -1
    #: Which regions restart while the job is RUNNING, and what they wait for; empty if all run.
    region_restart: str = ""
    #: The newest checkpoint failure.
    checkpoint_failure: str = ""
    slow_calls: tuple[SlowCallView, ...] = ()
    open_requests: tuple[OpenRequestView, ...] = ()
    #: The restored checkpoint or savepoint; None for an empty start, or before the start under this leader.
    restored: RestoredView | None = None
    #: URI of the savepoint that a user stopped the job with.
    stop_uri: str = ""
    #: File of the version that runs, as the user of `upgrade` named it; empty before the first upgrade.
    version: str = ""
    #: Number of JobManagers that took the job over from an earlier one, and when the present one did.
    takeovers: int = 0
    taken_over_ms: int = -1

    @property
    def terminal(self) -> bool:
        """Whether the job has ended."""
        return self.state in ("FINISHED", "CANCELED", "FAILED")


class JobDetail(_View, frozen=True, kw_only=True):
    """A job with its graph."""

    summary: JobSummary
    vertices: tuple[VertexView, ...]
    edges: tuple[EdgeView, ...]
    settings: JobSettings
    #: State -> when it was last entered.
    timestamps: dict[str, int]
    fingerprint: str = ""


class SubtaskCheckpointView(_View, frozen=True, kw_only=True):
    """A subtask's part of a checkpoint."""

    vertex_id: str
    subtask: int
    ack_ms: int
    state_bytes: int
    new_bytes: int
    alignment_ms: float
    sync_ms: float
    async_ms: float
    #: Input processed between the first and the last barrier, and input buffered in blocked channels.
    processed_bytes: int = 0
    buffered_bytes: int = 0
    #: Bytes of rows that barriers have overtaken, and whether they could.
    persisted_bytes: int = 0
    unaligned: bool = False


class CheckpointView(_View, frozen=True, kw_only=True):
    """A checkpoint or savepoint of the history."""

    id: int
    #: `checkpoint`, `savepoint`, `stop`, `drain` or `final`.
    kind: str
    #: IN_PROGRESS, COMPLETED or FAILED.
    status: str
    trigger_ms: int
    end_ms: int = -1
    duration_ms: int = -1
    acknowledged: int = 0
    total: int = 0
    state_bytes: int = 0
    new_bytes: int = 0
    failure: str = ""
    sequence: int | None = None
    #: Location of the savepoint or manifest.
    path: str = ""
    #: Whether the savepoint has the files of the checkpoint as they are.
    native: bool = False
    #: Objects written for it: files that no earlier checkpoint references, and the manifest.
    objects: int = 0
    #: Input that subtasks processed between their first and last barriers.
    processed_bytes: int = 0
    #: Input that was buffered in channels whose barrier had arrived before the last one.
    buffered_bytes: int = 0
    #: Bytes of rows that barriers have overtaken, and whether they could.
    persisted_bytes: int = 0
    unaligned: bool = False
    #: The longest synchronous phase of a subtask.
    max_sync_ms: float = 0.0
    #: Empty in archives, except for the newest checkpoint.
    subtasks: tuple[SubtaskCheckpointView, ...] = ()


class CheckpointsView(_View, frozen=True, kw_only=True):
    """Counts and the last hundred checkpoints."""

    completed: int
    failed: int
    in_progress: int
    restored: int
    #: Newest first.
    history: tuple[CheckpointView, ...]
    latest_completed: CheckpointView | None = None
    latest_savepoint: CheckpointView | None = None
    latest_failed: CheckpointView | None = None
    latest_restored: RestoredView | None = None
    #: Committables not known to be published, with their rows and bytes.
    pending_count: int = 0
    pending_rows: int = 0
    pending_bytes: int = 0
    #: Sinks that publish with checkpoints: uid -> rows published since the job's begin or this leader's.
    rows_published: dict[str, int] = {}


class OperationStatus(_View, frozen=True, kw_only=True):
    """The status of an asynchronous request: savepoint, stop, checkpoint, rescale, upgrade."""

    request_id: str
    job_id: str
    #: IN_PROGRESS, COMPLETED or FAILED.
    status: str
    #: The kind of request, such as `stop`; empty if an earlier leader accepted it and did not record the kind.
    kind: str = ""
    uri: str = ""
    checkpoint_id: int | None = None
    error: str = ""
    error_class: str = ""


class UpgradeView(_View, frozen=True, kw_only=True):
    """The newest upgrade of a job."""

    request_id: str
    #: `cut`, `trial`, or the outcome: `completed`, `rolled-back`, `refused`, `kept`.
    phase: str
    #: Runs of the new version, and of the old one after a rollback.
    run_id: str
    back_run_id: str
    savepoint: str = ""
    #: Checkpoints completed on trial so far, and required.
    checkpoints: int = 0
    checkpoints_wanted: int = 0
    restarts: int = 0
    restarts_allowed: int = 0
    #: Whether the upgrade waits for a user's verdict.
    confirm: bool = False
    deadline_ms: int = 0
    #: Withheld output, and the sinks that withhold it.
    held_rows: int = 0
    held_sinks: tuple[str, ...] = ()
    #: See `UpgradeRecord.parallelism`.
    parallelism: dict[str, tuple[int, int, int]] = {}
    reason: str = ""
    #: File of the new version, as the user named it.
    file: str = ""
    begun_ms: int = -1
    ended_ms: int = -1


class ExceptionView(_View, frozen=True, kw_only=True):
    """A failure of the job."""

    at_ms: int
    error: str
    detail: str = ""
    task: str = ""
    worker_id: str = ""
    taskmanager_id: str = ""
    #: When the version that failed was rolled back; -1 if it was not.
    rolled_back_ms: int = -1


class LastWorkerView(_View, frozen=True, kw_only=True):
    """A worker of a job's last deployment, which has exited; the TaskManager may still have its log."""

    worker_id: str
    taskmanager_id: str


class EventLogEntry(_View, frozen=True, kw_only=True):
    """An entry of the event log."""

    at_ms: int
    kind: str
    text: str
    #: The leader's generation for this job.
    generation: int = 0
    job_id: str = ""


class WorkerView(_View, frozen=True, kw_only=True):
    """A worker in a slot."""

    worker_id: str
    job_id: str
    slot: int
    pid: int
    memory_bytes: int
    metrics: dict[str, float] = {}


class TaskManagerView(_View, frozen=True, kw_only=True):
    """A registered TaskManager."""

    taskmanager_id: str
    host: str
    pid: int
    slots: int
    free_slots: int
    #: Its free slots are given to no job, and it ends when the jobs have left it.
    drained: bool = False
    registered_ms: int
    last_heartbeat_ms: int
    workers: tuple[WorkerView, ...]
    #: By number; two workers share a slot before a rescale.
    taken_slots: tuple[SlotStatus, ...] = ()
    #: host:port of its `/metrics` endpoint; empty if it has none.
    metrics_address: str = ""
    memory: MemoryParts = MemoryParts()
    #: CPU cores of its part of the host; 0: unknown.
    cpu_cores: float = 0.0
    #: The shared network memory that its workers have.
    network_lent_bytes: int = 0
    #: Resource metrics of the process, with Flink's names (`metrics.process`).
    process: dict[str, float] = {}


class ClusterView(_View, frozen=True, kw_only=True):
    """An overview of the cluster."""

    jobmanager_id: str
    #: Process id of the JobManager on its host.
    pid: int = 0
    generation: int
    rpc_address: str
    taskmanagers: int
    slots: int
    free_slots: int
    #: Number of slots that jobs wait for, or would use.
    pending_slots: int = 0
    #: Number of spans that the collector accepted, and that were dropped.
    spans: tuple[int, int] = (0, 0)
    settings: ClusterSettings = ClusterSettings()
    jobs: tuple[JobSummary, ...]
