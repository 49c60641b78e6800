"""The dispatcher: accepts jobs, persists them before they start, recovers them, answers queries.

Called by the REST layer (`penstock.rest`) and by the embedded executor on the JobManager's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.checkpoint.ha_records import JobRecord, check_leading, read_refusals, write_record
from penstock.checkpoint.job_lease import LeaseHolder
from penstock.checkpoint.store import ObjectStore
from penstock.core.clock import Clock
from penstock.core.errors import LeadershipLostError, MetadataDamagedError, NotFoundError, PenstockError, UsageError
from penstock.core.event_log import Entry
from penstock.core.rand import Rand
from penstock.graph.job_graph import JobGraph, read_submitted
from penstock.jobmanager.change.decisions import Failure
from penstock.jobmanager.cluster.taskmanagers import TaskManagers
from penstock.jobmanager.config import DEFAULT_LIMITS, JobManagerLimits
from penstock.jobmanager.jobs import enumerators, job_views
from penstock.jobmanager.jobs.autoscaler import Autoscaler
from penstock.jobmanager.jobs.job_archive import archive_of, drop_archive, read_archives, save_archive
from penstock.jobmanager.jobs.job_driver import DriverHooks, DriverParts, JobDriver
from penstock.jobmanager.jobs.job_store import JobStore
from penstock.jobmanager.jobs.known_jobs import (
    KnownJob,
    Operations,
    RescaleRequests,
    find_job,
    job_of_token,
    jobs_named,
    refuse_running,
    suspended_job,
)
from penstock.jobmanager.jobs.recorded_jobs import (
    DEFAULT_OPTIONS,
    SubmitOptions,
    default_root,
    delete_oldest,
    recorded_jobs,
    start_options_of,
    stopped_record,
    submitted_record,
)
from penstock.jobmanager.jobs.savepoint_folders import savepoint_target
from penstock.jobmanager.jobs.upgrade_requests import UpgradeParts, UpgradeRequests
from penstock.jobmanager.messages.commands import OperationEnded
from penstock.jobmanager.messages.events import (
    CancelRequested,
    CheckpointRequested,
    SavepointRequested,
    StopRequested,
)
from penstock.jobmanager.messages.views import (
    CheckpointsView,
    ClusterView,
    EventLogEntry,
    ExceptionView,
    JobDetail,
    JobSummary,
    LastWorkerView,
    OperationStatus,
    TaskManagerView,
)
from penstock.jobmanager.observe.event_logs import EventLogs
from penstock.jobmanager.observe.spans import SpanSink

_LOGGER = logging.getLogger(__name__)
#: Number of jobs in the event log of a name.
_STORY_JOBS = 50
#: Number of failures under earlier leaders that are shown of a running job.
_EARLIER_FAILURES = 5


@dataclass(frozen=True, slots=True)
class DispatcherParts:
    """The parts that the dispatcher works with."""

    ha_store: ObjectStore
    holder: LeaseHolder
    generation: int
    taskmanagers: TaskManagers
    clock: Clock
    rand: Rand
    #: Called when a newer leader has taken over: this process must end.
    leadership_lost: Callable[[PenstockError], None]
    #: Shown in the cluster's view.
    rpc_address: Callable[[], str]
    jobmanager_id: str
    spans: SpanSink | None = None
    limits: JobManagerLimits = DEFAULT_LIMITS


class Dispatcher:
    """All jobs of this JobManager; `job` is an id or a name, an unknown one raises `NotFoundError`."""

    def __init__(self, parts: DispatcherParts) -> None:
        """Create an empty dispatcher; call `recover` before anything else."""
        self._parts = parts
        self._jobs: dict[str, KnownJob] = {}
        self._operations = Operations(self._jobs)
        self._event_logs = EventLogs(parts.ha_store)
        self.queries, self.release_taskmanager = parts.taskmanagers.queries, parts.taskmanagers.release
        self._submitting = asyncio.Lock()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.rescales = RescaleRequests(self._jobs, self._operations, parts.taskmanagers, parts.clock, parts.rand)
        #: Rescales jobs that have the autoscaler on.
        self.autoscaler = Autoscaler(self._jobs, self._operations, self.rescales.slots, self.rescales.begin)
        self.upgrades = UpgradeRequests(
            UpgradeParts(
                jobs=self._jobs,
                operations=self._operations,
                slots=self.rescales.slots,
                ha_store=parts.ha_store,
                clock=parts.clock,
                rand=parts.rand,
                spawn=self._spawn,
                verdict_ms=parts.limits.verdict_ms,
            )
        )
        self._hooks = DriverHooks(
            ended=self._on_ended,
            operation_ended=self._on_operation_ended,
            changed=self._on_changed,
            handled=lambda driver, master: self._event_logs.entries_added(driver.record.job_id, master),
            broken=lambda driver, error: self._spawn(self._replace(driver, error)),
        )

    async def recover(self) -> None:
        """Start every job of the HA store that has not ended; what is only shown of jobs is read afterwards.

        A job whose record, log or savepoint cannot be read is suspended; the others do not notice.
        """
        found: dict[tuple[str, str], KnownJob] = {}
        store, generation = self._parts.ha_store, self._parts.generation
        recorded, damaged = await asyncio.to_thread(recorded_jobs, store, generation)
        for unreadable in damaged:
            job = self._jobs[unreadable.job_id] = suspended_job(unreadable)
            self._suspend(job)
        for record, graph in recorded:
            job = KnownJob(record, graph)
            self._jobs[record.job_id] = job
            if not record.ended:
                if job.identity in found:
                    # It was suspended, or its submitter got an error: the record was written but the answer was lost.
                    self._supersede(found[job.identity], record.job_id)
                found[job.identity] = job
        self._parts.taskmanagers.recover(job.record.job_id for job in found.values())
        for job in found.values():
            self.upgrades.resume(job.record)
            reconcile_ms = self._parts.taskmanagers.settings.reconcile_timeout_ms
            self._spawn(self._recover_one(job, reconcile_ms=reconcile_ms))
        self._spawn(self._read_shown())

    async def submit(self, graph: bytes, options: SubmitOptions = DEFAULT_OPTIONS) -> str:
        """Persist and start a job (`graph.job_graph.encode_graph`); return its id (32 hex digits).

        Raises:
            UsageError: the graph or the options are wrong. JobIdentityError: another process runs the job.
            ConnectorError: a source's or sink's validation failed. NotFoundError: there is no such savepoint.
            StateMismatchError: state of the savepoint, or of the job's newest checkpoint, does not fit the graph.
        """
        decoded = read_submitted(graph)
        if options.allow_non_restored_state and not options.from_uri:
            raise UsageError("--allow-non-restored-state needs a savepoint to start from", hint="add --from URI")
        async with self._submitting:
            if known := job_of_token(self._jobs.values(), options.token, decoded.name):
                return known
            decoded = default_root(decoded, self._parts.ha_store.uri)
            refuse_running(self._jobs.values(), decoded)
            self._parts.taskmanagers.pool.require(decoded)
            await enumerators.validate(decoded)
            return await self._begin(decoded, options)

    def submitted(self, token: str) -> str:
        """Return the id of the job that was submitted with a token; empty if there is none."""
        return job_of_token(self._jobs.values(), token)

    def jobs(self) -> tuple[JobSummary, ...]:
        """Return all jobs, newest first."""
        found = [self._summary(job) for job in self._jobs.values()]
        return tuple(sorted(found, key=lambda job: job.start_ms, reverse=True))

    def resolve(self, job: str) -> str:
        """Return the id of a job given by id, unique id prefix or name (the newest of that name)."""
        return self._find(job).record.job_id

    def summary(self, job: str) -> JobSummary:
        """Return the summary of one job."""
        return self._summary(self._find(job))

    def detail(self, job: str) -> JobDetail:
        """Return one job with graph, subtasks and their newest metrics."""
        found = self._find(job)
        detail = job_views.detail_of(self._summary(found), found.graph, found.master, self._parts.clock.now_ms())
        if found.archive is None:
            return detail
        return msgspec.structs.replace(detail, vertices=found.archive.vertices, timestamps=found.archive.timestamps)

    def checkpoints(self, job: str) -> CheckpointsView:
        """Return the checkpoint history."""
        found = self._find(job)
        return found.archive.checkpoints if found.archive else job_views.checkpoints_of(found.record, found.master)

    def exceptions(self, job: str) -> tuple[ExceptionView, ...]:
        """Return the failures, newest first."""
        return _exceptions(self._find(job))

    def last_workers(self, job: str) -> tuple[LastWorkerView, ...]:
        """Return workers of the last deployment that has ended; if one of them failed, that one alone."""
        return _last_workers(self._find(job))

    async def story(self, job: str) -> tuple[EventLogEntry, ...]:
        """Return the event log of a job, oldest first: by name the newest 50 jobs of that name, by id that job."""
        jobs = jobs_named(self._jobs, job)
        masters = {found.record.job_id: found.master for found in jobs[-_STORY_JOBS:]}
        logs = [_of_earlier_jobs(found) for found in jobs] if job == jobs[0].record.name else []
        unrecorded = [entry for log in logs for entry in log if entry.job_id not in self._jobs]
        return await self._event_logs.of_jobs(masters, unrecorded)

    def metrics(self, job: str) -> dict[str, dict[str, float]]:
        """Return the newest metrics: `<vertex>/<subtask>` -> name -> value."""
        found = self._find(job)
        if found.archive is not None:
            return found.archive.metrics
        return {} if found.master is None else dict(found.master.metrics)

    async def cancel(self, job: str) -> None:
        """Cancel the job and keep its checkpoints. Returns at once; see `wait`."""
        self._find(job).post(CancelRequested())

    async def stop(self, job: str, *, drain: bool = False, uri: str = "", token: str = "", native: bool = False) -> str:
        """Stop with a savepoint under `uri` (default: `<checkpoint root>/<job>/savepoints`); return a request id.

        Raises:
            UsageError: `uri` is not writable, or the token belongs to another request.
        """
        found, request_id = self._find(job), token or self._parts.rand.token()
        if self._operations.is_repeated(found, request_id, "stop"):
            return request_id
        place = await savepoint_target(found, uri, request_id, probe=True)
        return self._operations.post(found, request_id, StopRequested(request_id, place, drain, native))

    async def savepoint(self, job: str, uri: str = "", *, token: str = "", native: bool = False) -> str:
        """Take a savepoint; return a request id (the token, if one is given). Requests with the same token are one.

        Raises:
            UsageError: `uri` is not writable, or the token belongs to another request.
        """
        found, request_id = self._find(job), token or self._parts.rand.token()
        probe = not self._operations.is_repeated(found, request_id, "savepoint")
        place = await savepoint_target(found, uri, request_id, probe=probe)
        return self._operations.post(found, request_id, SavepointRequested(request_id, place, native))

    async def trigger_checkpoint(self, job: str, *, unaligned: bool | None = None) -> str:
        """Take a checkpoint now, aligned or not (None: by the job's settings); return a request id.

        Raises:
            UsageError: no checkpoint of the job may be unaligned.
        """
        found, request_id = self._find(job), self._parts.rand.token()
        if unaligned and not found.graph.settings.unaligned_checkpoints:
            msg = f"checkpoints of job {found.graph.name} are aligned"
            raise UsageError(msg, hint="start it with unaligned_checkpoints=True")
        return self._operations.post(found, request_id, CheckpointRequested(request_id, unaligned))

    def scaling_log(self, job: str) -> dict[str, Any]:
        """Return the autoscaler's samples and decisions for a job; see `Autoscaler.document`."""
        return self.autoscaler.document(self._find(job))

    def operation(self, request_id: str) -> OperationStatus:
        """Return the status of a stop, savepoint, checkpoint or rescale request."""
        recorded_status = None if self._operations.known(request_id) else self._operations.recorded_status(request_id)
        return recorded_status or self._operations.status(request_id)

    async def wait_operation(self, request_id: str, timeout_ms: int) -> OperationStatus:
        """Wait until the request has ended or the timeout expires; return its status."""
        if not self._operations.known(request_id):
            return self.operation(request_id)
        return await self._operations.wait(request_id, timeout_ms)

    async def wait(self, job: str, timeout_ms: int) -> JobSummary:
        """Wait until the job is terminal or the timeout expires; return its summary (check `terminal`)."""
        found = self._find(job)
        if not found.record.ended or found.driver is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for((found.driver.ended if found.driver else self._closing).wait(), timeout_ms / 1e3)
        return self.summary(found.record.job_id)

    def cluster(self) -> ClusterView:
        """Return an overview of the cluster."""
        parts, pool = self._parts, self._parts.taskmanagers.pool
        return ClusterView(
            jobmanager_id=parts.jobmanager_id,
            pid=parts.holder.pid,
            generation=parts.generation,
            rpc_address=parts.rpc_address(),
            taskmanagers=len(parts.taskmanagers.views()),
            slots=pool.total,
            free_slots=pool.free,
            pending_slots=pool.pending,
            spans=parts.spans.counts if parts.spans is not None else (0, 0),
            settings=parts.taskmanagers.settings,
            jobs=self.jobs(),
        )

    def taskmanagers(self) -> tuple[TaskManagerView, ...]:
        """Return the registered TaskManagers."""
        return self._parts.taskmanagers.views()

    async def log_tail(self, taskmanager_id: str, worker_id: str = "") -> str:
        """Return the tail of a worker's log, or the TaskManager's own."""
        return await self._parts.taskmanagers.log_tail(taskmanager_id, worker_id)

    async def worker_log(self, worker_id: str) -> str:
        """Return the tail of the log of a worker that runs, has failed or was a job's last one.

        Raises:
            NotFoundError: there is no such worker, or its TaskManager is gone.
        """
        found = [t.taskmanager_id for t in self.taskmanagers() if any(w.worker_id == worker_id for w in t.workers)]
        failures = [failure for job in self._jobs.values() for failure in _exceptions(job)]
        found += [failure.taskmanager_id for failure in failures if failure.worker_id == worker_id]
        last = [worker for job in self._jobs.values() for worker in _last_workers(job)]
        found += [worker.taskmanager_id for worker in last if worker.worker_id == worker_id]
        if not found:
            raise NotFoundError(
                f"no worker {worker_id}", hint="its name is in `penstock show JOB` and `penstock story JOB`"
            )
        return await self.log_tail(found[0], worker_id)

    async def threads(self, taskmanager_id: str) -> tuple[tuple[str, str], ...]:
        """Return names and stacks of the threads in a TaskManager's process."""
        return await self._parts.taskmanagers.threads(taskmanager_id)

    async def close(self) -> None:
        """Stop driving all jobs: they stay recorded, and the next leader of this HA root recovers them."""
        self._closing.set()
        self._parts.taskmanagers.pool.close()
        for task in tuple(self._tasks):
            task.cancel()
        for job in self._jobs.values():
            if job.driver is not None:
                await job.driver.close(release=False)
        await self._event_logs.close()

    # --- inside ----------------------------------------------------------------------------------------------------

    async def _begin(self, graph: JobGraph, options: SubmitOptions) -> str:
        parts = self._parts
        ids = parts.rand.token(32), parts.rand.token(16)
        record = submitted_record(graph, options, ids, parts.clock.now_ms(), parts.generation)
        job = KnownJob(record, graph)
        driver = self._driver(job)
        try:
            generation = await driver.acquire()
            await asyncio.to_thread(write_record, parts.ha_store, record)
            await self._require_leading(record)
        except BaseException:
            await driver.close(release=True)
            raise
        job.driver = driver
        for other in [known for known in self._jobs.values() if known.suspended and known.identity == job.identity]:
            self._supersede(other, record.job_id)
        self._jobs[record.job_id] = job
        try:
            await driver.start(generation)
        except PenstockError as error:
            # The job was accepted and recorded: recover it as after a change of leader, or record its failure.
            await driver.close(release=False)
            if isinstance(error, LeadershipLostError) and await self._superseded(error):
                raise
            self._spawn(self._recover_one(job))
        return record.job_id

    async def _require_leading(self, record: JobRecord) -> None:
        """Refuse a job that was recorded when another JobManager led: its leader may have listed the jobs before.

        Raises:
            LeadershipLostError: another one leads; the record says so unless that one has taken the job over.
        """
        error = await self._end_of_lead()
        if error is None:
            return
        ended = msgspec.structs.replace(record, ended="FAILED", ended_ms=record.submitted_ms, error=str(error))
        with contextlib.suppress(LeadershipLostError):
            await asyncio.to_thread(write_record, self._parts.ha_store, ended)
        raise error

    async def _end_of_lead(self) -> LeadershipLostError | None:
        if self._closing.is_set():
            return LeadershipLostError("this JobManager is ending", hint="submit again with the same token")
        try:
            await asyncio.to_thread(check_leading, self._parts.ha_store, self._parts.generation)
        except LeadershipLostError as error:
            return error
        return None

    async def _read_shown(self) -> None:
        """Read archives, refused upgrades and failures that earlier leaders wrote; no start waits for them."""
        store, count = self._parts.ha_store, self._parts.limits.retained_ended_jobs
        ended = [job.record for job in self._jobs.values() if job.record.ended]
        for job_id, archive in (await asyncio.to_thread(read_archives, store, ended, count)).items():
            # Other jobs end meanwhile, and the oldest ones are forgotten then.
            if (job := self._jobs.get(job_id)) is not None:
                job.archive = job.archive or archive
        for job_id, refusal in (await asyncio.to_thread(read_refusals, store)).items():
            if (job := self._jobs.get(job_id)) is not None:
                job.refusal = job.refusal or refusal
        for job in [job for job in self._jobs.values() if not job.record.ended]:
            story = await self._event_logs.of(job.record.job_id, None)
            failures = [Failure(entry.at_ms, entry.text) for entry in story if entry.kind == "failure"]
            if job.driver is not None:
                present = {failure.at_ms for failure in job.driver.failures}
                earlier = [failure for failure in failures[-_EARLIER_FAILURES:] if failure.at_ms not in present]
                job.driver.earlier_failures(reversed(earlier))

    async def _recover_one(self, job: KnownJob, *, reconcile_ms: int = 0) -> None:
        """Take a job over from the previous leader, retrying until its lease is free or the tries are used up.

        With `reconcile_ms`, continue with its running workers if that is safe. A job with a file that cannot be decoded
        is suspended: no retry helps.
        """
        limits = self._parts.limits
        for attempt in range(limits.recover_tries):
            driver = job.driver = self._driver(job)
            try:
                await driver.start(await driver.acquire(held_before=True), reconcile_ms=reconcile_ms)
                return
            except PenstockError as error:
                await driver.close(release=False)
                # A retry would take the job from our successor, which holds leases under the same id.
                if isinstance(error, LeadershipLostError) and await self._superseded(error):
                    return
                job.record = msgspec.structs.replace(job.record, error=str(error))
                damaged = isinstance(error, MetadataDamagedError)
                if damaged or attempt == limits.recover_tries - 1:
                    self._parts.taskmanagers.give_up(job.record.job_id)
                    if damaged:
                        self._suspend(job)
                    else:
                        self._on_ended(driver, "FAILED", str(error))
                    return
            if await self._closes_before_retry():
                return

    async def _replace(self, driver: JobDriver, error: BaseException) -> None:
        """Recover a job whose driver has failed; no other job is touched."""
        job, limits = self._jobs[driver.record.job_id], self._parts.limits
        if isinstance(error, LeadershipLostError) and await self._superseded(error):
            return
        _LOGGER.error("job %s is recovered by a new driver", job.record.job_id, exc_info=error)
        self._parts.taskmanagers.kill_workers(job.record.job_id)
        await driver.close(release=False)
        await self._event_logs.save(job.record.job_id, driver.master)
        if job.record.ended:
            return
        self._operations.forget(job.record.job_id)
        self.upgrades.resume(job.record)
        job.driver = self._driver(job)  # requests wait for the recovery
        job.broken_drivers += 1
        if job.broken_drivers > limits.recover_tries:
            self._on_ended(job.driver, "FAILED", str(error))
        elif not await self._closes_before_retry():
            await self._recover_one(job)

    def _suspend(self, job: KnownJob) -> None:
        """Leave a job as it is recorded: the next leader, or a later submission of its name, takes it up."""
        job.suspended = True
        _LOGGER.error("job %s is suspended: %s", job.record.name, job.record.error)
        self._operations.end_all(job.record.job_id, f"the job is suspended: {job.record.error}")

    def _supersede(self, job: KnownJob, job_id: str) -> None:
        """End a job that does not run: a later one of its identity was accepted."""
        self._on_ended(self._driver(job), "FAILED", f"job {job_id} of the same name was accepted later")

    async def _superseded(self, error: LeadershipLostError) -> bool:
        """Return whether a newer leader caused the error; this process then ends.

        Otherwise the lease or log of that one job was taken by a process of another cluster.
        """
        while True:
            try:
                await asyncio.to_thread(check_leading, self._parts.ha_store, self._parts.generation)
            except LeadershipLostError:
                self._parts.leadership_lost(error)
                return True
            except PenstockError as unknown:
                _LOGGER.warning("cannot check the leadership: %s", unknown)
                if await self._closes_before_retry():
                    return True
            else:
                return False

    async def _closes_before_retry(self) -> bool:
        """Pause before a retry; return True at once if this process ends."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), self._parts.limits.recover_retry_ms / 1000)
        return self._closing.is_set()

    def _driver(self, job: KnownJob) -> JobDriver:
        parts = self._parts
        store = JobStore(job.graph, start_options_of(job.record), parts.holder, parts.clock, parts.rand)
        driver_parts = DriverParts(
            taskmanagers=parts.taskmanagers,
            store=store,
            ha_store=parts.ha_store,
            leader_generation=parts.generation,
            clock=parts.clock,
            rand=parts.rand,
            spans=parts.spans,
        )
        return JobDriver(job.record, job.graph, driver_parts, self._hooks, job.driver)

    def _on_changed(self, driver: JobDriver) -> None:
        job = self._jobs[driver.record.job_id]
        job.record, job.graph = driver.record, driver.graph

    def _on_operation_ended(self, driver: JobDriver, ended: OperationEnded) -> None:
        self._operations.end(ended, driver.record.job_id)
        self.upgrades.ended(driver.record.job_id, ended)

    def _on_ended(self, driver: JobDriver, state: str, error: str) -> None:
        job = self._jobs[driver.record.job_id]
        job.suspended = False
        job.record = msgspec.structs.replace(
            stopped_record(job.record, driver.stop),
            ended=state,
            ended_ms=self._parts.clock.now_ms(),
            error=error if state == "FAILED" else "",
            generation=self._parts.generation,
        )
        self._operations.end_all(job.record.job_id, f"the job is {state}")
        self._spawn(self._record_end(job, driver))

    async def _record_end(self, job: KnownJob, driver: JobDriver) -> None:
        try:
            await asyncio.gather(self._write_end(job, driver), self._archive(job, driver))
        finally:
            driver.ended.set()
        await self._event_logs.save(job.record.job_id, driver.master)
        ended = [j for j in self._jobs.values() if j.record.ended]
        for old in sorted(ended, key=lambda j: j.record.ended_ms)[: -self._parts.limits.retained_ended_jobs]:
            archived, old.driver, old.archive = old.archive is not None, None, None
            self._event_logs.forget(old.record.job_id)
            if archived:
                await drop_archive(self._parts.ha_store, old.record.job_id)
        for job_id in await asyncio.to_thread(delete_oldest, self._parts.ha_store, [j.record for j in ended]):
            self._jobs.pop(job_id, None)

    async def _write_end(self, job: KnownJob, driver: JobDriver) -> None:
        """Write the record, by which no later leader runs the job, and release the job's lease.

        The record is written as soon as the HA store takes it; a lease that cannot be released expires.
        """
        while True:
            try:
                await asyncio.to_thread(write_record, self._parts.ha_store, job.record)
                break
            except LeadershipLostError as error:
                self._parts.leadership_lost(error)
                return
            except PenstockError:
                _LOGGER.exception("the end of job %s is not recorded yet: this is tried again", job.record.job_id)
                if await self._closes_before_retry():
                    return
        self._parts.taskmanagers.forget(job.record.job_id)
        try:
            await driver.close(release=True)
        except PenstockError:
            _LOGGER.exception("the lease of the ended job %s was not released: it expires", job.record.job_id)

    async def _archive(self, job: KnownJob, driver: JobDriver) -> None:
        """Archive the job; an error is logged, and nothing but the archive is missing."""
        if driver.master is None:
            return
        try:
            archive = archive_of(job.record, job.graph, driver.master, self._parts.clock.now_ms())
            job.archive = await asyncio.to_thread(save_archive, self._parts.ha_store, archive)
        except Exception:
            _LOGGER.exception("job %s was not archived", job.record.job_id)

    def _summary(self, job: KnownJob) -> JobSummary:
        if job.archive is not None:
            return job.archive.summary
        waits_for = self._parts.taskmanagers.pool.waiting(job.record.job_id)
        summary = job_views.summary_of(job.record, job.graph, job.master, self._parts.clock.now_ms(), waits_for)
        return msgspec.structs.replace(summary, state="SUSPENDED") if job.suspended else summary

    def _find(self, name: str) -> KnownJob:
        return find_job(self._jobs, name)

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _LOGGER.error("an internal error; jobs continue", exc_info=error)


def _of_earlier_jobs(job: KnownJob) -> tuple[Entry, ...]:
    if job.archive is not None:
        return job.archive.earlier_runs
    return () if job.master is None else job.master.event_log.earlier


def _exceptions(job: KnownJob) -> tuple[ExceptionView, ...]:
    if job.archive is not None:
        return job.archive.exceptions
    return job_views.exceptions_of(job.record, job.master, () if job.driver is None else job.driver.failures)


def _last_workers(job: KnownJob) -> tuple[LastWorkerView, ...]:
    if job.archive is not None:
        return job.archive.workers
    return () if job.master is None else job_views.last_workers_of(job.master)
