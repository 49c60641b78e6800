"""Everything that can happen to a job: the events of `JobMaster.handle`.

Made by the job driver (production) and by the simulator; workers' reports travel in `WorkerReported` as they came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.checkpoint.log import LogEntry
from penstock.checkpoint.manifest import Manifest
from penstock.checkpoint.upgrade_record import UpgradePolicy
from penstock.core.elements import BarrierKind
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc.messages import WorkerReport


@dataclass(frozen=True, slots=True)
class Start:
    """The lease is held and the log is sealed: begin."""


@dataclass(frozen=True, slots=True)
class LogRead:
    """Answer to `ReadLog`; `files` only when they were asked for."""

    entries: tuple[LogEntry, ...]
    files: tuple[str, ...] = ()
    #: The savepoint the user named, with absolute paths.
    source: Manifest | None = None


@dataclass(frozen=True, slots=True)
class LogFailed:
    """The log cannot be read; `final` when trying again cannot help."""

    error: str
    final: bool


@dataclass(frozen=True, slots=True)
class SlotsGranted:
    """Answer to `RequestSlots`."""

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class SlotsRefused:
    """No slots came in time."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker said something."""

    worker_id: str
    report: WorkerReport


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker process has ended or could not be started."""

    worker_id: str
    reason: str
    detail: str = ""
    #: Whether it was told to end.
    asked: bool = False


@dataclass(frozen=True, slots=True)
class TaskManagerLost:
    """A TaskManager is dead, its workers and slots with it."""

    taskmanager_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class ManifestAppended:
    """Answer to `AppendManifest`: it is in the log."""

    tag: str
    entry: LogEntry


@dataclass(frozen=True, slots=True)
class ManifestFailed:
    """Answer to `AppendManifest`: it is not, or nobody knows."""

    tag: str
    reason: str


@dataclass(frozen=True, slots=True)
class SplitsDiscovered:
    """Answer to `DiscoverSplits`; splits as builtins."""

    uid: str
    epoch: int
    splits: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class DiscoveryFailed:
    """The enumerator raised."""

    uid: str
    epoch: int
    error: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """A user cancels the job."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A user stops the job with a savepoint under `uri`."""

    request_id: str
    uri: str
    drain: bool = False


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """A user wants a savepoint under `uri`."""

    request_id: str
    uri: str


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """A user wants a checkpoint now."""

    request_id: str


@dataclass(frozen=True, slots=True)
class RescaleRequested:
    """A user wants the job to go on as `graph`: itself with another parallelism, under the ids of a new run."""

    request_id: str
    run_id: str
    graph: JobGraph


@dataclass(frozen=True, slots=True)
class RescaleRecorded:
    """Answer to `RecordRescale`: it is durable."""


@dataclass(frozen=True, slots=True)
class RescaleNotRecorded:
    """Answer to `RecordRescale`: it is not."""

    reason: str


@dataclass(frozen=True, slots=True)
class UpgradeRequested:
    """A user wants the job to go on as `graph`, another version of it, under the ids of a new run."""

    request_id: str
    run_id: str
    #: Of the old version, should it come back.
    back_run_id: str
    graph: JobGraph
    policy: UpgradePolicy
    #: Where the savepoint goes; unused when it goes on from a checkpoint.
    uri: str = ""
    #: See `UpgradeRecord.parallelism`.
    parallelism: dict[str, tuple[int, int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpgradeJudged:
    """A user says whether the new version is healthy."""

    healthy: bool


@dataclass(frozen=True, slots=True)
class UpgradeRecorded:
    """Answer to `RecordUpgrade`: it is durable."""


@dataclass(frozen=True, slots=True)
class UpgradeNotRecorded:
    """Answer to `RecordUpgrade`: it is not."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """The time asked for by `WakeAt` has come."""


#: What changes a running job in its place.
Change = (
    RescaleRequested
    | RescaleRecorded
    | RescaleNotRecorded
    | UpgradeRequested
    | UpgradeJudged
    | UpgradeRecorded
    | UpgradeNotRecorded
)
CutRequested = StopRequested | SavepointRequested | CheckpointRequested

Event = (
    Start
    | LogRead
    | LogFailed
    | SlotsGranted
    | SlotsRefused
    | WorkerReported
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


def cut_of(event: CutRequested) -> tuple[BarrierKind, str]:
    """Return the kind of cut a user asks for, and where its copy goes."""
    match event:
        case StopRequested(_, uri, drain):
            return (BarrierKind.DRAIN if drain else BarrierKind.STOP), uri
        case SavepointRequested(_, uri):
            return BarrierKind.SAVEPOINT, uri
        case CheckpointRequested():
            return BarrierKind.CHECKPOINT, ""


def request_of(kind: BarrierKind, request_id: str, uri: str) -> CutRequested:
    """Return the request that `cut_of` was made of."""
    if kind.ends_job:
        return StopRequested(request_id, uri, drain=kind is BarrierKind.DRAIN)
    return SavepointRequested(request_id, uri) if kind is BarrierKind.SAVEPOINT else CheckpointRequested(request_id)
