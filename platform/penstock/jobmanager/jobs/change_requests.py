"""Requests that change a running job in its place, rescale and upgrade: taken, recorded step by step, and told of.

A part of `jobmanager.dispatcher`, on the JobManager's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.checkpoint.job_records import JobRecord, check_leading, write_record
from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import join_uri
from penstock.checkpoint.upgrade_record import UpgradePolicy, UpgradeRecord
from penstock.core import failpoints
from penstock.core.errors import UnansweredError, UsageError
from penstock.core.rand import Rand
from penstock.graph.job_graph import JobGraph
from penstock.graph.regions import required_slots
from penstock.graph.rescale import RescaleTo, keeping_parallelism
from penstock.graph.submitted import read_submitted
from penstock.jobmanager.change.upgrade_check import require_upgradable
from penstock.jobmanager.change.upgrading import Phase, Upgrading
from penstock.jobmanager.jobs import enumerators
from penstock.jobmanager.jobs.autoscaler import Autoscaler
from penstock.jobmanager.jobs.job_driver import JobDriver
from penstock.jobmanager.jobs.known_jobs import KnownJob
from penstock.jobmanager.jobs.operations import Operations
from penstock.jobmanager.jobs.recorded_jobs import rescaled_record, upgraded_record
from penstock.jobmanager.jobs.savepoint_target import savepoint_target
from penstock.jobmanager.messages.commands import RecordRescale, RecordUpgrade
from penstock.jobmanager.messages.events import Event, RescaleRequested, UpgradeJudged, UpgradeRequested
from penstock.jobmanager.messages.views import OperationStatus, UpgradeView

_STATUS = {"cut": "IN_PROGRESS", "trial": "IN_PROGRESS", "completed": "COMPLETED"}


@dataclass(frozen=True, slots=True)
class ChangeParts:
    """What of the dispatcher is used."""

    jobs: dict[str, KnownJob]
    find: Callable[[str], KnownJob]
    #: Begin a request and post its event to the job.
    operate: Callable[[KnownJob, str, Event], str]
    operations: Operations
    free_slots: Callable[[], int]
    ha_store: ObjectStore
    rand: Rand
    generation: int
    #: See `JobManagerLimits`.
    verdict_ms: int


class Changes:
    """`job` is an id or a name."""

    def __init__(self, parts: ChangeParts) -> None:
        """Nothing is under way, but what `resume` says."""
        self._parts = parts
        #: Rescales by itself the jobs that want it.
        self.autoscaler = Autoscaler(parts.jobs, parts.operations, self._slots, self._begin_rescale)

    def scaling_log(self, job: str) -> dict[str, Any]:
        """Return what the autoscaler saw of a job, and did or would do; see `Autoscaler.document`."""
        return self.autoscaler.document(self._parts.find(job))

    def resume(self, record: JobRecord) -> None:
        """A leader before has begun an upgrade of this job: those who asked for it may ask us."""
        if record.upgrade is not None and not record.upgrade.ended and not record.ended:
            self._parts.operations.begin(record.upgrade.token, record.job_id, "upgrade")

    async def rescale(self, job: str, to: RescaleTo) -> str:
        """See `Dispatcher.rescale`."""
        return self._begin_rescale(self._parts.find(job), to)

    def _begin_rescale(self, found: KnownJob, to: RescaleTo) -> str:
        parts, request_id = self._parts, to.token or self._parts.rand.token()
        if self._is_known(found, request_id, "rescale", found.record.rescale_token):
            return request_id
        graph = to.applied(found.graph, self._slots(found))
        parts.operate(found, request_id, RescaleRequested(request_id, parts.rand.token(16), graph))
        return request_id

    async def upgrade(self, job: str, graph: bytes, policy: UpgradePolicy, token: str = "") -> str:
        """Replace a running job by another version of it; return a request id: the token, if one is given.

        Raises:
            UsageError: the job does not run, the graph is no version of it, it could not be taken back as wanted, or
                its savepoint cannot be written; what else stands against it is told as the request's failure.
                ConnectorError: a connector cannot work.
        """
        parts = self._parts
        found, request_id = parts.find(job), token or parts.rand.token()
        before = found.record.upgrade.token if found.record.upgrade is not None else ""
        if self._is_known(found, request_id, "upgrade", before):
            return request_id
        new = read_submitted(graph)
        if not new.settings.checkpoint_root:
            settings = msgspec.structs.replace(new.settings, checkpoint_root=found.graph.settings.checkpoint_root)
            new = msgspec.structs.replace(new, settings=settings)
        require_upgradable(found.graph, new, policy)
        kept = keeping_parallelism(found.graph, new, keep=policy.keep_parallelism)
        new = kept.graph
        needed, there = required_slots(new), self._slots(found)
        if needed > there:
            msg = f"the new version needs {needed} slots, there are {there} for it"
            raise UsageError(msg, hint="start another TaskManager, or lower its parallelism")
        await enumerators.validate(new)
        uri = "" if policy.from_checkpoint else await savepoint_target(found, policy.target, request_id, probe=True)
        if parts.operations.known(request_id):  # asked again meanwhile
            return request_id
        runs = (parts.rand.token(16), parts.rand.token(16))
        event = UpgradeRequested(request_id, *runs, new, policy, uri, kept.changes)
        parts.operate(found, request_id, event)
        return request_id

    async def judge(self, job: str, *, healthy: bool) -> None:
        """Say whether the new version on trial is healthy; return when that will outlive this leader.

        Raises:
            UsageError: none is on trial, or what was decided in the end is not what was said.
            UnansweredError: nobody knows yet, because it could not be recorded in time.
        """
        found = self._parts.find(job)
        upgrading = _upgrading(found)
        if found.driver is None or upgrading is None or upgrading.record is None or upgrading.phase is not Phase.TRIAL:
            msg = f"job {found.record.name!r} has no new version on trial"
            hint = "see `penstock upgrade JOB --status`; if the JobManager has just started, ask again"
            raise UsageError(msg, hint=hint)
        found.driver.post(UpgradeJudged(healthy))
        status = await self._parts.operations.wait(upgrading.record.token, self._parts.verdict_ms)
        if status.status == "IN_PROGRESS":
            msg = f"the verdict on job {found.record.name!r} was taken, and is not recorded yet"
            raise UnansweredError(
                msg, hint="see `penstock upgrade JOB --status`: a JobManager that dies now forgets it"
            )
        if healthy is not (status.status == "COMPLETED"):
            msg = f"the verdict on job {found.record.name!r} came too late: {status.error or 'its output was released'}"
            raise UsageError(msg, hint="see `penstock upgrade JOB --status`")

    def view(self, job: str) -> UpgradeView | None:
        """Return the newest upgrade of a job, if there was one."""
        found = self._parts.find(job)
        upgrading = _upgrading(found)
        record = found.record.upgrade if upgrading is None else upgrading.record
        return None if record is None else _view(record, upgrading, found)

    def require_own(self, job: KnownJob, request_id: str, kind: str) -> OperationStatus | None:
        """Return what became of a request with the token of one that is made of `job` now; None: there was none.

        A later run of the same name counts as the same job: asked again, a stop does not stop that one too.

        Raises:
            UsageError: that was a request of another job, or for something else than `kind`.
        """
        operations, name = self._parts.operations, job.record.name
        known = operations.status(request_id) if operations.known(request_id) else self.told(request_id, name)
        owner = self._parts.jobs.get(known.job_id) if known is not None else None
        if owner is not None and owner.record.name != name:
            msg = f"token {request_id!r} was given to a request of job {owner.record.name!r} already"
            raise UsageError(msg, hint=f"nothing was done to job {name!r}; a token is for one request of one job")
        recorded = self.told(request_id, name) if known is not None and not known.kind else known
        before = recorded.kind if recorded is not None else ""
        if before not in {"", kind}:
            msg = f"token {request_id!r} was given to a request for a {before} already, and this one is for a {kind}"
            raise UsageError(msg, hint="nothing was done for it; a token is for one request")
        return known

    def told(self, request_id: str, name: str = "") -> OperationStatus | None:
        """Return what a leader before us has recorded of a request, of a job of that name first."""
        jobs = sorted(self._parts.jobs.values(), key=lambda job: job.record.name != name)
        for record in (job.record for job in jobs):
            if record.stop_token and record.stop_token == request_id:
                return OperationStatus(
                    request_id=request_id, job_id=record.job_id, status="COMPLETED", kind="stop", uri=record.stop_uri
                )
            if record.rescale_token and record.rescale_token == request_id:
                return OperationStatus(request_id=request_id, job_id=record.job_id, status="COMPLETED", kind="rescale")
            upgrade = record.upgrade
            if upgrade is not None and upgrade.token == request_id:
                status = "FAILED" if record.ended and not upgrade.ended else _STATUS.get(upgrade.phase, "FAILED")
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

    async def record_rescale(self, driver: JobDriver, command: RecordRescale) -> None:
        """From the write on, the job is its next run, for whoever leads."""
        job = self._parts.jobs[driver.record.job_id]
        record = rescaled_record(job.record, command, self._parts.generation)
        failpoints.hit("jobmanager.before_rescale_record", run=command.run_id)
        await asyncio.to_thread(self._write, record)
        failpoints.hit("jobmanager.after_rescale_record", run=command.run_id)
        job.record, job.graph, driver.record = record, command.graph, record

    async def record_upgrade(self, driver: JobDriver, command: RecordUpgrade) -> None:
        """The same of a step of an upgrade, which may leave the job what it is."""
        job = self._parts.jobs[driver.record.job_id]
        record = upgraded_record(job.record, command, self._parts.generation)
        failpoints.hit("jobmanager.before_upgrade_record", phase=command.upgrade.phase)
        await asyncio.to_thread(self._write, record)
        failpoints.hit("jobmanager.after_upgrade_record", phase=command.upgrade.phase)
        job.record = driver.record = record
        job.graph = command.graph or job.graph

    def _write(self, record: JobRecord) -> None:
        """Write a record, unless a newer leader is there, be it that it has not taken this one over yet."""
        check_leading(self._parts.ha_store, self._parts.generation)
        write_record(self._parts.ha_store, record)

    def _slots(self, job: KnownJob) -> int:
        held = 0 if job.record.ended else required_slots(job.graph)
        return held + self._parts.free_slots()

    def _is_known(self, job: KnownJob, request_id: str, kind: str, recorded: str) -> bool:
        self.require_own(job, request_id, kind)
        return recorded == request_id or self._parts.operations.known(request_id)


def _upgrading(job: KnownJob) -> Upgrading | None:
    master = job.master
    return master.in_place.upgrading if master is not None else None


def _view(record: UpgradeRecord, upgrading: Upgrading | None, job: KnownJob) -> UpgradeView:
    master = job.master
    trial = record.phase == "trial" and master is not None
    held = [c for c in master.checkpointing.pending.values() if c.run_id == record.run_id] if trial and master else []
    return UpgradeView(
        request_id=record.token,
        phase=record.phase,
        run_id=record.run_id,
        back_run_id=record.back_run_id,
        savepoint=record.savepoint,
        checkpoints=upgrading.checkpoints if upgrading is not None else 0,
        checkpoints_wanted=record.policy.checkpoints,
        restarts=upgrading.restarts if upgrading is not None else 0,
        restarts_allowed=record.policy.max_restarts,
        confirm=record.policy.confirm,
        deadline_ms=record.deadline_ms,
        held_rows=sum(c.rows for c in held),
        held_sinks=tuple(sorted({c.uid for c in held})),
        parallelism=record.parallelism,
        reason=record.reason,
    )


def default_root(graph: JobGraph, ha_uri: str) -> JobGraph:
    """Return a graph with a checkpoint root: one below the HA root, where its submitter gave none."""
    if graph.settings.checkpoint_root:
        return graph
    settings = msgspec.structs.replace(graph.settings, checkpoint_root=join_uri(ha_uri, "checkpoints"))
    return msgspec.structs.replace(graph, settings=settings)
