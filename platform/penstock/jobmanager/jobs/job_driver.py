"""Runs one job on the event loop: executes the commands of its `JobMaster` and posts results as events.

Made by `jobmanager.dispatcher`. Events are handled one at a time in the order of arrival. Store calls run in order in a
separate thread of the job, so that a log read sees all earlier appends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from penstock.checkpoint.ha_records import JobRecord, check_leading, write_record
from penstock.checkpoint.manifest_log import LogEntry, Manifest, ManifestLog, seal_entry
from penstock.checkpoint.recovery import Trial, with_trial
from penstock.checkpoint.store import ObjectStore
from penstock.config.slot_resources import wanted_of
from penstock.core import failpoints
from penstock.core.clock import Clock
from penstock.core.errors import LeadershipLostError, MetadataDamagedError, PenstockError, SnapshotDamagedError
from penstock.core.failpoints import FailpointError
from penstock.core.rand import Rand
from penstock.graph.job_graph import JobGraph, encode_graph
from penstock.graph.task_deployment import Attempts
from penstock.jobmanager.change.decisions import Failure
from penstock.jobmanager.cluster.taskmanagers import TaskManagers
from penstock.jobmanager.deploy.job_log import JobIdentity
from penstock.jobmanager.jobs.enumerators import Enumerators
from penstock.jobmanager.jobs.job_store import JobStore
from penstock.jobmanager.jobs.recorded_jobs import start_options_of
from penstock.jobmanager.master.job_master import JobMaster
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.observe.spans import SpanBuilder, SpanSink, parse_traceparent

_MIN_WAIT_MS = 5
#: Errors after which the driver can do nothing more with the job's lease and log.
_BREAKING = (LeadershipLostError, MetadataDamagedError)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DriverHooks:
    """Callbacks from the driver to its owner."""

    ended: Callable[[JobDriver, str, str], None]
    operation_ended: Callable[[JobDriver, cmd.OperationEnded], None]
    #: Called when a rescale or upgrade is recorded: the driver has another record, and perhaps another graph.
    changed: Callable[[JobDriver], None]
    #: Called after events were handled: the event log may have grown.
    handled: Callable[[JobDriver, JobMaster], None]
    #: Called when the driver can do nothing more: it has lost the job's lease or log, cannot read them, or met an
    #: internal error.
    broken: Callable[[JobDriver, BaseException], None]


@dataclass(frozen=True, slots=True)
class DriverParts:
    """The parts that the driver works with."""

    taskmanagers: TaskManagers
    store: JobStore
    #: The store of the job records, and the generation of the leader that may write them.
    ha_store: ObjectStore
    leader_generation: int
    clock: Clock
    rand: Rand
    spans: SpanSink | None = None


class JobDriver:
    """The driver of one job under one leader."""

    def __init__(
        self,
        record: JobRecord,
        graph: JobGraph,
        parts: DriverParts,
        hooks: DriverHooks,
        before: JobDriver | None = None,
    ) -> None:
        """Create an idle driver; it takes over the failures of `before`, and the requests that it has not begun."""
        self.record = record
        self.graph = graph
        #: Set once the end of the job is recorded; one for all drivers of the job.
        self.ended: asyncio.Event = asyncio.Event() if before is None else before.ended
        self.master: JobMaster | None = None
        #: Sealed by `start`.
        self._log: ManifestLog | None = None
        self._parts = parts
        self._hooks = hooks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"store-{record.job_id[:8]}")
        self._enumerators = Enumerators(graph, self.post)
        self._events: deque[ev.Event] = deque(before.unhandled if before is not None else ())
        self._earlier_failures = before.failures if before is not None else ()
        self._handling = False
        #: Stopped handling events; all parts are closed.
        self._closed = self._shut = False
        self._closing = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._where: dict[str, str] = {}
        parent = parse_traceparent(str(record.options.get("traceparent", "")))
        self._spans = SpanBuilder((record.job_id, record.name), record.submitted_ms, parent)
        self._loop = asyncio.get_running_loop()

    async def acquire(self, *, held_before: bool = False) -> int:
        """Take the lease; return the job's generation. See `JobStore.acquire` for what it raises."""
        record, store = self.record, self._parts.store
        return await self._in_thread(lambda: store.acquire(record.job_id, record.run_id, held_before=held_before))

    async def start(self, generation: int, *, reconcile_ms: int = 0) -> None:
        """Seal the log and start the job; wait for workers that an earlier leader may have left."""
        record = self.record
        self._log = await self._in_thread(self._parts.store.seal, record.job_id, record.run_id, generation)
        start = start_options_of(record)
        identity = JobIdentity(
            job_id=record.job_id,
            run_id=record.run_id,
            generation=generation,
            claim=start.claim,
            accept_duplicates=start.accept_duplicates,
            allow_non_restored_state=start.allow_non_restored_state,
        )
        now_ms = self._parts.clock.now_ms()
        self.master = JobMaster(self.graph, identity, self._parts.rand, now_ms, record.upgrade)
        self.master.failures.extend(self._earlier_failures)
        self._parts.taskmanagers.attach(record.job_id, self.post, record.name)
        self._spawn(self._renew_lease())
        kept = self._parts.taskmanagers.kept_workers(record.job_id) if reconcile_ms else ()
        begin = ev.Start(self._parts.store.attempts if reconcile_ms else Attempts(), reconcile_ms)
        self._events.extendleft(reversed((begin, *kept)))  # requests that arrived before the start follow it
        self._handle()

    def post(self, event: ev.Event) -> None:
        """Handle an event after those that arrived before it. Event loop only."""
        self._events.append(event)
        self._handle()

    def _handle(self) -> None:
        if self._handling or self.master is None:
            return
        self._handling = True
        try:
            while self._events and not self._closed:
                event, now_ms = self._events.popleft(), self._parts.clock.now_ms()
                commands = self.master.handle(event, now_ms)
                for command in commands:
                    self._execute(command)
                self._observe(event, commands, now_ms)
            self._hooks.handled(self, self.master)
        except Exception as error:  # noqa: BLE001 - an internal error: another driver recovers the job
            self._break(error)
        finally:
            self._handling = False

    @property
    def unhandled(self) -> tuple[ev.Event, ...]:
        """Requests that arrived before the start."""
        return tuple(self._events) if self.master is None else ()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures of the job, newest first, also those under earlier drivers."""
        return self._earlier_failures if self.master is None else tuple(self.master.failures)

    def earlier_failures(self, failures: Iterable[Failure]) -> None:
        """Add failures under an earlier leader, newest first."""
        if self.master is None:
            self._earlier_failures = (*self._earlier_failures, *failures)
        else:
            self.master.failures.extend(failures)

    @property
    def stop(self) -> cmd.OperationEnded | None:
        """The reply to the stop that ended the job."""
        return None if self.master is None else self.master.checkpointing.stopped

    async def close(self, *, release: bool) -> None:
        """Stop driving the job; unless it has ended, another driver recovers it. Idempotent.

        Raises:
            StorageError: the lease could not be released; it expires.
        """
        if self._shut:
            return
        self._closed = self._shut = True
        self._closing.set()
        if self._timer is not None:
            self._timer.cancel()
        self._enumerators.close()
        if self.master is not None:  # before, the workers of an earlier leader wait for the next driver
            self._parts.taskmanagers.detach(self.record.job_id)
        for task in tuple(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        try:
            if release:
                await self._in_thread(self._parts.store.release)
        finally:
            self._thread.shutdown(wait=False)

    def _observe(self, event: ev.Event, commands: list[cmd.Command], now_ms: int) -> None:
        """Record spans of the event; an error here does not fail the job."""
        if self._parts.spans is None or self.master is None:
            return
        try:
            self._parts.spans.put(self._spans.observe(event, commands, self.master, now_ms))
        except Exception:
            logging.getLogger(__name__).exception("span recording failed and stops for job %s", self.record.job_id)
            self._parts = replace(self._parts, spans=None)

    # --- commands --------------------------------------------------------------------------------------------------

    def _execute(self, command: cmd.Command) -> None:
        managers, job_id = self._parts.taskmanagers, self.record.job_id
        match command:
            case cmd.SendToWorker(worker_id, message):
                managers.send(self._where.get(worker_id, ""), (worker_id,), message)
            case cmd.SendToWorkers(taskmanager_id, worker_ids, message):
                managers.send(taskmanager_id, worker_ids, message)
            case cmd.ReadLog(list_files):
                self._spawn(self._read_log(list_files=list_files))
            case cmd.RecordAttempt(attempts):
                self._spawn(self._record_attempt(attempts))
            case cmd.AppendManifest():
                self._thread.submit(self._append, command)
            case cmd.DeleteEntries():
                self._thread.submit(self._delete, command)
            case cmd.RequestSlots(count, wait):
                wanted, priority = wanted_of(self.graph.settings), self.graph.settings.slot_priority
                now_ms = self._parts.clock.now_ms()
                managers.pool.request(job_id, count, now_ms, wait=wait, wanted=wanted, priority=priority)
            case cmd.DeclareSlots(count):
                managers.pool.declare(job_id, count)
            case cmd.ReleaseSlots(slots):
                managers.pool.release(job_id, slots)
            case cmd.LaunchWorker(worker_id, slot):
                self._where[worker_id] = slot.taskmanager_id
                managers.start_worker(job_id, command, command.version or self.graph)
            case cmd.KeepWorker(worker_id, slot):
                self._where[worker_id] = slot.taskmanager_id
            case cmd.WorkersDecided():
                managers.decided(job_id)
            case cmd.KillWorker(worker_id, slot):
                self._where.pop(worker_id, None)
                managers.kill_worker(job_id, worker_id, slot)
            case cmd.RecordChange():
                self._spawn(self._record_change(command))
            case cmd.DiscoverSplits():
                self._enumerators.discover(command)
            case cmd.CloseEnumerators():
                self._enumerators.close()
            case cmd.WakeAt(at_ms):
                self._wake_at(at_ms)
            case cmd.OperationEnded():
                self._hooks.operation_ended(self, command)
            case cmd.JobTerminal(state, error):
                self._hooks.ended(self, state, error)

    def _wake_at(self, at_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = max(_MIN_WAIT_MS, at_ms - self._parts.clock.now_ms())
        self._timer = self._loop.call_later(wait_ms / 1000, self.post, ev.Tick())

    async def _read_log(self, *, list_files: bool) -> None:
        try:
            entries, files, source = await self._in_thread(lambda: self._read(list_files=list_files))
        except _BREAKING as error:
            self._break(error)
        except PenstockError as error:
            self.post(_log_failed(error))
        else:
            self.post(ev.LogRead(entries, files, source))

    def _read(self, *, list_files: bool) -> tuple[tuple[LogEntry, ...], tuple[str, ...], Manifest | None]:
        """Read the log in the store thread, passing the failpoint of a changed parallelism."""
        assert self.master is not None  # noqa: S101 - it made the command
        entries, files, source = self._parts.store.read(self.master.identity.run_id, list_files=list_files)
        newest = next((e.manifest for e in reversed(entries) if e.manifest.kind == "checkpoint"), source)
        now = {o.uid: v.parallelism for v in self.graph.vertices for o in v.operators}
        if newest is not None and any(now.get(uid, old) != old for uid, (old, _vertex) in newest.operators.items()):
            failpoints.hit("jobmanager.during_rescale", checkpoint=newest.checkpoint_id)
        return entries, files, source

    async def _record_attempt(self, attempts: Attempts) -> None:
        try:
            await self._in_thread(self._parts.store.record_attempt, attempts)
        except _BREAKING as error:
            self._break(error)
        except PenstockError as error:
            self.post(_log_failed(error))
        else:
            self.post(ev.AttemptRecorded(attempts.newest))

    def _append(self, command: cmd.AppendManifest) -> None:
        """Append in the store thread; the event loop is woken once, to handle the answer."""
        if self._closed:
            return
        try:
            entry = self._append_entry(command.tag, command.manifest)
        except LeadershipLostError as error:
            self._loop.call_soon_threadsafe(self._break, error)
        except (PenstockError, FailpointError) as error:
            self._loop.call_soon_threadsafe(self.post, ev.ManifestFailed(command.tag, str(error)))
        except BaseException as error:  # noqa: BLE001 - an internal error
            self._loop.call_soon_threadsafe(self._break, error)
        else:
            self._loop.call_soon_threadsafe(self.post, ev.ManifestAppended(command.tag, entry))

    def _append_entry(self, tag: str, manifest: Manifest) -> LogEntry:
        """Append an entry in the store thread, passing the failpoints."""
        assert self._log is not None  # noqa: S101 - the master was made after the seal
        where: dict[str, Any] = {"tag": tag, "checkpoint": manifest.checkpoint_id}
        if manifest.kind != "end":
            failpoints.hit("jobmanager.before_manifest", **where)
        if manifest.barrier in ("stop", "drain"):
            failpoints.hit("jobmanager.before_stop", **where)
        entry = self._log.append(manifest)
        failpoints.hit("jobmanager.after_end" if manifest.kind == "end" else "jobmanager.after_manifest", **where)
        if manifest.barrier in ("stop", "drain"):
            failpoints.hit("jobmanager.during_stop", **where)
        return entry

    def _delete(self, command: cmd.DeleteEntries) -> None:
        """Delete in the store thread; the event loop is woken only for an error."""
        try:
            self._parts.store.delete(command.sequences, command.files, command.emptied)
        except PenstockError as error:
            self._loop.call_soon_threadsafe(self._note, "retention", f"not everything was deleted: {error}")
        except BaseException as error:  # noqa: BLE001 - an internal error
            self._loop.call_soon_threadsafe(self._break, error)

    def _note(self, kind: str, text: str) -> None:
        if self.master is not None:
            self.master.event_log.add(self._parts.clock.now_ms(), kind, text)

    async def _record_change(self, command: cmd.RecordChange) -> None:
        """Seal a new run in the log first, so that later leaders fence it; then write the record, which decides."""
        graph, run_id, upgrade = command.graph, command.run_id, command.upgrade
        kind, about = ("rescale", {"run": run_id}) if upgrade is None else ("upgrade", {"phase": upgrade.phase})
        try:
            if graph is not None and run_id:
                await self._in_thread(self._seal_run, graph, run_id, command.trial)
            record = _changed_record(self.record, command, self._parts.leader_generation)
            failpoints.hit(f"jobmanager.before_{kind}_record", **about)
            await asyncio.to_thread(self._write_record, record)
            failpoints.hit(f"jobmanager.after_{kind}_record", **about)
        except LeadershipLostError as error:
            self._break(error)
        except (PenstockError, FailpointError) as error:
            self.post(ev.ChangeNotRecorded(str(error)))
        else:
            self.record = record
            if graph is not None:
                self._enumerators.close()
                self.graph, self._enumerators = graph, Enumerators(graph, self.post)
            self._hooks.changed(self)
            self.post(ev.ChangeRecorded())

    def _seal_run(self, graph: JobGraph, run_id: str, trial: Trial | None) -> None:
        """Append the seal of a run that continues this one under the same leader, optionally on trial."""
        assert self._log is not None  # noqa: S101 - the master was made after the seal
        assert self.master is not None  # noqa: S101 - it made the command
        now_ms, generation = self._parts.clock.now_ms(), self.master.identity.generation
        seal = seal_entry(graph, self.record.job_id, run_id, generation, now_ms)
        self._log.append(seal if trial is None else with_trial(seal, trial))

    def _write_record(self, record: JobRecord) -> None:
        """Write the job record; refuse if a newer leader exists, even if it has not taken over this job yet."""
        check_leading(self._parts.ha_store, self._parts.leader_generation)
        write_record(self._parts.ha_store, record)

    async def _renew_lease(self) -> None:
        """Renew the lease outside the store thread, which may be busy with a slow append."""
        while not self._closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._parts.store.lease_ttl_ms / 3000)
                return
            try:
                await asyncio.to_thread(self._parts.store.renew)
            except _BREAKING as error:
                self._break(error)
                return
            except SnapshotDamagedError as error:
                self.post(_log_failed(error))
            except PenstockError as error:
                self._note("lease", f"not renewed: {error}")

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """Stop handling events; the owner closes this driver."""
        if self._closed:
            return
        self._closed = True
        if self.master is not None:
            now_ms = self._parts.clock.now_ms()
            text = f"{type(error).__name__}: {error}"
            detail = "".join(traceback.format_exception(error))
            self.master.failures.appendleft(Failure(now_ms, text, detail, run_id=self.record.run_id))
            self.master.event_log.add(now_ms, "failure", text)
        self._hooks.broken(self, error)

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await self._loop.run_in_executor(self._thread, call, *arguments)


def _log_failed(error: PenstockError) -> ev.LogFailed:
    return ev.LogFailed(f"{type(error).__name__}: {error}", final=isinstance(error, SnapshotDamagedError))


def _changed_record(record: JobRecord, command: cmd.RecordChange, generation: int) -> JobRecord:
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
