"""The jobs of a dispatcher, their lookup by id, id prefix or name, and the requests to them, also to rescale.

Used by `jobmanager.dispatcher` and `jobs.upgrade_requests`, also to wait for the end of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from penstock.checkpoint.ha_records import DamagedRecord, JobRecord, UpgradeRefusal
from penstock.config.settings import JobSettings
from penstock.config.slot_resources import wanted_of
from penstock.core.clock import Clock
from penstock.core.errors import JobIdentityError, NotFoundError, NotStartedError, PenstockError, UsageError
from penstock.core.rand import Rand
from penstock.graph.job_graph import JobGraph, required_slots
from penstock.graph.rescale import RescaleTo
from penstock.jobmanager.cluster.taskmanagers import TaskManagers
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.jobs.job_archive import JobArchive
from penstock.jobmanager.jobs.job_driver import JobDriver
from penstock.jobmanager.master.job_master import JobMaster
from penstock.jobmanager.messages.commands import OperationEnded
from penstock.jobmanager.messages.events import (
    CheckpointRequested,
    Event,
    RescaleRequested,
    SavepointRequested,
    StopRequested,
    UpgradeRequested,
)
from penstock.jobmanager.messages.views import OperationStatus

_LIMIT = 1000
#: By phase of a recorded upgrade; another one: FAILED.
_UPGRADE_STATUS = {"cut": "IN_PROGRESS", "trial": "IN_PROGRESS", "completed": "COMPLETED"}
_KINDS: dict[type[Event], str] = {
    StopRequested: "stop",
    SavepointRequested: "savepoint",
    CheckpointRequested: "checkpoint",
    RescaleRequested: "rescale",
    UpgradeRequested: "upgrade",
}


@dataclass(slots=True)
class KnownJob:
    """A job of this cluster, running or ended."""

    record: JobRecord
    graph: JobGraph
    driver: JobDriver | None = None
    #: Its record after its end.
    archive: JobArchive | None = None
    #: The newest upgrade that was refused.
    refusal: UpgradeRefusal | None = None
    #: Number of its drivers that have failed.
    broken_drivers: int = 0
    #: Its record, log or savepoint cannot be read: it neither runs nor has ended.
    suspended: bool = False

    @property
    def identity(self) -> tuple[str, str]:
        """Name and checkpoint root: at most one job of an identity runs."""
        return self.record.name, self.graph.settings.checkpoint_root

    @property
    def master(self) -> JobMaster | None:
        """The job's decider, once the job has been started under this leader."""
        return self.driver.master if self.driver is not None else None

    @property
    def continues(self) -> bool:
        """Whether this leader has read the job's log and found no end of the job in it."""
        master = self.master
        if self.record.ended or master is None or master.checkpointing.final_checkpoint is not None:
            return False
        deployment = master.deployment
        if deployment is None:
            return master.step in (Step.WAITING, Step.CHANGING)
        read = deployment.recovered is not None and not deployment.finishing
        return read and master.step in (Step.STARTING, Step.RUNNING)

    def post(self, event: Event) -> None:
        """Post a user request. During the recovery of a job, requests wait for its start.

        Raises:
            UsageError: the job has ended or is suspended.
            NotStartedError: its recovery has not begun; the same request may succeed later.
        """
        named = f"job {self.record.name!r}"
        if self.suspended:
            raise UsageError(f"{named} is suspended", hint=self.record.error)
        if self.record.ended:
            msg = f"{named} ({self.record.job_id}) is {self.record.ended}"
            raise UsageError(msg, hint="only a running job takes requests")
        if self.driver is None:
            msg = f"{named} ({self.record.job_id}) has not started yet"
            raise NotStartedError(msg, hint="repeat the request in a moment")
        self.driver.post(event)


def suspended_job(found: DamagedRecord) -> KnownJob:
    """Return the job of a record that cannot be read: it is shown with its error, and nothing is done with it."""
    record = JobRecord(
        job_id=found.job_id, name=found.name, run_id="", token="", submitted_ms=0, graph=b"", error=found.error
    )
    graph = JobGraph(name=found.name, vertices=(), edges=(), settings=JobSettings())
    return KnownJob(record, graph, suspended=True)


def find_job(jobs: Mapping[str, KnownJob], name: str) -> KnownJob:
    """Return the job with that id, name (a running one first, then the newest) or unique id prefix.

    Raises:
        NotFoundError: no job matches, or several do.
    """
    found = jobs.get(name)
    if found is not None:
        return found
    named = [j for j in jobs.values() if j.record.name == name]
    if named:
        return max(named, key=lambda j: (not j.record.ended, j.record.submitted_ms))
    begun = [j for j in jobs.values() if len(name) >= 4 and j.record.job_id.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    msg = f"no job {name!r}" if not begun else f"several jobs have the id prefix {name!r}"
    raise NotFoundError(msg, hint="see `penstock list`")


def jobs_named(jobs: Mapping[str, KnownJob], name: str) -> tuple[KnownJob, ...]:
    """Return all jobs of that name, oldest first; by an id or id prefix, that job.

    Raises:
        NotFoundError: no job matches, or several do.
    """
    found = find_job(jobs, name)
    if found.record.name != name or name in jobs:
        return (found,)
    return tuple(sorted((j for j in jobs.values() if j.record.name == name), key=lambda j: j.record.submitted_ms))


def refuse_running(jobs: Iterable[KnownJob], graph: JobGraph) -> None:
    """Raise JobIdentityError if a job of that name and checkpoint root is already running."""
    for job in jobs:
        same = job.identity == (graph.name, graph.settings.checkpoint_root)
        if same and not job.record.ended and not job.suspended:
            msg = f"job {graph.name!r} is already running in this cluster as {job.record.job_id}"
            raise JobIdentityError(msg, hint="stop or cancel it first, or use another job name")


def job_of_token(jobs: Iterable[KnownJob], token: str, name: str = "") -> str:
    """Return the id of the job that was submitted with a token; empty if there is none.

    Raises:
        UsageError: `name` is given, and the job has another name.
    """
    found = next((job.record for job in jobs if token and job.record.token == token), None)
    if found is not None and name and found.name != name:
        msg = f"job {found.name!r} was already submitted with token {token!r}"
        raise UsageError(msg, hint=f"job {name!r} was not accepted; use a new token for each submission")
    return found.job_id if found is not None else ""


def kind_of(event: Event) -> str:
    """Return the kind of the request that an event carries."""
    return _KINDS[type(event)]


class Operations:
    """The last thousand requests: registered once, posted to their job, and their status."""

    def __init__(self, jobs: Mapping[str, KnownJob] | None = None) -> None:
        """Start without requests to `jobs`, by id; None: requests are of no job."""
        self._jobs = {} if jobs is None else jobs
        self._statuses: dict[str, OperationStatus] = {}
        self._ended: dict[str, asyncio.Event] = {}

    def post(self, job: KnownJob, request_id: str, event: Event) -> str:
        """Register a request and post its event to the job, once for all requests with that id; return the id."""
        kind = kind_of(event)
        if self.is_repeated(job, request_id, kind):
            return request_id
        self.begin(request_id, job.record.job_id, kind)
        try:
            job.post(event)
        except PenstockError as error:
            self.end(OperationEnded(request_id, error=str(error)), job.record.job_id)
        return request_id

    def is_repeated(self, job: KnownJob, request_id: str, kind: str) -> bool:
        """Return whether the request exists; a failed one may be repeated. Raises like `require_own`."""
        known = self.require_own(job, request_id, kind)
        return known is not None and known.status != "FAILED"

    def require_own(self, job: KnownJob, request_id: str, kind: str) -> OperationStatus | None:
        """Return the status of an earlier request with the same token; None if there was none.

        A later run of the same name counts as the same job, so a repeated stop does not stop that run too.

        Raises:
            UsageError: the token belongs to another job's request or to a request of another kind.
        """
        name = job.record.name
        known = self.status(request_id) if self.known(request_id) else self.recorded_status(request_id, name)
        owner = self._jobs.get(known.job_id) if known is not None else None
        if owner is not None and owner.record.name != name:
            msg = f"token {request_id!r} is already used by a request of job {owner.record.name!r}"
            raise UsageError(msg, hint=f"job {name!r} was not changed; use a new token for each request")
        recorded = self.recorded_status(request_id, name) if known is not None and not known.kind else known
        before = recorded.kind if recorded is not None else ""
        if before not in {"", kind}:
            msg = f"token {request_id!r} is already used by a {before} request; this is a {kind} request"
            raise UsageError(msg, hint="the request was ignored; use a new token for each request")
        return known

    def is_known(self, job: KnownJob, request_id: str, kind: str, recorded: str) -> bool:
        """Return whether a request has been accepted, also by an earlier leader, whose request `recorded` names.

        Raises like `require_own`.
        """
        self.require_own(job, request_id, kind)
        return recorded == request_id or self.known(request_id)

    def recorded_status(self, request_id: str, name: str = "") -> OperationStatus | None:
        """Return the status that an earlier leader recorded for a request; records of that job name take precedence."""
        jobs = sorted(self._jobs.values(), key=lambda job: job.record.name != name)
        for record in (job.record for job in jobs):
            if record.stop_token and record.stop_token == request_id:
                return OperationStatus(
                    request_id=request_id, job_id=record.job_id, status="COMPLETED", kind="stop", uri=record.stop_uri
                )
            if record.rescale_token and record.rescale_token == request_id:
                return OperationStatus(request_id=request_id, job_id=record.job_id, status="COMPLETED", kind="rescale")
            upgrade = record.upgrade
            if upgrade is not None and upgrade.token == request_id:
                status = (
                    "FAILED" if record.ended and not upgrade.ended else _UPGRADE_STATUS.get(upgrade.phase, "FAILED")
                )
                error = "" if status != "FAILED" else upgrade.reason or f"the job is {record.ended}"
                return OperationStatus(
                    request_id=request_id,
                    job_id=record.job_id,
                    status=status,
                    kind="upgrade",
                    uri=upgrade.savepoint,
                    error=error,
                )
        return None

    def begin(self, request_id: str, job_id: str, kind: str = "") -> None:
        """Register an accepted request; `kind` as returned by `kind_of`."""
        self._statuses[request_id] = OperationStatus(
            request_id=request_id, job_id=job_id, status="IN_PROGRESS", kind=kind
        )
        self._ended[request_id] = asyncio.Event()
        while len(self._statuses) > _LIMIT:
            oldest = next(iter(self._statuses))
            del self._statuses[oldest], self._ended[oldest]

    def known(self, request_id: str) -> bool:
        """Return whether this leader knows the request."""
        return request_id in self._statuses

    def end(self, ended: OperationEnded, job_id: str) -> None:
        """Record the end of a request, which an earlier leader may have accepted."""
        if ended.request_id not in self._statuses:
            self.begin(ended.request_id, job_id, ended.kind)
        status = self._statuses[ended.request_id]
        self._statuses[ended.request_id] = msgspec.structs.replace(
            status,
            status="FAILED" if ended.error else "COMPLETED",
            uri=ended.uri,
            checkpoint_id=ended.checkpoint_id,
            error=ended.error,
            error_class=ended.error_class,
        )
        self._ended[ended.request_id].set()

    def end_all(self, job_id: str, reason: str) -> None:
        """Fail all requests of a job that are in progress: it has ended."""
        for request_id, status in list(self._statuses.items()):
            if status.job_id == job_id and status.status == "IN_PROGRESS":
                self.end(OperationEnded(request_id, error=reason), job_id)

    def forget(self, job_id: str) -> None:
        """Drop the requests of a job that are in progress, so that their clients repeat them."""
        for request_id, status in list(self._statuses.items()):
            if status.job_id == job_id and status.status == "IN_PROGRESS":
                del self._statuses[request_id]
                self._ended.pop(request_id).set()

    def status(self, request_id: str) -> OperationStatus:
        """Return the status of a request; raises NotFoundError."""
        found = self._statuses.get(request_id)
        if found is None:
            msg = f"no request {request_id!r}"
            raise NotFoundError(msg, hint="a restarted JobManager does not know earlier requests")
        return found

    async def wait(self, request_id: str, timeout_ms: int) -> OperationStatus:
        """Wait until the request has ended or the timeout expires; return its status."""
        self.status(request_id)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended[request_id].wait(), timeout_ms / 1000)
        return self.status(request_id)


class RescaleRequests:
    """The requests for another parallelism or for other slots, of all jobs; `job` is an id or a name."""

    def __init__(
        self,
        jobs: Mapping[str, KnownJob],
        operations: Operations,
        taskmanagers: TaskManagers,
        clock: Clock,
        rand: Rand,
    ) -> None:
        """Nothing is requested yet."""
        self._jobs = jobs
        self._operations = operations
        self._taskmanagers = taskmanagers
        self._clock = clock
        self._rand = rand

    async def request(self, job: str, to: RescaleTo) -> str:
        """Continue with another parallelism from a checkpoint; return a request id (the token, if one is given).

        Raises:
            UsageError: the job is not running or cannot have that parallelism. Any other error fails the request.
        """
        return self.begin(find_job(self._jobs, job), to)

    def begin(self, found: KnownJob, to: RescaleTo) -> str:
        """Do the same for a job that is known."""
        request_id = to.token or self._rand.token()
        if self._operations.is_known(found, request_id, "rescale", found.record.rescale_token):
            return request_id
        try:
            graph = to.applied(found.graph, self.slots(found))
        except UsageError as error:
            if found.master is not None:
                found.master.event_log.add(self._clock.now_ms(), "rescale", f"refused: {error}")
            raise
        self._operations.post(found, request_id, RescaleRequested(request_id, self._rand.token(16), graph))
        return request_id

    def drain(self, taskmanager_id: str) -> None:
        """Move jobs from a TaskManager to other slots, each from a checkpoint, and shut it down when it is unused.

        Idempotent. It is called repeatedly until the TaskManager is gone: a job that starts, changes or writes a
        savepoint moves later.

        Raises:
            NotFoundError: no such TaskManager.
        """
        holders = self._taskmanagers.drain(taskmanager_id)
        for job_id in sorted(holders & self._jobs.keys()):
            found = self._jobs[job_id]
            if found.master is not None and found.master.may_rescale(self._clock.now_ms()):
                request_id, drained = self._rand.token(), self._taskmanagers.pool.drained
                moved = RescaleRequested(request_id, self._rand.token(16), found.graph, drained)
                self._operations.post(found, request_id, moved)

    def slots(self, job: KnownJob) -> int:
        """Return the slots that a job holds or could get."""
        held = 0 if job.record.ended else required_slots(job.graph)
        return held + self._taskmanagers.pool.obtainable(wanted_of(job.graph.settings))
