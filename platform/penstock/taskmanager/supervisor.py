"""The TaskManager's supervisor: heartbeats, slots, workers, relays, leases; it never runs user code.

An asyncio process that imports nothing of the data path (no Arrow, no Polars). It relays messages without decoding
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.config.security import UNPROTECTED, Security
from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.core.logs import LogFormat, log_line
from penstock.metrics.process import thread_dump
from penstock.rpc.authentication import workers_key
from penstock.rpc.messages import (
    FetchLog,
    FetchThreads,
    ForgetJob,
    FromWorker,
    Heartbeat,
    HeartbeatAck,
    LeaseRenewed,
    LogText,
    MemoryParts,
    NetworkShare,
    Registered,
    RegisterTaskManager,
    Shutdown,
    SlotStatus,
    StartWorker,
    StopWorker,
    TaskManagerCommand,
    TaskManagerReport,
    ThreadsText,
    ToWorker,
    WorkerExited,
    WorkerStartFailed,
    WorkerStopped,
    decode_network_need,
    encode,
)
from penstock.taskmanager.copy_folders import CopyFolders
from penstock.taskmanager.environments import Environments
from penstock.taskmanager.memory_division import MemoryDivision
from penstock.taskmanager.metrics import ProcessMetrics, RunningWorker
from penstock.taskmanager.network_pool import NetworkPool
from penstock.taskmanager.process_control import unreclaimable_bytes
from penstock.taskmanager.slots import SlotError, SlotState, SlotTable
from penstock.taskmanager.template_messages import WorkerSpec
from penstock.taskmanager.worker_control import NETWORK_NEED, WorkerProcess
from penstock.taskmanager.worker_logs import WorkerLogs, crash_place, tail_of

_PREFIX = "ps-"
_MAX_BASE_BYTES = 60


def make_socket_dir(most_base_bytes: int = _MAX_BASE_BYTES) -> Path:
    """Make a private folder in XDG_RUNTIME_DIR or /tmp; delete those left by killed TaskManagers.

    XDG_RUNTIME_DIR is ignored if its path is longer than `most_base_bytes`.
    """
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")  # noqa: S108 - mkdtemp makes it private
    if not base.is_dir() or not os.access(base, os.W_OK) or len(os.fsencode(base)) > most_base_bytes:
        base = Path("/tmp")  # noqa: S108
    _sweep(base)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))


def _sweep(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*-*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and _is_ours(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:  # another starting TaskManager has deleted it
        return False


#: Old logs are pruned after this many worker exits, because the whole folder is read.
_PRUNE_EVERY = 20
#: Limit of remembered heartbeats that are not acknowledged.
_MAX_OPEN_HEARTBEATS = 100
#: Minimum silence before a stream is closed, even for a short worker lease.
_LEAST_SILENCE_MS = 2_000
#: The longest time between two checks of a worker's memory.
_MOST_CHECK_MS = 500.0


class Link(Protocol):
    """The connection to the JobManager (`rpc.stream.TaskManagerLink`)."""

    def send(self, report: TaskManagerReport) -> bool:
        """Queue a report; return False if not connected."""

    def expect(self, silence_ms: float) -> None:
        """Reconnect if the JobManager is silent for this long."""

    def close(self) -> None:
        """Close the connection permanently."""


@dataclass(frozen=True, kw_only=True)
class SupervisorConfig:
    """The configuration of one TaskManager."""

    taskmanager_id: str
    work_dir: Path
    #: Its slots, and their memory; None: set before the registration.
    memory: MemoryDivision | None
    #: The cluster's security; workers get keys derived from its secret, and its certificate.
    security: Security = UNPROTECTED
    #: `tcp:<address>:0=<host>`: where its workers listen for other hosts; empty: they do not.
    data_address: str = ""
    log_format: LogFormat = "text"
    #: CPU cores of this TaskManager's part of the host; 0: unknown.
    cpu_cores: float = 0.0
    #: How long a requested worker waits for the end of a killed one in its slot.
    released_within_ms: int = 10_000


class Supervisor:
    """Supervises workers: `handle` takes the JobManager's commands, `run` sends heartbeats until `close`."""

    def __init__(self, config: SupervisorConfig, clock: Clock, log: Callable[[str], None]) -> None:
        """Prepare the supervisor; `prepare` starts the template."""
        self._config = config
        self._clock = clock
        self._log = log
        self._logs = WorkerLogs(config.work_dir / "logs")
        self._memory: MemoryDivision | None = None
        self._slots, self._network = SlotTable(0), NetworkPool(0, 0)
        if config.memory is not None:
            self.set_memory(config.memory)
        self._workers: dict[str, WorkerProcess] = {}
        #: Requested workers by slot, whose killed predecessor still holds it, and until when they wait.
        self._waiting: dict[int, tuple[StartWorker, float]] = {}
        self._copies = CopyFolders(config.work_dir / "copies", clock)
        self._environments = Environments(config.work_dir, clock, self._worker_exited)
        self._socket_dir = make_socket_dir()
        self._process_metrics = ProcessMetrics(config.taskmanager_id, socket.gethostname(), clock)
        #: host:port of this process's `/metrics`, sent with the registration; empty: none.
        self.metrics_address = ""
        self._link: Link | None = None
        self._registered: Registered | None = None
        self._sequence = 0
        self._ended = 0
        self._sent_at: dict[int, float] = {}
        self._heard_ms = clock.monotonic_ms()
        self._beat_soon = asyncio.Event()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Warm the base template, so that the first worker starts as fast as later ones."""
        await self._environments.warm()

    def set_memory(self, memory: MemoryDivision) -> None:
        """Set the slots and their memory; only before the registration."""
        self._memory = memory
        self._slots = SlotTable(memory.slots)
        self._network = NetworkPool(memory.network_bytes, memory.slots)

    def connect(self, link: Link) -> None:
        """Use this link from now on."""
        self._link = link

    def registration(self) -> RegisterTaskManager:
        """Return the first message of a new stream, which offers the slots with the workers still running."""
        self._sent_at = {0: self._clock.monotonic_ms()}
        self._registered = None
        return RegisterTaskManager(
            taskmanager_id=self._config.taskmanager_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=self._slots.count,
            offered=tuple(status for status in self._slot_report() if status.state != SlotState.RELEASING),
            metrics_address=self.metrics_address,
            cpu_cores=self._config.cpu_cores,
            memory=self._parts(),
        )

    def handle(self, command: TaskManagerCommand) -> None:
        """Handle a command of the JobManager; never blocks."""
        match command:
            case Registered():
                self._on_registered(command)
            case HeartbeatAck():
                self._on_heartbeat_ack(command)
            case StartWorker():
                self._on_start_worker(command)
            case StopWorker():
                self._on_stop_worker(command.worker_id)
            case ForgetJob():
                self._copies.job_ended(command.job_id, self._running_jobs)
            case ToWorker():
                for worker_id in command.worker_ids:
                    if (worker := self._workers.get(worker_id)) is not None:
                        worker.send(command.command)
            case FetchLog():
                text = self._log_text(command)
                self._send(LogText(request_id=command.request_id, text=text))
            case FetchThreads():
                self._send(ThreadsText(request_id=command.request_id, threads=thread_dump()))
            case Shutdown():
                self._closing.set()

    def stop(self) -> None:
        """Let `run` return (for signal handlers)."""
        self._closing.set()

    async def run(self) -> None:
        """Send heartbeats and check the workers' memory until the shutdown."""
        await asyncio.gather(self._send_heartbeats(), self._check_workers())

    async def _send_heartbeats(self) -> None:
        while not self._closing.is_set():
            await self._pause(self._registered.heartbeat_interval_ms if self._registered is not None else 100)
            if self._registered is not None:
                self._refuse_late()
                self._send_heartbeat()
                self._copies.expire(self._running_jobs)

    async def _check_workers(self) -> None:
        """Check each worker's memory, the sooner again the closer one is to its limit."""
        while not self._closing.is_set():
            pauses_ms = [_MOST_CHECK_MS]
            if (memory := self._memory) is not None:
                pauses_ms.append(memory.check_after_ms(0))  # of a worker that starts meanwhile
                running = [worker for worker in self._workers.values() if worker.pid and not worker.stopping]
                pauses_ms += [self._check_memory(worker, memory) for worker in running]
            await self._pause(min(pauses_ms))

    def _check_memory(self, worker: WorkerProcess, memory: MemoryDivision) -> float:
        """Kill a worker above its limit; return after how many ms to look at it again."""
        worker.held_bytes = unreclaimable_bytes(worker.pid)
        if why := memory.excess(worker.held_bytes):
            worker.kill(why)
            return _MOST_CHECK_MS
        return memory.check_after_ms(worker.held_bytes)

    async def _pause(self, most_ms: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), most_ms / 1000)

    async def close(self) -> None:
        """End all workers and templates and delete their files."""
        self._closing.set()
        workers = list(self._workers.values())
        for worker in workers:
            worker.kill()
        self._environments.close()
        for worker in workers:
            await worker.ended()
        if self._link is not None:
            self._link.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in workers:
            shutil.rmtree(worker.spec.state_dir, ignore_errors=True)
        self._copies.close()
        shutil.rmtree(self._socket_dir, ignore_errors=True)

    def metrics_text(self) -> str:
        """Return the body of `/metrics`."""
        workers = {
            worker.worker_id: RunningWorker(worker.pid, worker.spec.job_id, worker.spec.slot)
            for worker in self._workers.values()
            if worker.pid
        }
        return self._process_metrics.text((self._slots.count, len(self._slots.free_slots)), workers)

    @property
    def worker_pids(self) -> dict[str, int]:
        """Process ids of the workers by worker id."""
        return {worker_id: worker.pid for worker_id, worker in self._workers.items()}

    @property
    def template_pids(self) -> tuple[int, ...]:
        """Process ids of the templates."""
        return self._environments.template_pids

    @property
    def _running_jobs(self) -> set[str]:
        return {worker.spec.job_id for worker in self._workers.values()}

    def _on_registered(self, registered: Registered) -> None:
        self._registered = registered
        self._heard_ms = self._sent_at.pop(0, self._clock.monotonic_ms())
        self._log(f"registered at JobManager {registered.jobmanager_id}, generation {registered.generation}")
        self._waiting.clear()
        if self._link is not None:  # by then the workers' leases have expired
            self._link.expect(max(registered.worker_lease_ms, _LEAST_SILENCE_MS))
        for worker_id in set(self._workers) - set(registered.keep_workers):
            self._on_stop_worker(worker_id)
        self._renew(0)

    def _on_heartbeat_ack(self, ack: HeartbeatAck) -> None:
        sent = self._sent_at.get(ack.sequence)
        if sent is None:
            return
        self._sent_at = {sequence: at for sequence, at in self._sent_at.items() if sequence > ack.sequence}
        self._heard_ms = max(self._heard_ms, sent)
        self._renew(ack.sequence)

    def _renew(self, sequence: int) -> None:
        data = encode(LeaseRenewed(sequence=sequence, expires_monotonic_ms=self._lease_end()))
        for worker in self._workers.values():
            worker.send(data)

    def _lease_end(self) -> float:
        """Return when leases granted now end: counted from the sending of the last acknowledged heartbeat."""
        return self._heard_ms + (self._registered.worker_lease_ms if self._registered is not None else 0)

    def _send_heartbeat(self) -> None:
        memory = {
            worker_id: unreclaimable_bytes(worker.pid) for worker_id, worker in self._workers.items() if worker.pid
        }
        self._sequence += 1
        self._sent_at[self._sequence] = self._clock.monotonic_ms()
        while len(self._sent_at) > _MAX_OPEN_HEARTBEATS:
            self._sent_at.pop(min(self._sent_at))
        heartbeat = Heartbeat(
            taskmanager_id=self._config.taskmanager_id,
            sequence=self._sequence,
            slot_report=self._slot_report(),
            worker_memory=memory,
            network_lent_bytes=self._network.lent_bytes,
            process=self._process_metrics.own(),
        )
        self._send(heartbeat)

    def _on_start_worker(self, command: StartWorker) -> None:
        if command.worker_id in self._workers:
            return
        if self._registered is None or self._memory is None:
            return  # a command of a closed stream
        if self._slots.is_releasing(command.slot) and command.slot not in self._waiting:
            self._waiting[command.slot] = command, self._clock.monotonic_ms() + self._config.released_within_ms
            return
        refusal = self._memory.refusal(command.managed_memory_bytes)
        if not refusal and command.beside:
            refusal = self._memory.refusal_beside(self._held_memory(self._memory), command.managed_memory_bytes)
        if refusal:
            self._start_failed(command.worker_id, f"UsageError: {refusal}")
            return
        try:
            self._slots.allocate(command.slot, command.worker_id, command.job_id, beside=command.beside)
        except SlotError as error:
            # beside its predecessor it is refused alone: the slot is the job's
            self._start_failed(command.worker_id, str(error), slot_refused=not command.beside)
            return
        state_dir = self._config.work_dir / "state" / command.worker_id
        tls = self._config.security.cluster
        spec = WorkerSpec(
            worker_id=command.worker_id,
            job_id=command.job_id,
            taskmanager_id=self._config.taskmanager_id,
            slot=command.slot,
            managed_memory_bytes=self._memory.granted(command.managed_memory_bytes),
            network_memory_bytes=self._network.guaranteed_bytes,
            memory_limit_bytes=self._memory.limit_bytes,
            lease_ms=self._registered.worker_lease_ms,
            log_path=str(self._logs.path_of(command.worker_id)),
            listen=",".join(filter(None, (self._config.data_address, f"unix:{self._socket_dir}"))),
            state_dir=str(state_dir),
            copies_dir=str(self._copies.folder_of(command.job_id)),
            key=workers_key(self._config.security.secret, command.job_id),
            certificates=() if tls is None else (str(tls.certificate), str(tls.key), str(tls.ca)),
            log_format=self._config.log_format,
            job_name=command.job_name,
            beside=command.beside,
        )
        worker = WorkerProcess(spec, self._relay, self._worker_ended, self._worker_stopped, self._worker_killed)
        self._workers[command.worker_id] = worker
        task = asyncio.get_running_loop().create_task(self._start(worker, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _held_memory(self, memory: MemoryDivision) -> int:
        """Return the bytes that the workers hold or have been granted, with the grants of one for each free slot."""
        granted = [memory.granted(None)] * len(self._slots.free_slots)
        held = 0
        for worker in self._workers.values():
            granted.append(worker.spec.managed_memory_bytes)
            shown = worker.held_bytes if worker.stopping or not worker.pid else unreclaimable_bytes(worker.pid)
            held += max(0, shown - memory.needed(granted[-1]))
        return held + sum(map(memory.needed, granted))

    def _slot_report(self) -> tuple[SlotStatus, ...]:
        return tuple(
            SlotStatus(slot=holder.slot, state=holder.state.value, worker_id=holder.worker_id, job_id=holder.job_id)
            for holder in self._slots.held
        )

    async def _start(self, worker: WorkerProcess, command: StartWorker) -> None:
        try:
            path = await self._environments.import_path(command)
            if worker.stopping:
                self._worker_ended(worker, -9)
                return
            worker.spec = msgspec.structs.replace(worker.spec, import_path=path)
            with worker.open_control() as theirs:
                pid = await self._environments.start(command, worker.spec, theirs)
            self._slots.to(worker.worker_id, SlotState.ACTIVE)
            worker.started(pid)
            self._log(f"worker {worker.worker_id} of job {command.job_id} runs as process {pid}")
        except (PenstockError, OSError) as error:
            worker.exited(1)
            self._forget(worker)
            # the JobManager reads the class to tell lasting causes from others
            self._start_failed(command.worker_id, f"{type(error).__name__}: {error}")

    def _start_failed(self, worker_id: str, error: str, *, slot_refused: bool = False) -> None:
        self._log(f"worker {worker_id} could not be started: {error}")
        own = self._config.taskmanager_id
        failed = WorkerStartFailed(taskmanager_id=own, worker_id=worker_id, error=error, slot_refused=slot_refused)
        self._send(failed)

    def _refuse_late(self) -> None:
        """Refuse slots whose killed worker does not end: the kernel may hold it in a call for ever."""
        now = self._clock.monotonic_ms()
        for slot, (command, until_ms) in list(self._waiting.items()):
            if now >= until_ms:
                del self._waiting[slot]
                killed = ", ".join(holder.worker_id for holder in self._slots.of_slot(slot))
                error = f"slot {slot} is still held by worker {killed}, which was killed"
                self._start_failed(command.worker_id, error, slot_refused=not command.beside)

    def _on_stop_worker(self, worker_id: str) -> None:
        worker = self._workers.get(worker_id)
        if worker is not None:
            worker.kill()
        for slot, (command, _until_ms) in list(self._waiting.items()):
            if command.worker_id == worker_id:
                del self._waiting[slot]
                self._start_failed(worker_id, "it was stopped before its slot was free")

    def _relay(self, worker: WorkerProcess, report: bytes) -> None:
        if report.startswith(NETWORK_NEED):
            need = decode_network_need(report[len(NETWORK_NEED) :])
            self._send_shares(self._network.needs(worker.worker_id, need))
            return
        self._send(FromWorker(taskmanager_id=self._config.taskmanager_id, worker_id=worker.worker_id, report=report))

    def _send_shares(self, shares: list[tuple[str, NetworkShare]]) -> None:
        for worker_id, share in shares:
            self._workers[worker_id].send(encode(share))

    def _worker_exited(self, worker_id: str, returncode: int) -> None:
        worker = self._workers.get(worker_id)
        if worker is not None:
            worker.exited(returncode)

    def _worker_killed(self, worker: WorkerProcess) -> None:
        self._slots.to(worker.worker_id, SlotState.RELEASING)

    def _worker_stopped(self, worker: WorkerProcess) -> None:
        """Leave its copies to a successor that runs already, then report that it executes nothing any more."""
        if self._workers.get(worker.worker_id) is not worker:
            return
        spec = worker.spec
        self._copies.worker_ended(spec.job_id, spec.worker_id, spec.slot)
        self._send(WorkerStopped(taskmanager_id=self._config.taskmanager_id, worker_id=spec.worker_id))

    def _worker_ended(self, worker: WorkerProcess, returncode: int) -> None:
        if self._workers.get(worker.worker_id) is not worker:
            return  # its failed start was already reported
        self._forget(worker)
        why = f": {worker.kill_reason}" if worker.kill_reason else ""
        self._log(f"worker {worker.worker_id} ended with {returncode}{why}")
        log_tail = self._logs.tail(worker.worker_id)
        exited = WorkerExited(
            taskmanager_id=self._config.taskmanager_id,
            worker_id=worker.worker_id,
            returncode=returncode,
            log_tail=log_tail,
            crashed_at=crash_place(log_tail),
            reason=worker.kill_reason,
        )
        self._send(exited)

    def _forget(self, worker: WorkerProcess) -> None:
        self._workers.pop(worker.worker_id, None)
        self._slots.to(worker.worker_id, SlotState.FREE)
        self._send_shares(self._network.ended(worker.worker_id))
        shutil.rmtree(worker.spec.state_dir, ignore_errors=True)
        self._copies.worker_ended(worker.spec.job_id, worker.worker_id, worker.spec.slot)
        self._ended += 1
        if self._ended % _PRUNE_EVERY == 0:
            self._logs.prune(set(self._workers))
        waiting = self._waiting.pop(worker.spec.slot, None)
        if waiting is not None and not self._closing.is_set():
            self._on_start_worker(waiting[0])

    def _log_text(self, command: FetchLog) -> str:
        if command.worker_id:
            return self._logs.tail(command.worker_id, command.max_bytes)
        return tail_of(self._config.work_dir / "taskmanager.log", command.max_bytes)

    def _parts(self) -> MemoryParts:
        memory = self._memory
        if memory is None:
            return MemoryParts()
        return MemoryParts(
            total_bytes=memory.total_bytes,
            framework_bytes=memory.framework_bytes,
            task_bytes=memory.task_bytes,
            network_bytes=memory.network_bytes,
            network_shared_bytes=self._network.shared_bytes,
            managed_bytes=memory.managed_bytes,
        )

    def _send(self, report: TaskManagerReport) -> None:
        if self._link is not None:
            self._link.send(report)


def log_to_stderr(text: str) -> None:
    """Write a line to the TaskManager's log."""
    log_line("penstock.taskmanager", text)
