"""What the JobManager shows of itself: plain structs, made by the dispatcher, turned into Flink's JSON by REST.

Times are wall-clock milliseconds, -1 when not yet; sizes are bytes. Nothing here refers back to live objects.
"""

from __future__ import annotations

import msgspec

from penstock.config.settings import JobSettings


class _View(msgspec.Struct, frozen=True, kw_only=True):
    """Common options of all views."""


class SubtaskView(_View, frozen=True, kw_only=True):
    """One subtask's current attempt."""

    subtask: int
    #: Flink's: CREATED, SCHEDULED, DEPLOYING, INITIALIZING, RUNNING, FINISHED, CANCELING, CANCELED, FAILED.
    state: str
    attempt: int
    worker_id: str = ""
    taskmanager_id: str = ""
    host: str = ""
    start_ms: int = -1
    end_ms: int = -1
    input_ended: bool = False
    #: Newest metrics of the subtask, Flink's names.
    metrics: dict[str, float] = {}


class OperatorView(_View, frozen=True, kw_only=True):
    """One operator of a chain."""

    uid: str
    name: str
    kind: str


class VertexView(_View, frozen=True, kw_only=True):
    """One vertex of the job graph with its subtasks."""

    id: str
    name: str
    parallelism: int
    max_parallelism: int
    state: str
    operators: tuple[OperatorView, ...]
    subtasks: tuple[SubtaskView, ...]
    start_ms: int = -1
    end_ms: int = -1


class EdgeView(_View, frozen=True, kw_only=True):
    """One edge of the job graph."""

    source: str
    target: str
    #: `forward`, `key_group`, `rebalance` or `broadcast`.
    partitioner: str
    columns: tuple[str, ...] = ()
    input_index: int = 0


class RestoredView(_View, frozen=True, kw_only=True):
    """What a job has started from."""

    checkpoint_id: int
    #: When it was restored, and when it was taken.
    restored_ms: int
    taken_ms: int
    #: It is the savepoint that a user started the job from, not a checkpoint of the job.
    savepoint: bool = False
    #: Where the savepoint lies.
    uri: str = ""


class JobSummary(_View, frozen=True, kw_only=True):
    """One line of `penstock list`."""

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
    #: Newest complete checkpoint, or None.
    checkpoint_id: int | None = None
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    #: Why it failed or is restarting; one line.
    error: str = ""
    #: What it cannot start without, such as `9 slots, 4 of 6 are free`.
    waits_for: str = ""
    #: Until it starts again after a failure; -1 when it does not wait for that.
    next_attempt_in_ms: int = -1
    #: Why the newest of the checkpoints that failed did.
    checkpoint_failure: str = ""
    #: Calls to outside systems that take long: what each does, and since when.
    slow_calls: tuple[tuple[str, int], ...] = ()
    #: What it last started from; None: an empty start, or it has not started under this leader.
    restored: RestoredView | None = None
    #: Where the savepoint lies with which a user stopped it.
    stop_uri: str = ""

    @property
    def terminal(self) -> bool:
        """Whether nothing more will happen to the job."""
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
    """One subtask's part of a checkpoint."""

    vertex_id: str
    subtask: int
    ack_ms: int
    state_bytes: int
    new_bytes: int
    alignment_ms: float
    sync_ms: float
    async_ms: float
    #: Input taken between the first and the last barrier, and what lay meanwhile in the channels that waited.
    processed_bytes: int = 0
    buffered_bytes: int = 0


class CheckpointView(_View, frozen=True, kw_only=True):
    """One checkpoint or savepoint of the history."""

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
    #: Where the savepoint or the manifest lies.
    path: str = ""
    #: Objects written for it: those that no checkpoint before referred to, and the manifest.
    objects: int = 0
    subtasks: tuple[SubtaskCheckpointView, ...] = ()

    @property
    def processed_bytes(self) -> int:
        """Input that subtasks took between their first and their last barrier."""
        return sum(subtask.processed_bytes for subtask in self.subtasks)

    @property
    def buffered_bytes(self) -> int:
        """Input that lay in channels whose barrier had come, when the last one did."""
        return sum(subtask.buffered_bytes for subtask in self.subtasks)


class CheckpointsView(_View, frozen=True, kw_only=True):
    """Counts and the last hundred."""

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
    #: Committables not yet known published, their rows and bytes.
    pending_count: int = 0
    pending_rows: int = 0
    pending_bytes: int = 0


class OperationStatus(_View, frozen=True, kw_only=True):
    """An asynchronous request: savepoint, stop, checkpoint trigger."""

    request_id: str
    job_id: str
    #: IN_PROGRESS, COMPLETED or FAILED.
    status: str
    #: What was asked for, such as `stop`; empty where the leader that took it has not recorded that.
    kind: str = ""
    uri: str = ""
    checkpoint_id: int | None = None
    error: str = ""
    error_class: str = ""


class UpgradeView(_View, frozen=True, kw_only=True):
    """The newest upgrade of a job."""

    request_id: str
    #: `cut`, `trial`, or how it ended: `completed`, `rolled-back`, `refused`, `kept`.
    phase: str
    #: The new version's, and the old one's if it came back.
    run_id: str
    back_run_id: str
    savepoint: str = ""
    #: Completed on trial so far, and wanted.
    checkpoints: int = 0
    checkpoints_wanted: int = 0
    restarts: int = 0
    restarts_allowed: int = 0
    #: Whether a user's word is waited for.
    confirm: bool = False
    deadline_ms: int = 0
    #: Output that is held back, of sinks that can hold it.
    held_rows: int = 0
    held_sinks: tuple[str, ...] = ()
    #: See `UpgradeRecord.parallelism`.
    parallelism: dict[str, tuple[int, int, int]] = {}
    reason: str = ""


class ExceptionView(_View, frozen=True, kw_only=True):
    """One failure of the job."""

    at_ms: int
    error: str
    detail: str = ""
    task: str = ""
    worker_id: str = ""
    taskmanager_id: str = ""


class StoryEntry(_View, frozen=True, kw_only=True):
    """One thing the JobManager saw or decided."""

    at_ms: int
    kind: str
    text: str
    #: Of the leader, for this job.
    generation: int = 0


class WorkerView(_View, frozen=True, kw_only=True):
    """One slot worker."""

    worker_id: str
    job_id: str
    slot: int
    pid: int
    memory_bytes: int
    metrics: dict[str, float] = {}


class TaskManagerView(_View, frozen=True, kw_only=True):
    """One registered TaskManager."""

    taskmanager_id: str
    host: str
    pid: int
    slots: int
    free_slots: int
    registered_ms: int
    last_heartbeat_ms: int
    workers: tuple[WorkerView, ...]
    #: host:port of its own `/metrics`; empty when it serves none.
    metrics_address: str = ""
    #: What the process uses, by Flink's names (`metrics.process`).
    process: dict[str, float] = {}


class ClusterView(_View, frozen=True, kw_only=True):
    """The whole cluster at a glance."""

    jobmanager_id: str
    generation: int
    rpc_address: str
    taskmanagers: int
    slots: int
    free_slots: int
    #: Slots that jobs wait for.
    pending_slots: int = 0
    #: Spans that the collector has taken, and that were dropped.
    spans: tuple[int, int] = (0, 0)
    jobs: tuple[JobSummary, ...]
