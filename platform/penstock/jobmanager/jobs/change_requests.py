"""Accepts, records and reports requests that change a running job: rescale and upgrade.

Part of `jobmanager.dispatcher`, on the JobManager's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.checkpoint.ha_records import (
    JobRecord,
    UpgradePolicy,
    UpgradeRecord,
    UpgradeRefusal,
    check_leading,
    write_record,
    write_refusal,
)
from penstock.checkpoint.store import ObjectStore
from penstock.checkpoint.stores import join_uri
from penstock.config.settings import ResourceProfile
from penstock.config.slot_resources import wanted_of
from penstock.core import failpoints
from penstock.core.clock import Clock
from penstock.core.errors import PenstockError, UnansweredError, UsageError
from penstock.core.rand import Rand
from penstock.graph.job_graph import JobGraph, encode_graph, read_submitted, required_slots
from penstock.graph.rescale import RescaleTo, fitted, keeping_parallelism
from penstock.jobmanager.change.upgrading import (
    UpgradeStage,
    Upgrading,
    refused_text,
    require_upgradable,
    under_name_of,
)
from penstock.jobmanager.jobs import enumerators
from penstock.jobmanager.jobs.autoscaler import Autoscaler
from penstock.jobmanager.jobs.job_driver import JobDriver
from penstock.jobmanager.jobs.known_jobs import KnownJob, Operations, find_job
from penstock.jobmanager.jobs.savepoint_folders import savepoint_target
from penstock.jobmanager.messages.commands import OperationEnded, RecordChange
from penstock.jobmanager.messages.events import RescaleRequested, UpgradeJudged, UpgradeRequested
from penstock.jobmanager.messages.views import UpgradeView

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChangeParts:
    """The parts of the dispatcher that `ChangeRequests` uses."""

    jobs: dict[str, KnownJob]
    operations: Operations
    obtainable_slots: Callable[[ResourceProfile], int]
    #: See `TaskManagers.drain`.
    drain: Callable[[str], frozenset[str]]
    #: All drained TaskManagers.
    drained: Callable[[], tuple[str, ...]]
    ha_store: ObjectStore
    clock: Clock
    rand: Rand
    generation: int
    #: Runs a coroutine on the event loop.
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    #: See `JobManagerLimits`.
    verdict_ms: int


class ChangeRequests:
    """Rescale and upgrade requests of all jobs; `job` is an id or a name."""

    def __init__(self, parts: ChangeParts) -> None:
        """Start with no change under way; `resume` adds those of an earlier leader."""
        self._parts = parts
        #: Upgrades under way: request id -> file of the new version and wall time of the request.
        self._under_way: dict[str, tuple[str, int]] = {}
        #: Rescales jobs that have the autoscaler on.
        self.autoscaler = Autoscaler(parts.jobs, parts.operations, self._slots, self._begin_rescale)

    def scaling_log(self, job: str) -> dict[str, Any]:
        """Return the autoscaler's samples and decisions for a job; see `Autoscaler.document`."""
        return self.autoscaler.document(find_job(self._parts.jobs, job))

    def resume(self, record: JobRecord) -> None:
        """Register the unfinished upgrade of an earlier leader, so that clients can poll it here."""
        if record.upgrade is not None and not record.upgrade.ended and not record.ended:
            self._parts.operations.begin(record.upgrade.token, record.job_id, "upgrade")

    async def rescale(self, job: str, to: RescaleTo) -> str:
        """Continue with another parallelism from a checkpoint; return a request id (the token, if one is given).

        Raises:
            UsageError: the job is not running or cannot have that parallelism. Any other error fails the request.
        """
        return self._begin_rescale(find_job(self._parts.jobs, job), to)

    def _begin_rescale(self, found: KnownJob, to: RescaleTo) -> str:
        parts, request_id = self._parts, to.token or self._parts.rand.token()
        if self._is_known(found, request_id, "rescale", found.record.rescale_token):
            return request_id
        try:
            graph = to.applied(found.graph, self._slots(found))
        except UsageError as error:
            if found.master is not None:
                found.master.event_log.add(parts.clock.now_ms(), "rescale", f"refused: {error}")
            raise
        parts.operations.post(found, request_id, RescaleRequested(request_id, parts.rand.token(16), graph))
        return request_id

    def drain(self, taskmanager_id: str) -> None:
        """Move jobs from a TaskManager to other slots, each from a checkpoint, and shut it down when it is unused.

        Idempotent. It is called repeatedly until the TaskManager is gone: a job that starts, changes or writes a
        savepoint moves later.

        Raises:
            NotFoundError: no such TaskManager.
        """
        parts = self._parts
        holders = parts.drain(taskmanager_id)
        for job_id in sorted(holders & parts.jobs.keys()):
            found = parts.jobs[job_id]
            if found.master is not None and found.master.may_rescale(parts.clock.now_ms()):
                request_id = parts.rand.token()
                moved = RescaleRequested(request_id, parts.rand.token(16), found.graph, parts.drained())
                parts.operations.post(found, request_id, moved)

    async def upgrade(self, job: str, graph: bytes, policy: UpgradePolicy, token: str = "") -> str:
        """Replace a running job by a new version; return a request id (the token, if one is given).

        Raises:
            UsageError: the job is not running, the graph is no version of it, the requested rollback is impossible, or
                its savepoint cannot be written. Any other obstacle fails the request.
                ConnectorError: a connector's validation failed.
        """
        parts = self._parts
        found, request_id = find_job(parts.jobs, job), token or parts.rand.token()
        before = found.record.upgrade.token if found.record.upgrade is not None else ""
        if self._is_known(found, request_id, "upgrade", before):
            return request_id
        now_ms = parts.clock.now_ms()
        try:
            event = await self._checked(found, graph, policy, request_id)
        except PenstockError as error:
            if found.master is not None:
                found.master.event_log.add(now_ms, "upgrade", refused_text(policy, str(error)))
            self._refused(found, UpgradeRefusal(token=request_id, file=policy.file, at_ms=now_ms, reason=str(error)))
            raise
        if not parts.operations.known(request_id):  # else a concurrent request with the same token was faster
            self._under_way[request_id] = policy.file, now_ms
            parts.operations.post(found, request_id, event)
        return request_id

    async def _checked(self, found: KnownJob, graph: bytes, policy: UpgradePolicy, request_id: str) -> UpgradeRequested:
        """Return the request of an upgrade that passes all checks outside the job's decider; raises as `upgrade`."""
        parts, new = self._parts, read_submitted(graph)
        if not new.settings.checkpoint_root:
            settings = msgspec.structs.replace(new.settings, checkpoint_root=found.graph.settings.checkpoint_root)
            new = msgspec.structs.replace(new, settings=settings)
        new = under_name_of(found.graph, new)
        require_upgradable(found.graph, new, policy)
        kept = keeping_parallelism(found.graph, new, keep=policy.keep_parallelism)
        there = self._slots(found)
        new = fitted(kept.graph, there)
        needed = required_slots(new)
        if needed > there:
            msg = f"the new version needs {needed} slots, but only {there} are available"
            raise UsageError(msg, hint="start another TaskManager, or lower the parallelism")
        await enumerators.validate(new)
        uri = "" if policy.from_checkpoint else await savepoint_target(found, policy.target, request_id, probe=True)
        return UpgradeRequested(request_id, parts.rand.token(16), parts.rand.token(16), new, policy, uri, kept.changes)

    def ended(self, job_id: str, ended: OperationEnded) -> None:
        """Record an upgrade that the job's decider has refused: it has ended, and the job's record does not have it."""
        asked, job = self._under_way.pop(ended.request_id, None), self._parts.jobs[job_id]
        recorded = job.record.upgrade is not None and job.record.upgrade.token == ended.request_id
        if asked is not None and ended.error and not recorded:
            file, at_ms = asked
            self._refused(job, UpgradeRefusal(token=ended.request_id, file=file, at_ms=at_ms, reason=ended.error))

    def _refused(self, job: KnownJob, refusal: UpgradeRefusal) -> None:
        job.refusal = refusal
        self._parts.spawn(self._write_refusal(job.record.job_id, refusal))

    async def _write_refusal(self, job_id: str, refusal: UpgradeRefusal) -> None:
        try:
            await asyncio.to_thread(write_refusal, self._parts.ha_store, job_id, refusal)
        except PenstockError as error:
            _LOGGER.warning("the refused upgrade of job %s was not recorded: %s", job_id, error)

    async def judge(self, job: str, *, healthy: bool) -> None:
        """Accept or reject the version on trial; return once the verdict is durable.

        Raises:
            UsageError: no version is on trial, or the final decision differs from the verdict.
            UnansweredError: the verdict was not recorded in time; the outcome is open.
        """
        found = find_job(self._parts.jobs, job)
        upgrading = _upgrading(found)
        if (
            found.driver is None
            or upgrading is None
            or upgrading.record is None
            or upgrading.phase is not UpgradeStage.TRIAL
        ):
            msg = f"job {found.record.name!r} has no new version on trial"
            hint = "see `penstock upgrade JOB --status`; if the JobManager has just started, ask again"
            raise UsageError(msg, hint=hint)
        found.driver.post(UpgradeJudged(healthy))
        status = await self._parts.operations.wait(upgrading.record.token, self._parts.verdict_ms)
        if status.status == "IN_PROGRESS":
            msg = f"the verdict on job {found.record.name!r} was received but is not recorded yet"
            raise UnansweredError(
                msg, hint="check `penstock upgrade JOB --status`; the verdict is lost if the JobManager dies now"
            )
        if healthy is not (status.status == "COMPLETED"):
            msg = f"the verdict on job {found.record.name!r} was too late: {status.error or 'its output was released'}"
            raise UsageError(msg, hint="see `penstock upgrade JOB --status`")

    def view(self, job: str) -> UpgradeView | None:
        """Return the newest upgrade of a job, if there was one."""
        found = find_job(self._parts.jobs, job)
        upgrading = _upgrading(found)
        record, refusal = found.record.upgrade if upgrading is None else upgrading.record, found.refusal
        if refusal is not None and (record is None or (record.ended and record.ended_ms <= refusal.at_ms)):
            return _refused_view(refusal)
        return None if record is None else _view(record, upgrading, found)

    async def record_change(self, driver: JobDriver, command: RecordChange) -> None:
        """Write a step of a rescale or upgrade to the job record; with a new run, also later leaders run the job so."""
        job = self._parts.jobs[driver.record.job_id]
        record = _changed_record(job.record, command, self._parts.generation)
        if command.upgrade is None:
            failpoints.hit("jobmanager.before_rescale_record", run=command.run_id)
        else:
            failpoints.hit("jobmanager.before_upgrade_record", phase=command.upgrade.phase)
        await asyncio.to_thread(self._write, record)
        if command.upgrade is None:
            failpoints.hit("jobmanager.after_rescale_record", run=command.run_id)
        else:
            failpoints.hit("jobmanager.after_upgrade_record", phase=command.upgrade.phase)
        job.record = driver.record = record
        job.graph = command.graph or job.graph

    def _write(self, record: JobRecord) -> None:
        """Write the job record; refuse if a newer leader exists, even if it has not taken over this job yet."""
        check_leading(self._parts.ha_store, self._parts.generation)
        write_record(self._parts.ha_store, record)

    def _slots(self, job: KnownJob) -> int:
        held = 0 if job.record.ended else required_slots(job.graph)
        return held + self._parts.obtainable_slots(wanted_of(job.graph.settings))

    def _is_known(self, job: KnownJob, request_id: str, kind: str, recorded: str) -> bool:
        self._parts.operations.require_own(job, request_id, kind)
        return recorded == request_id or self._parts.operations.known(request_id)


def _changed_record(record: JobRecord, command: RecordChange, generation: int) -> JobRecord:
    """Return the job record with the state of a rescale or upgrade; with a graph in the command, as a new run."""
    upgrade = command.upgrade
    if upgrade is None:
        token = command.request_id or record.rescale_token  # a user's: the scheduler's own changes have none
        changed = msgspec.structs.replace(record, rescale_token=token, generation=generation)
    else:
        changed = msgspec.structs.replace(record, upgrade=upgrade, generation=generation)
    if command.graph is None:
        return changed
    if not command.run_id:
        return msgspec.structs.replace(changed, graph=encode_graph(command.graph))
    allowed = upgrade.policy.allow_non_restored_state if upgrade is not None and command.trial is not None else ()
    return msgspec.structs.replace(
        changed,
        run_id=command.run_id,
        graph=encode_graph(command.graph),
        options={"allow_non_restored_state": allowed} if allowed else {},
    )


def _upgrading(job: KnownJob) -> Upgrading | None:
    master = job.master
    return master.job_change.upgrading if master is not None else None


def _refused_view(refusal: UpgradeRefusal) -> UpgradeView:
    return UpgradeView(
        request_id=refusal.token,
        phase="refused",
        run_id="",
        back_run_id="",
        reason=f"the running version was not touched: {refusal.reason}",
        file=refusal.file,
        begun_ms=refusal.at_ms,
        ended_ms=refusal.at_ms,
    )


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
        file=record.policy.file,
        begun_ms=record.begun_ms,
        ended_ms=record.ended_ms,
    )


def default_root(graph: JobGraph, ha_uri: str) -> JobGraph:
    """Return the graph with a checkpoint root; without one from the submitter it is below the HA root."""
    if graph.settings.checkpoint_root:
        return graph
    settings = msgspec.structs.replace(graph.settings, checkpoint_root=join_uri(ha_uri, "checkpoints"))
    return msgspec.structs.replace(graph, settings=settings)
