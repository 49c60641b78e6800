"""The events of `JobMaster.handle`: everything that can happen to a job.

Created by the job driver (production) and by the simulator. `WorkerReported` carries workers' reports unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.checkpoint.ha_records import UpgradePolicy
from penstock.checkpoint.manifest_log import LogEntry, Manifest
from penstock.core.elements import BarrierKind
from penstock.graph.job_graph import JobGraph
from penstock.graph.task_deployment import Attempts
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc.messages import WorkerReport


@dataclass(frozen=True, slots=True)
class Start:
    """The lease is held and the log is sealed: the job can begin."""

    #: The attempts that an earlier leader may have left running, and how long to wait for its workers. Without a newest
    #: attempt, none are adopted.
    attempts: Attempts = field(default_factory=Attempts)
    reconcile_ms: int = 0


@dataclass(frozen=True, slots=True)
class WorkersKept:
    """A TaskManager has registered with these workers of the job, which an earlier leader started."""

    workers: tuple[tuple[str, Slot], ...]


@dataclass(frozen=True, slots=True)
class AttemptRecorded:
    """Answer to `RecordAttempt`: the job's lease names this newest attempt. A failure is answered by `LogFailed`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class LogRead:
    """Answer to `ReadLog`; `files` is filled only if requested."""

    entries: tuple[LogEntry, ...]
    files: tuple[str, ...] = ()
    #: The savepoint the user named, with absolute paths.
    source: Manifest | None = None


@dataclass(frozen=True, slots=True)
class LogFailed:
    """The log cannot be read; `final` if a retry cannot help."""

    error: str
    final: bool


@dataclass(frozen=True, slots=True)
class SlotsGranted:
    """Answer to `RequestSlots`."""

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class SlotsAwaited:
    """A request for slots waits."""

    text: str


@dataclass(frozen=True, slots=True)
class SlotsRefused:
    """No slots became available in time."""

    reason: str


@dataclass(frozen=True, slots=True)
class SlotsAvailable:
    """The number of slots that no job holds has changed."""

    free: int


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker sent a report."""

    worker_id: str
    report: WorkerReport


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """A killed worker executes nothing any more; its process has not ended yet."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker process has ended or could not be started."""

    worker_id: str
    reason: str
    detail: str = ""
    #: False: it could not be started.
    started: bool = True
    #: Whether the job's code has ended it.
    by_user_code: bool = False
    #: Its slot, if the TaskManager has refused that.
    refused: Slot | None = None


@dataclass(frozen=True, slots=True)
class TaskManagerLost:
    """A TaskManager is lost, with its workers and slots."""

    taskmanager_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ManifestAppended:
    """Answer to `AppendManifest`: the entry is in the log."""

    tag: str
    entry: LogEntry


@dataclass(frozen=True, slots=True)
class ManifestFailed:
    """Answer to `AppendManifest`: it failed, or its outcome is unknown."""

    tag: str
    reason: str


@dataclass(frozen=True, slots=True)
class SplitsDiscovered:
    """Answer to `DiscoverSplits`; splits as builtin types."""

    uid: str
    epoch: int
    splits: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class DiscoveryFailed:
    """Answer to `DiscoverSplits`: the enumerator raised."""

    uid: str
    epoch: int
    error: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A user cancelled the job."""


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """Where a checkpoint is copied to as a savepoint (empty: nowhere), and whether its files are copied as they are."""

    uri: str = ""
    native: bool = False


NO_COPY = CopyTarget()


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A user asked to stop the job with a savepoint under `uri`."""

    request_id: str
    uri: str
    drain: bool = False
    native: bool = False


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """A user asked for a savepoint under `uri`."""

    request_id: str
    uri: str
    native: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """A user asked for a checkpoint."""

    request_id: str
    #: Whether its barriers overtake rows, or none does; None: by the job's settings.
    unaligned: bool | None = None


@dataclass(frozen=True, slots=True)
class RescaleRequested:
    """The job is to have another parallelism, or a drain other slots: it continues as `graph`, as a new run."""

    #: Empty: of the job's own scheduler, which needs no answer.
    request_id: str
    run_id: str
    graph: JobGraph
    #: TaskManagers whose slots the new run does not use.
    leaves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UpgradeRequested:
    """A user asked for an upgrade: the job continues as `graph`, its new version, as a new run."""

    request_id: str
    run_id: str
    #: Run id of the old version after a rollback.
    back_run_id: str
    graph: JobGraph
    policy: UpgradePolicy
    #: Where the savepoint is written; unused if the upgrade starts from a checkpoint.
    uri: str = ""
    #: See `UpgradeRecord.parallelism`.
    parallelism: dict[str, tuple[int, int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpgradeJudged:
    """A user accepted or rejected the new version."""

    healthy: bool


@dataclass(frozen=True, slots=True)
class ChangeRecorded:
    """Answer to `RecordChange`: the record is durable."""


@dataclass(frozen=True, slots=True)
class ChangeNotRecorded:
    """Answer to `RecordChange`: the record was not written."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """The time requested by `WakeAt` has been reached."""


#: Answers that a rescale or upgrade waits for.
ChangeAnswer = SlotsGranted | SlotsRefused | ChangeRecorded | ChangeNotRecorded
#: Events that change a running job.
Change = RescaleRequested | UpgradeRequested | UpgradeJudged | ChangeAnswer
BarrierRequested = StopRequested | SavepointRequested | CheckpointRequested

Event = (
    Start
    | WorkersKept
    | AttemptRecorded
    | LogRead
    | LogFailed
    | SlotsGranted
    | SlotsAwaited
    | SlotsRefused
    | SlotsAvailable
    | WorkerReported
    | WorkerStopped
    | WorkerLost
    | TaskManagerLost
    | ManifestAppended
    | ManifestFailed
    | SplitsDiscovered
    | DiscoveryFailed
    | CancelRequested
    | StopRequested
    | SavepointRequested
    | CheckpointRequested
    | Change
    | Tick
)


def barrier_of(event: BarrierRequested) -> tuple[BarrierKind, CopyTarget]:
    """Return the kind of checkpoint that a user requested, and the target of its copy."""
    match event:
        case StopRequested(_, uri, drain, native):
            return (BarrierKind.DRAIN if drain else BarrierKind.STOP), CopyTarget(uri, native)
        case SavepointRequested(_, uri, native):
            return BarrierKind.SAVEPOINT, CopyTarget(uri, native)
        case CheckpointRequested():
            return BarrierKind.CHECKPOINT, NO_COPY
