"""Everything a job can want done: the commands of `JobMaster.handle`, executed in order by driver or simulator."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.manifest import Manifest
from penstock.checkpoint.trials import Trial
from penstock.checkpoint.upgrade_record import UpgradeRecord
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc.worker_commands import WorkerCommand

#: For texts: what a user can do with a job that does not run and is to be changed or stopped.
WAY_OUT = "(cancel it; `penstock run JOB` then goes on from its newest checkpoint)"


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the whole manifest log, behind every append asked for before; answered by `LogRead` or `LogFailed`."""

    list_files: bool = False


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """Get `count` more slots; answered by `SlotsGranted` or `SlotsRefused`, without `wait` at once."""

    count: int
    wait: bool = True


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """Give back these slots, or all and any request (None)."""

    slots: tuple[Slot, ...] | None = None


@dataclass(frozen=True, slots=True)
class LaunchWorker:
    """Start a worker process in a slot; answered by the worker's `WorkerReady` or by `WorkerLost`."""

    worker_id: str
    slot: Slot


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
    """Append to the log; answered by `ManifestAppended` or `ManifestFailed` of the same tag."""

    tag: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class DeleteEntries:
    """Remove log entries and files that nothing names any more; best effort, counted."""

    sequences: tuple[int, ...]
    files: tuple[str, ...]
    #: Entries that stay, and name none of the files any more.
    emptied: tuple[Manifest, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordRescale:
    """Seal `run_id` in the log, then put it and its graph into the job's record.

    From then on the job is that, for any leader; answered by `RescaleRecorded` or `RescaleNotRecorded`.
    """

    request_id: str
    run_id: str
    graph: JobGraph


@dataclass(frozen=True, slots=True)
class RecordUpgrade:
    """Put an upgrade's state into the job's record; with a graph, first seal `run_id` in the log, then record both.

    From then on the job is that, for any leader; answered by `UpgradeRecorded` or `UpgradeNotRecorded`.
    """

    upgrade: UpgradeRecord
    run_id: str = ""
    graph: JobGraph | None = None
    #: How the run begins; None: it is the old version that comes back.
    trial: Trial | None = None


@dataclass(frozen=True, slots=True)
class DiscoverSplits:
    """Ask the source's enumerator (a new one for a new epoch); answered by `SplitsDiscovered` or `DiscoveryFailed`."""

    uid: str
    epoch: int
    known: frozenset[str]
    first_run: bool


@dataclass(frozen=True, slots=True)
class CloseEnumerators:
    """No more discovery."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Tick` at this wall time; replaces the one before."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class OperationEnded:
    """A savepoint, stop or checkpoint request has ended; `error` empty = well."""

    request_id: str
    uri: str = ""
    checkpoint_id: int | None = None
    error: str = ""
    #: Name of the error's class, where a client tells one from another by it.
    error_class: str = ""
    #: As of `operations.kind_of`, where an earlier leader may have taken it: ours has not.
    kind: str = ""


@dataclass(frozen=True, slots=True)
class JobTerminal:
    """The job has ended: record it, release the lease, close everything."""

    state: str
    error: str = ""


Command = (
    ReadLog
    | RequestSlots
    | ReleaseSlots
    | LaunchWorker
    | KillWorker
    | SendToWorker
    | SendToWorkers
    | AppendManifest
    | DeleteEntries
    | RecordRescale
    | RecordUpgrade
    | DiscoverSplits
    | CloseEnumerators
    | WakeAt
    | OperationEnded
    | JobTerminal
)
