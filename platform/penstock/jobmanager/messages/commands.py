"""The commands that `JobMaster.handle` returns, executed in order by the driver or the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.ha_records import UpgradeRecord
from penstock.checkpoint.manifest_log import Manifest
from penstock.checkpoint.recovery import Trial
from penstock.graph.job_graph import JobGraph
from penstock.graph.task_deployment import Attempts
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc.messages import WorkerCommand

#: Message suffix: the way out for a job that is not running and should be changed or stopped.
RESUME_HINT = "(cancel it; `penstock run JOB.PY` then resumes from its newest checkpoint)"


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the whole manifest log after all earlier appends; answered by `LogRead` or `LogFailed`."""

    list_files: bool = False


@dataclass(frozen=True, slots=True)
class RecordAttempt:
    """Write the attempt of each vertex to the job's lease; answered by `AttemptRecorded` or `LogFailed`."""

    attempts: Attempts


@dataclass(frozen=True, slots=True)
class KeepWorker:
    """Send commands to a worker that an earlier leader started; it is answered for like one's own."""

    worker_id: str
    slot: Slot


@dataclass(frozen=True, slots=True)
class WorkersDecided:
    """Keep no further workers of earlier leaders: the job has adopted its workers, or restarts."""


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """Request `count` more slots; answered by `SlotsGranted` or `SlotsRefused`. 0 withdraws the request.

    Without `wait` the answer is immediate, unless the cluster can grow that far.
    """

    count: int
    wait: bool = True


@dataclass(frozen=True, slots=True)
class DeclareSlots:
    """Declare how many slots the job would use, those that it holds included; 0: only those that it requests.

    The cluster may grow for them. They are not granted: the job learns of free slots by `SlotsAvailable`.
    """

    count: int


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """Return these slots; None returns all slots and withdraws any request."""

    slots: tuple[Slot, ...] | None = None


@dataclass(frozen=True, slots=True)
class LaunchWorker:
    """Start a worker process in a slot; answered by the worker's `WorkerReady` or by `WorkerLost`."""

    worker_id: str
    slot: Slot
    #: It takes the slot over when the worker that runs there has ended.
    beside: bool = False
    #: The graph of its version of the job; None: that of the running one.
    version: JobGraph | None = None


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill a worker process; answered by `WorkerLost`."""

    worker_id: str
    slot: Slot


@dataclass(frozen=True, slots=True)
class SendToWorker:
    """Relay a command to a worker."""

    worker_id: str
    command: WorkerCommand


@dataclass(frozen=True, slots=True)
class SendToWorkers:
    """Relay one command to several workers of a TaskManager."""

    taskmanager_id: str
    worker_ids: tuple[str, ...]
    command: WorkerCommand


@dataclass(frozen=True, slots=True)
class AppendManifest:
    """Append to the log; answered by `ManifestAppended` or `ManifestFailed` with the same tag."""

    tag: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeleteEntries:
    """Remove log entries and unreferenced files; best effort, counted."""

    sequences: tuple[int, ...]
    files: tuple[str, ...]
    #: Entries that stay but no longer name any of the files.
    emptied: tuple[Manifest, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordChange:
    """Write a step of a rescale or upgrade to the job's record; with a graph, seal `run_id` in the log first.

    From then on any leader runs the job as this run; without `run_id` the job's run continues with the graph. Answered
    by `ChangeRecorded` or `ChangeNotRecorded`.
    """

    request_id: str
    run_id: str = ""
    graph: JobGraph | None = None
    #: The state of the upgrade; None: a rescale.
    upgrade: UpgradeRecord | None = None
    #: How the run begins; None: not as an upgrade.
    trial: Trial | None = None


@dataclass(frozen=True, slots=True)
class DiscoverSplits:
    """Ask the source's enumerator for splits; answered by `SplitsDiscovered` or `DiscoveryFailed`.

    A new epoch gets a new enumerator.
    """

    uid: str
    epoch: int
    known: frozenset[str]
    first_run: bool


@dataclass(frozen=True, slots=True)
class CloseEnumerators:
    """Stop split discovery."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Tick` at this wall time; replaces the previous `WakeAt`."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class OperationEnded:
    """A savepoint, stop or checkpoint request has ended; an empty `error` means success."""

    request_id: str
    uri: str = ""
    checkpoint_id: int | None = None
    error: str = ""
    #: Name of the error's class, where clients distinguish errors by it.
    error_class: str = ""
    #: The kind as in `known_jobs.kind_of`, if an earlier leader may have accepted the request.
    kind: str = ""


@dataclass(frozen=True, slots=True)
class JobTerminal:
    """The job has ended: record it, release the lease, close everything."""

    state: str
    error: str = ""


Command = (
    ReadLog
    | RecordAttempt
    | KeepWorker
    | WorkersDecided
    | RequestSlots
    | DeclareSlots
    | ReleaseSlots
    | LaunchWorker
    | KillWorker
    | SendToWorker
    | SendToWorkers
    | AppendManifest
    | DeleteEntries
    | RecordChange
    | DiscoverSplits
    | CloseEnumerators
    | WakeAt
    | OperationEnded
    | JobTerminal
)
