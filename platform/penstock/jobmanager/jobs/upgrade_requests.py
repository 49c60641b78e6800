"""Accepts and reports requests to replace a running job by a new version.

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
    write_refusal,
)
from penstock.checkpoint.store import ObjectStore
from penstock.core.clock import Clock
from penstock.core.errors import PenstockError, UnansweredError, UsageError
from penstock.core.rand import Rand
from penstock.graph.job_graph import read_submitted, required_slots
from penstock.graph.rescale import fitted, keeping_parallelism
from penstock.jobmanager.change.upgrading import (
    UpgradeStage,
    Upgrading,
    refused_text,
    require_upgradable,
    under_name_of,
)
from penstock.jobmanager.jobs import enumerators
from penstock.jobmanager.jobs.known_jobs import KnownJob, Operations, find_job
from penstock.jobmanager.jobs.savepoint_folders import savepoint_target
from penstock.jobmanager.messages.commands import OperationEnded
from penstock.jobmanager.messages.events import UpgradeJudged, UpgradeRequested
from penstock.jobmanager.messages.views import UpgradeView

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UpgradeParts:
    """The parts of the dispatcher that `UpgradeRequests` uses."""

    jobs: dict[str, KnownJob]
    operations: Operations
    #: See `RescaleRequests.slots`.
    slots: Callable[[KnownJob], int]
    ha_store: ObjectStore
    clock: Clock
    rand: Rand
    #: Runs a coroutine on the event loop.
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    #: See `JobManagerLimits`.
    verdict_ms: int


class UpgradeRequests:
    """The upgrade requests of all jobs; `job` is an id or a name."""

    def __init__(self, parts: UpgradeParts) -> None:
        """Start with no upgrade under way; `resume` adds those of an earlier leader."""
        self._parts = parts
        #: Upgrades under way: request id -> file of the new version and wall time of the request.
        self._under_way: dict[str, tuple[str, int]] = {}

    def resume(self, record: JobRecord) -> None:
        """Register the unfinished upgrade of an earlier leader, so that clients can poll it here."""
        if record.upgrade is not None and not record.upgrade.ended and not record.ended:
            self._parts.operations.begin(record.upgrade.token, record.job_id, "upgrade")

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
        if parts.operations.is_known(found, request_id, "upgrade", before):
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
        there = parts.slots(found)
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
