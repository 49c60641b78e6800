"""The registered TaskManagers, their workers, the message relay and the queries to workers; a driver.

Implements `rpc.stream.SessionHandler`; everything runs on the event loop. Drivers request slots of its `pool`.
`WorkerQueries` is used by `observe.live_state` and `observe.profiling`; a query does not involve the job master.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.checkpoint.stores import client_modules
from penstock.config.settings import ClusterSettings, ResourceProfile
from penstock.config.slot_resources import wanted_of
from penstock.core.clock import Clock
from penstock.core.errors import NotFoundError, PenstockError, UsageError
from penstock.graph.job_graph import JobGraph
from penstock.jobmanager.cluster.kept_workers import KeptWorkers
from penstock.jobmanager.cluster.slots import SlotPool
from penstock.jobmanager.messages.commands import LaunchWorker
from penstock.jobmanager.messages.events import (
    Event,
    TaskManagerLost,
    WorkerLost,
    WorkerReported,
    WorkersKept,
    WorkerStopped,
)
from penstock.jobmanager.messages.placement import Slot
from penstock.jobmanager.messages.views import TaskManagerView, WorkerView
from penstock.rpc import messages as msg
from penstock.rpc.messages import AskSubtask, DumpThreads, SampleStacks, SubtaskAnswer, WorkerCommand
from penstock.rpc.stream import Session

#: Limit of open queries; further ones are refused.
_MAX_OPEN = 4096
#: Time limit of an answer: a subtask answers between two batches.
_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """The worker process that runs a subtask."""

    taskmanager_id: str
    worker_id: str


class WorkerQueries:
    """All open queries."""

    def __init__(
        self,
        send: Callable[[str, tuple[str, ...], WorkerCommand], None],
        *,
        deadline_s: float = _DEADLINE_S,
        max_open: int = _MAX_OPEN,
    ) -> None:
        """Start without queries; `send(taskmanager, workers, command)` relays, or drops what it cannot deliver."""
        self._send = send
        self._deadline_s, self._max_open = deadline_s, max_open
        self._number = 0
        self._open: dict[str, tuple[str, asyncio.Future[SubtaskAnswer]]] = {}

    async def ask(self, worker: WorkerAddress, query: AskSubtask | SampleStacks | DumpThreads) -> dict[str, Any]:
        """Return the answer of the subtask that `query` names, or of the worker as a whole, as JSON values.

        Raises:
            NotFoundError, UsageError: the subtask rejected the query.
            PenstockError: it is not running, did not answer in time, or too many queries are open.
        """
        if len(self._open) >= self._max_open:
            msg = f"{self._max_open} queries to running jobs are already open"
            raise PenstockError(msg, hint="try again later")
        self._number += 1
        request_id = str(self._number)
        future: asyncio.Future[SubtaskAnswer] = asyncio.get_running_loop().create_future()
        self._open[request_id] = worker.worker_id, future
        try:
            asked = msgspec.structs.replace(query, request_id=request_id)
            if isinstance(asked, AskSubtask):
                asked = msgspec.structs.replace(asked, wait_ms=self._deadline_s * 1000)
            self._send(worker.taskmanager_id, (worker.worker_id,), asked)
            found = await asyncio.wait_for(future, self._deadline_s)
        except TimeoutError as error:
            whom = f"subtask {query.subtask}" if isinstance(query, AskSubtask) else f"worker {worker.worker_id}"
            msg = f"{whom} did not answer within {self._deadline_s:g} s"
            way = "subtasks answer between batches: a user function may be slow, or the job is restarting"
            raise PenstockError(msg, hint=way) from error
        finally:
            del self._open[request_id]
        if found.error:
            kinds: dict[str, type[PenstockError]] = {"not-found": NotFoundError, "usage": UsageError}
            raise kinds.get(found.kind, PenstockError)(found.error)
        return found.answer

    def answered(self, answer: SubtaskAnswer) -> None:
        """Deliver an answer; drop it if no caller waits for it any longer."""
        _, future = self._open.get(answer.request_id, ("", None))
        if future is not None and not future.done():
            future.set_result(answer)

    def lost(self, worker_id: str) -> None:
        """Fail the queries to a worker that was lost."""
        for request_id, (asked, future) in self._open.items():
            if asked == worker_id and not future.done():
                error = f"worker {worker_id} was lost during the query; try again when the job is running"
                future.set_result(SubtaskAnswer(job_id="", request_id=request_id, error=error))


_ANSWER_TIMEOUT_S = 10.0
#: A starting JobManager waits for known TaskManagers within the slot request's own timeout.
_CHECK_EVERY = 4


@dataclass(slots=True)
class _Worker:
    job_id: str
    slot: Slot
    pid: int = 0
    memory_bytes: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Manager:
    session: Session
    registered_ms: int
    heard_ms: float
    heartbeat_ms: int
    workers: dict[str, _Worker] = field(default_factory=dict)
    process: dict[str, float] = field(default_factory=dict)
    network_lent_bytes: int = 0
    #: Its taken slots by worker, as it has last reported them; workers that were requested since are missing.
    reported: dict[str, msg.SlotStatus] = field(default_factory=dict)

    @property
    def taken_slots(self) -> tuple[msg.SlotStatus, ...]:
        """Its taken slots, by number; those of workers that it has not reported are granted."""
        requested = {
            name: msg.SlotStatus(slot=worker.slot.index, worker_id=name, job_id=worker.job_id, state="ALLOCATED")
            for name, worker in self.workers.items()
            if name not in self.reported
        }
        return tuple(sorted((self.reported | requested).values(), key=lambda taken: taken.slot))


class TaskManagers:
    """All TaskManagers of this cluster."""

    def __init__(self, jobmanager_id: str, generation: int, settings: ClusterSettings, clock: Clock) -> None:
        """Start without TaskManagers."""
        self._jobmanager_id = jobmanager_id
        self._generation = generation
        self.settings = settings
        self._clock = clock
        self._managers: dict[str, _Manager] = {}
        self._jobs: dict[str, Callable[[Event], None]] = {}
        #: Requests to TaskManagers themselves, for logs and threads.
        self._open_requests: dict[str, asyncio.Future[msg.LogText | msg.ThreadsText]] = {}
        self._requests = 0
        self._kept = KeptWorkers()
        self.pool = SlotPool(settings.slot_request_timeout_ms, settings.most_slots)
        #: Open queries to running subtasks.
        self.queries = WorkerQueries(self.send)

    # --- jobs ------------------------------------------------------------------------------------------------------

    def attach(self, job_id: str, post: Callable[[Event], None], name: str) -> None:
        """Deliver the events of this job's workers and slots to `post`; `name` is for messages about its slots."""
        self._jobs[job_id] = post
        self.pool.attach(job_id, post, name)

    def recover(self, job_ids: Iterable[str]) -> None:
        """Keep the workers of earlier leaders for these jobs, until each is `decided`; kill all others."""
        self._kept.recover(job_ids)
        running = {worker.job_id for manager in self._managers.values() for worker in manager.workers.values()}
        for job_id in [job_id for job_id in running if not self._kept.is_kept(job_id)]:
            self.give_up(job_id)

    def give_up(self, job_id: str) -> None:
        """Kill all workers of a job that has no driver, and release its slots."""
        self.kill_workers(job_id)
        self.detach(job_id)

    def kept_workers(self, job_id: str) -> tuple[WorkersKept, ...]:
        """Return the job's workers that earlier leaders have left, by TaskManager; later ones are posted.

        Called before the job starts: afterwards its own workers are among them.
        """
        return tuple(kept for name in self._managers if (kept := self._kept_of(job_id, name)) is not None)

    def decided(self, job_id: str) -> None:
        """Keep no further workers of a job."""
        self._kept.decided(job_id)

    def forget(self, job_id: str) -> None:
        """Let all TaskManagers remove what they keep of an ended job."""
        for manager in self._managers.values():
            manager.session.send(msg.ForgetJob(job_id=job_id))

    def detach(self, job_id: str) -> None:
        """Release the slots of an ended job and stop delivering its events."""
        self._kept.decided(job_id)
        self._jobs.pop(job_id, None)
        self.pool.detach(job_id)

    def start_worker(self, job_id: str, launch: LaunchWorker, graph: JobGraph) -> None:
        """Start a worker; it is reported lost at once if its TaskManager is gone."""
        worker_id, slot = launch.worker_id, launch.slot
        settings = graph.settings
        manager = self._managers.get(slot.taskmanager_id)
        if manager is None:
            self._post(job_id, WorkerLost(worker_id, f"TaskManager {slot.taskmanager_id} is not connected"))
            return
        manager.workers[worker_id] = _Worker(job_id, slot)
        manager.session.send(
            msg.StartWorker(
                worker_id=worker_id,
                job_id=job_id,
                slot=slot.index,
                requirements=settings.requirements,
                python_path=settings.python_path,
                managed_memory_bytes=wanted_of(settings).managed_memory_bytes or settings.managed_memory_bytes,
                preload=_preload_of(graph),
                job_name=graph.name,
                beside=launch.beside,
            )
        )

    def kill_worker(self, job_id: str, worker_id: str, slot: Slot) -> None:
        """Kill a worker; its TaskManager reports the end, unless the worker has already ended."""
        manager = self._managers.get(slot.taskmanager_id)
        if manager is None or worker_id not in manager.workers:
            self._post(job_id, WorkerLost(worker_id, "it had already ended"))
            return
        manager.session.send(msg.StopWorker(worker_id=worker_id))

    def kill_workers(self, job_id: str) -> None:
        """Kill all workers of a job."""
        for manager in self._managers.values():
            for worker_id in [name for name, worker in manager.workers.items() if worker.job_id == job_id]:
                manager.session.send(msg.StopWorker(worker_id=worker_id))

    def send(self, taskmanager_id: str, worker_ids: tuple[str, ...], command: msg.WorkerCommand) -> None:
        """Relay a command; drop it if the TaskManager is gone, which the job learns separately."""
        manager = self._managers.get(taskmanager_id)
        if manager is not None:
            manager.session.send(msg.ToWorker(worker_ids=worker_ids, command=msg.encode(command)))

    # --- sessions --------------------------------------------------------------------------------------------------

    def connected(self, session: Session) -> None:
        """Handle a TaskManager's registration."""
        name = session.taskmanager_id
        if name in self._managers:
            old = self._managers[name].session
            self._lost(name, "it registered again")
            old.close()
        now_ms, registration = self._clock.now_ms(), session.registration
        manager = self._managers[name] = _Manager(session, now_ms, self._clock.monotonic_ms(), now_ms)
        for worker in self._kept.registered(name, registration.offered):
            manager.workers[worker.worker_id] = _Worker(worker.job_id, Slot(name, worker.slot, registration.host))
        manager.reported = {taken.worker_id: taken for taken in registration.offered}
        session.send(
            msg.Registered(
                jobmanager_id=self._jobmanager_id,
                generation=self._generation,
                heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
                worker_lease_ms=self.settings.worker_lease_ms,
                keep_workers=tuple(manager.workers),
            )
        )
        held = {worker.slot.index: worker.job_id for worker in manager.workers.values()}
        # before a grant starts other workers of these jobs
        found = [(job_id, self._kept_of(job_id, name)) for job_id in dict.fromkeys(held.values())]
        # before a job that keeps none of them releases their slots
        self.pool.add(name, registration.host, registration.slots, held, _slot_resources(registration))
        for job_id, kept in found:
            if kept is not None:
                self._post(job_id, kept)

    def received(self, session: Session, report: msg.TaskManagerReport) -> None:
        """Handle a message from a TaskManager."""
        manager = self._managers.get(session.taskmanager_id)
        if manager is None or manager.session is not session:
            return
        manager.heard_ms, manager.heartbeat_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        match report:
            case msg.Heartbeat():
                session.send(msg.HeartbeatAck(sequence=report.sequence))
                manager.process, manager.network_lent_bytes = report.process, report.network_lent_bytes
                manager.reported = {taken.worker_id: taken for taken in report.slot_report}
                self.pool.reported(session.taskmanager_id, {taken.slot for taken in report.slot_report})
                for worker_id, held in report.worker_memory.items():
                    if worker_id in manager.workers:
                        manager.workers[worker_id].memory_bytes = held
            case msg.FromWorker():
                self._from_worker(manager, report)
            case msg.WorkerStopped(worker_id=worker_id):
                if (worker := manager.workers.get(worker_id)) is not None:
                    self._post(worker.job_id, WorkerStopped(worker_id))
            case msg.WorkerExited():
                why = report.reason or _exit_text(report.returncode, report.crashed_at)
                by_user_code = not report.reason and _by_user_code(report.returncode, report.crashed_at)
                lost = WorkerLost(report.worker_id, why, report.log_tail, by_user_code=by_user_code)
                self._worker_lost(manager, lost)
            case msg.WorkerStartFailed():
                worker = manager.workers.get(report.worker_id)
                refused = None
                if worker is not None and report.slot_refused:  # before the job requests another one
                    refused = worker.slot
                    self.pool.refused(worker.job_id, refused)
                self._worker_lost(manager, WorkerLost(report.worker_id, report.error, started=False, refused=refused))
            case msg.LogText() | msg.ThreadsText():
                waiting = self._open_requests.pop(report.request_id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(report)
            case msg.RegisterTaskManager():
                session.close()

    def disconnected(self, session: Session, reason: str) -> None:
        """Handle the end of a TaskManager's stream."""
        manager = self._managers.get(session.taskmanager_id)
        if manager is not None and manager.session is session:
            self._lost(session.taskmanager_id, f"{reason}{_place(session)}")

    def release(self, taskmanager_id: str) -> None:
        """Shut down an unused TaskManager; its slots are not offered any longer.

        Raises:
            NotFoundError: no such TaskManager. UsageError: a job holds one of its slots, or a worker is running.
        """
        manager = self._manager(taskmanager_id)
        held = self.pool.held_of(taskmanager_id)
        if held or manager.workers:
            msg_text = f"{taskmanager_id} is in use: jobs hold {held} slots, {len(manager.workers)} workers are running"
            raise UsageError(msg_text, hint="wait until the jobs end, or rescale them")
        manager.session.send(msg.Shutdown())
        manager.session.close()
        self._lost(taskmanager_id, "it was released")

    def drain(self, taskmanager_id: str) -> frozenset[str]:
        """Give no further slots of a TaskManager to jobs, and release it if it is unused; idempotent.

        Returns the ids of the jobs that still hold slots of it.

        Raises:
            NotFoundError: no such TaskManager.
        """
        manager = self._manager(taskmanager_id)
        holders = self.pool.drain(taskmanager_id)
        if not holders and not manager.workers:
            self.release(taskmanager_id)
        return holders

    def check(self) -> None:
        """Declare silent TaskManagers lost and refuse expired slot requests; called a few times a second."""
        now = self._clock.monotonic_ms()
        for name, manager in list(self._managers.items()):
            silent_ms = now - manager.heard_ms
            if silent_ms > self.settings.heartbeat_timeout_ms:
                manager.session.close()
                why = "its process is suspended or overloaded, or the network fails"
                self._lost(name, f"silent for {silent_ms / 1000:.1f} s: {why}{_place(manager.session)}")
        self.pool.tick(self._clock.now_ms())

    @property
    def check_interval_ms(self) -> int:
        """The interval at which `check` should be called."""
        return max(10, min(self.settings.heartbeat_interval_ms, self.settings.heartbeat_timeout_ms // _CHECK_EVERY))

    # --- views -----------------------------------------------------------------------------------------------------

    def views(self) -> tuple[TaskManagerView, ...]:
        """Return the views of all TaskManagers."""
        drained = self.pool.drained
        return tuple(
            TaskManagerView(
                taskmanager_id=name,
                host=manager.session.registration.host,
                pid=manager.session.registration.pid,
                slots=manager.session.registration.slots,
                free_slots=0 if name in drained else self.pool.free_of(name),
                drained=name in drained,
                registered_ms=manager.registered_ms,
                last_heartbeat_ms=manager.heartbeat_ms,
                workers=tuple(
                    WorkerView(
                        worker_id=worker_id,
                        job_id=worker.job_id,
                        slot=worker.slot.index,
                        pid=worker.pid,
                        memory_bytes=worker.memory_bytes,
                        metrics=worker.metrics,
                    )
                    for worker_id, worker in manager.workers.items()
                ),
                taken_slots=manager.taken_slots,
                metrics_address=manager.session.registration.metrics_address,
                memory=manager.session.registration.memory,
                cpu_cores=manager.session.registration.cpu_cores,
                network_lent_bytes=manager.network_lent_bytes,
                process=manager.process,
            )
            for name, manager in sorted(self._managers.items())
        )

    async def log_tail(self, taskmanager_id: str, worker_id: str) -> str:
        """Return the tail of the log of a worker or of the TaskManager.

        Raises:
            NotFoundError: no such TaskManager, or it did not answer.
        """
        found = await self._ask(taskmanager_id, lambda number: msg.FetchLog(request_id=number, worker_id=worker_id))
        return found.text if isinstance(found, msg.LogText) else ""

    async def threads(self, taskmanager_id: str) -> tuple[tuple[str, str], ...]:
        """Return names and stacks of a TaskManager's own threads.

        Raises:
            NotFoundError: no such TaskManager, or it did not answer.
        """
        found = await self._ask(taskmanager_id, lambda number: msg.FetchThreads(request_id=number))
        return found.threads if isinstance(found, msg.ThreadsText) else ()

    async def _ask(
        self, taskmanager_id: str, query: Callable[[str], msg.FetchLog | msg.FetchThreads]
    ) -> msg.LogText | msg.ThreadsText:
        manager = self._manager(taskmanager_id)
        self._requests += 1
        request_id = str(self._requests)
        future: asyncio.Future[msg.LogText | msg.ThreadsText] = asyncio.get_running_loop().create_future()
        self._open_requests[request_id] = future
        manager.session.send(query(request_id))
        try:
            return await asyncio.wait_for(future, _ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            text = f"TaskManager {taskmanager_id!r} did not answer in time"
            raise NotFoundError(text, hint="try again") from error
        finally:
            self._open_requests.pop(request_id, None)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _manager(self, taskmanager_id: str) -> _Manager:
        manager = self._managers.get(taskmanager_id)
        if manager is None:
            msg_text = f"no TaskManager {taskmanager_id!r}"
            raise NotFoundError(msg_text, hint=f"registered: {', '.join(sorted(self._managers)) or 'none'}")
        return manager

    def _from_worker(self, manager: _Manager, report: msg.FromWorker) -> None:
        worker = manager.workers.get(report.worker_id)
        if worker is None:
            return
        try:
            message = msg.decode_worker_report(report.report)
        except msgspec.MsgspecError as error:
            manager.session.send(msg.StopWorker(worker_id=report.worker_id))
            self._worker_lost(manager, WorkerLost(report.worker_id, f"it sent an invalid report: {error}"))
            return
        if isinstance(message, msg.SubtaskAnswer):
            self.queries.answered(message)
            return
        if isinstance(message, msg.WorkerReady | msg.TasksReported):
            worker.pid = message.pid
        elif isinstance(message, msg.WorkerMetrics):
            worker.metrics = message.worker
        self._post(worker.job_id, WorkerReported(report.worker_id, message))

    def _worker_lost(self, manager: _Manager, lost: WorkerLost) -> None:
        worker = manager.workers.pop(lost.worker_id, None)
        manager.reported.pop(lost.worker_id, None)
        self.queries.lost(lost.worker_id)
        if worker is None:
            return
        if worker.job_id in self._jobs:
            self._post(worker.job_id, lost)
        else:  # its job, which is not recovered yet, will not know of the slot
            self.pool.release(worker.job_id, (worker.slot,))

    def _lost(self, name: str, reason: str) -> None:
        for worker_id in self._managers.pop(name).workers:
            self.queries.lost(worker_id)
        self.pool.remove(name)  # tells jobs of the free slots before they decide how to continue
        for post in list(self._jobs.values()):
            post(TaskManagerLost(name, reason))

    def _kept_of(self, job_id: str, name: str) -> WorkersKept | None:
        workers = self._managers[name].workers.items()
        kept = tuple((worker_id, worker.slot) for worker_id, worker in workers if worker.job_id == job_id)
        return WorkersKept(kept) if kept else None

    def _post(self, job_id: str, event: Event) -> None:
        post = self._jobs.get(job_id)
        if post is not None:
            post(event)


def _place(session: Session) -> str:
    return f" (pid {session.registration.pid} on {session.registration.host})"


def _preload_of(graph: JobGraph) -> tuple[str, ...]:
    """Return the modules that the job's connectors and checkpoint store import before its workers are forked."""
    configs = [operator.config for vertex in graph.vertices for operator in vertex.operators]
    specs = [config[part] for config in configs for part in ("source", "sink") if part in config]
    wanted = [module for spec in specs for module in spec.get("preload", ())]
    return tuple(dict.fromkeys([*wanted, *client_modules(graph.settings.checkpoint_root)]))


#: Exit codes of workers themselves: the supervisor has gone, an error in the control loop or in a thread.
_OWN_CODES = (0, 1, 70)
#: Signals of crashes, whose trace workers write to their log.
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


def _by_user_code(returncode: int, crashed_at: str) -> bool:
    """Return whether the job's code has ended a worker, which writes the line of an `os._exit` to its log."""
    return returncode >= 0 and (bool(crashed_at) or returncode not in _OWN_CODES)


def _slot_resources(registration: msg.RegisterTaskManager) -> ResourceProfile | None:
    """Return the resources of each slot; None: the TaskManager names none."""
    memory, slots = registration.memory, max(1, registration.slots)
    if not memory.total_bytes:
        return None
    return ResourceProfile(
        group="",
        cpu_cores=registration.cpu_cores / slots,
        task_memory_bytes=memory.task_bytes // slots,
        network_memory_bytes=(memory.network_bytes - memory.network_shared_bytes) // slots,
        managed_memory_bytes=memory.managed_bytes // slots,
    )


def _exit_text(returncode: int, crashed_at: str) -> str:
    """Return why a worker ended: its exit code, or the signal (negative) and the line at which native code crashed."""
    if returncode == -signal.SIGALRM:
        return "it had no contact to its TaskManager until its lease expired"
    if returncode >= 0 and crashed_at:
        call = f"it exited with status {returncode} while a function was in a call, at {crashed_at}"
        return f"{call}: os._exit ends the worker; raise an exception instead"
    if returncode in _OWN_CODES:
        return f"it exited with status {returncode}"
    if returncode > 0:
        return f"it exited with status {returncode}: the job's code or a library has ended the process (os._exit)"
    try:
        killed = f"it was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"it was killed by signal {-returncode}"
    if -returncode == signal.SIGKILL:
        return f"{killed}: by a user, or by the kernel when memory ran out (see dmesg)"
    if -returncode not in _CRASHES:
        return killed
    place = f" at {crashed_at}, in native code that this line calls" if crashed_at else " in native code"
    return f"{killed}{place}: update that library, or replace it"
