"""The jobs of a dispatcher, and the lookup by id, id prefix or name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.checkpoint.ha_records import DamagedRecord, JobRecord, UpgradeRefusal
from penstock.config.settings import JobSettings
from penstock.core.errors import JobIdentityError, NotFoundError, NotStartedError, UsageError
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.deploy.job_steps import Step
from penstock.jobmanager.jobs.job_archive import JobArchive
from penstock.jobmanager.jobs.job_driver import JobDriver
from penstock.jobmanager.master.job_master import JobMaster
from penstock.jobmanager.messages.events import Event


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
    #: Its record cannot be read: it neither runs nor has ended.
    suspended: bool = False

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
        same = job.record.name == graph.name and not job.suspended
        if same and not job.record.ended and job.graph.settings.checkpoint_root == graph.settings.checkpoint_root:
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
