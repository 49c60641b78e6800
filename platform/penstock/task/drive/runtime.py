"""The worker's side of a job: handles `WorkerCommand`s by making, driving and ending subtasks; drops outdated commands.

`handle` is called by one control thread and never blocks: operators are opened in the subtasks' threads, recovery and
savepoints run as `blocking` background work. Used by `taskmanager.worker` and by the simulator.
"""

from __future__ import annotations

import itertools
import logging
import operator
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from penstock.checkpoint.local_copies import CopyPlace, LocalCopies, StateFiles
from penstock.checkpoint.manifest_log import Manifest, decode_manifest, encode_manifest
from penstock.checkpoint.stores import join_uri, local_folder, place_of, read_file
from penstock.connector.sink import SinkSpec
from penstock.core.elements import BarrierKind
from penstock.core.snapshot import FileRef
from penstock.graph.task_deployment import TaskDeployment, decode_deployment, decode_peers, with_channels
from penstock.rpc.messages import (
    AlignWatermarks,
    AskSubtask,
    AskTasks,
    AssignSplits,
    CancelTasks,
    CheckpointAborted,
    CheckpointAck,
    CheckpointAcks,
    CheckpointCompleted,
    DeployPeers,
    DeployTasks,
    FinishTasks,
    LeaseRenewed,
    LetBarriersOvertake,
    NetworkShare,
    PauseCompaction,
    PendingResolved,
    PrepareTasks,
    ResolvePending,
    RunningTask,
    SavepointPart,
    SavepointWritten,
    SealSavepoint,
    TasksPrepared,
    TasksReported,
    TriggerCheckpoint,
    WorkerCommand,
    WorkerMessage,
    WorkerMetrics,
    WorkerReport,
    WriteSavepoint,
)
from penstock.task.chain.environment import JobServices, TaskReports
from penstock.task.chain.failure import describe
from penstock.task.chain.uploader import Uploader
from penstock.task.checkpoint.prepared_state import PreparedState, PreparedStates
from penstock.task.checkpoint.restore import keeps_keyed_state, restored_files
from penstock.task.checkpoint.savepoint_copy import seal_savepoint, write_part
from penstock.task.checkpoint.sink_recovery import resolve_pending
from penstock.task.drive.network_shares import NetworkShares
from penstock.task.drive.state_queries import NOT_RUNNING, OpenQueries
from penstock.task.drive.subtask import Subtask

if TYPE_CHECKING:
    from penstock.checkpoint.store import ObjectStore
    from penstock.operators.operator import SourceOperator
    from penstock.task.chain.environment import TaskEnvironment

T = TypeVar("T")


class SubtaskLoop(Protocol):
    """A place in a thread (or in the simulator's schedule) for one subtask."""

    def wake(self) -> None:
        """Let the subtask step soon; callable from any thread, and before `run`."""

    def run(self, subtask: Subtask) -> None:
        """Step the subtask until it is DONE."""


class TaskDriver(Protocol):
    """Assigns subtasks to loops."""

    def loop(self, deployment: TaskDeployment) -> SubtaskLoop:
        """Return a loop; subtasks with Python functions share one thread, each other one has a separate thread."""


class JobReports:
    """The reports of a job's subtasks in this worker, in order; the acks of a checkpoint go in one message.

    An ack waits for those of the other subtasks: the checkpoint is not complete before them. Any other report sends
    it, and so does `flush`. Used by all threads.
    """

    def __init__(self, job_id: str, report: Callable[[WorkerMessage], None]) -> None:
        """Start without acks."""
        self._job_id = job_id
        self._report = report
        self._lock = threading.Lock()
        self._held: list[CheckpointAck] = []
        #: The newest checkpoint that was triggered here, and its acks that are missing.
        self._checkpoint_id = self._missing = 0

    def expect(self, checkpoint_id: int, acks: int) -> None:
        """Let acks of a checkpoint wait until there are so many."""
        with self._lock:
            self._checkpoint_id, self._missing = checkpoint_id, acks

    def send(self, report: WorkerReport | CheckpointAck) -> None:
        """Send a report, or take an ack."""
        with self._lock:  # also while it is sent: no later report of a subtask overtakes its ack
            if not isinstance(report, CheckpointAck):
                self._checkpoint_id = 0  # a subtask that has ended sends no ack
                self._flush()
                self._report(report)
                return
            self._held.append(report)
            newest = report.checkpoint_id == self._checkpoint_id
            self._missing -= newest
            if not newest or self._missing <= 0:
                self._flush()

    def flush(self) -> None:
        """Send the acks that wait."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        acks, self._held = tuple(self._held), []
        if acks:
            self._report(CheckpointAcks(job_id=self._job_id, acks=acks))


@dataclass(slots=True)
class _Job:
    """The subtasks and services of one job in this worker."""

    generation: int
    queries: OpenQueries
    run_id: str = ""
    attempt: int = 0
    subtasks: list[Subtask] = field(default_factory=list)
    released: bool = False
    #: A barrier that ends the job was triggered.
    stopping: bool = False
    #: The largest id of a checkpoint that was triggered here.
    newest_checkpoint: int = 0
    #: Splits assigned to each source subtask, also those that it has not taken yet.
    splits: dict[str, set[str]] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return all(subtask.has_ended for subtask in self.subtasks)


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of one job in this worker."""

    store: ObjectStore
    uploader: Uploader
    copies: LocalCopies


class TaskRuntime:
    """All subtasks of one worker."""

    def __init__(
        self, environment: TaskEnvironment, driver: TaskDriver, look: Callable[[], None] = lambda: None
    ) -> None:
        """Start without subtasks; `look` registers long steps as slow calls, before each report."""
        self._environment = environment
        self._driver = driver
        self._look = look
        self._network = NetworkShares(environment.network_memory_bytes, environment.tell_need)
        self._jobs: dict[str, _Job] = {}
        self._reports: dict[str, JobReports] = {}
        #: The peers for the next deployment of a job: see `graph.task_deployment.encode_peers`.
        self._peers: dict[str, bytes] = {}
        #: State loaded for the next deployment of a job.
        self._prepared: dict[str, PreparedStates] = {}
        #: By folder and run of a job; the newest only.
        self._files: dict[tuple[str, str], _Files] = {}
        #: Jobs with slow calls at the last request for metrics.
        self._reported_slow: set[str] = set()
        #: Numbers of checkpoint objects, unique in the life of this worker.
        self._object_numbers = itertools.count(1)

    def handle(self, command: WorkerCommand) -> None:
        """Handle one command; commands older than this worker's state are dropped."""
        match command:
            case DeployPeers():
                self._peers[command.job_id] = command.table
            case PrepareTasks():
                self._prepare(command)
            case DeployTasks():
                self._deploy(command)
            case PauseCompaction():
                for subtask in self._live_subtasks(command.job_id, command.run_id, command.generation):
                    subtask.pause_compaction(paused=command.paused)
            case CancelTasks():
                for subtask in self._live_subtasks(command.job_id, None, command.generation):
                    subtask.cancel()
            case TriggerCheckpoint():
                self._trigger(command)
            case LetBarriersOvertake():
                for subtask in self._live_subtasks(command.job_id, command.run_id, command.generation):
                    subtask.permit(command.checkpoint_id)
            case CheckpointCompleted():
                self._complete(command)
            case CheckpointAborted():
                for subtask in self._live_subtasks(command.job_id, command.run_id, command.generation):
                    subtask.abort(command)
            case AssignSplits():
                self._assign(command)
            case AlignWatermarks():
                self._align(command)
            case FinishTasks():
                for subtask in self._live_subtasks(command.job_id, None, command.generation):
                    subtask.finish()
            case ResolvePending():
                self._resolve(command)
            case WriteSavepoint():
                self._copy_part(command)
            case SealSavepoint():
                self._seal(command)
            case AskSubtask():
                self._ask(command)
            case AskTasks():
                self._tell(command)
            case NetworkShare():
                self._network.resized(command)
            case LeaseRenewed():  # the worker process has renewed its lease before this call
                for reports in self._reports.values():
                    reports.flush()

    def metrics(self, worker: dict[str, float]) -> list[WorkerMetrics]:
        """Return the latest metrics of all subtasks, one message per job; `worker` are those of the process."""
        found, own = [], self._environment.worker_id
        self._look()
        now_ms = self._environment.clock.monotonic_ms()
        slow = self._environment.slow_calls.slow()
        self._reported_slow = {job_id for job_id in self._reported_slow if job_id not in slow}
        # a job whose slow calls have ended is reported once more, even if it has no subtask here yet
        for job_id in {**self._jobs, **slow, **dict.fromkeys(self._reported_slow)}:
            subtasks = self._jobs[job_id].subtasks if job_id in self._jobs else []
            tasks = {
                subtask.metric_name: subtask.metrics.latest if subtask.has_ended else subtask.metrics.at(now_ms)
                for subtask in subtasks
                if subtask.metrics.latest
            }
            used = [subtask.metrics.memory_used for subtask in subtasks if not subtask.has_ended]
            memory = {
                "managedMemoryUsed": float(sum(managed for managed, _ in used)),
                "networkMemoryUsed": float(sum(network for _, network in used)),
            }
            texts = {subtask.metric_name: subtask.metrics.texts for subtask in subtasks if subtask.metrics.texts}
            calls = slow.get(job_id, ())
            if tasks or calls or job_id in self._reported_slow:
                values = {**worker, **memory}
                found.append(
                    WorkerMetrics(worker_id=own, job_id=job_id, tasks=tasks, texts=texts, worker=values, slow=calls)
                )
        self._reported_slow = set(slow)
        return found

    def release(self) -> None:
        """Free the channels of jobs whose subtasks in this worker have all ended, and return network memory."""
        for job_id, job in self._jobs.items():
            if job.subtasks and job.has_ended and not job.released:
                job.released = True
                self._environment.network.release(job_id)
                self._network.deployed(())
        self._network.look()

    @property
    def subtasks(self) -> tuple[Subtask, ...]:
        """Return all subtasks of this worker."""
        return tuple(subtask for job in self._jobs.values() for subtask in job.subtasks)

    def _live_subtasks(self, job_id: str, run_id: str | None, generation: int | None) -> list[Subtask]:
        """Return the live subtasks that a message addresses: none if its run or generation is not the present one."""
        job = self._jobs.get(job_id)
        if job is None or (run_id is not None and run_id != job.run_id):
            return []
        if generation is not None and generation < job.generation:
            return []
        if generation is not None:
            job.generation = generation
        return [subtask for subtask in job.subtasks if not subtask.has_ended]

    # --- deploy and cancel -------------------------------------------------------------------------------------------

    def _deploy(self, command: DeployTasks) -> None:
        deployments = [decode_deployment(task) for task in command.tasks]
        table = self._peers.pop(command.job_id, None)
        job = self._jobs.get(command.job_id)
        if job is not None and command.generation < job.generation:
            return
        if job is not None and not job.has_ended:
            self._refuse(deployments, f"worker {self._environment.worker_id} still runs an earlier attempt of this job")
            return
        self._environment.network.release(command.job_id)
        queries = OpenQueries(self._environment.clock, self._environment.report)
        job = _Job(command.generation, queries)
        if deployments:
            job.run_id, job.attempt = deployments[0].run_id, deployments[0].execution.attempt
        self._jobs[command.job_id] = job
        states = self._prepared.pop(command.job_id, PreparedStates())
        stateful_subtasks = sum(keeps_keyed_state(deployment) for deployment in deployments)
        loops: list[SubtaskLoop] = []
        made: list[Subtask] = []
        try:
            peers = None if table is None else decode_peers(table)
            complete = [with_channels(planned, peers) for planned in deployments]
            for deployment, network in zip(complete, self._network.divide(complete), strict=True):
                loop = self._driver.loop(deployment)
                prepared = states.take(deployment)
                services = self._services_of(deployment, stateful_subtasks) if prepared is None else prepared.services
                services = replace(services, network=network, prepared=prepared)
                made.append(Subtask(deployment, self._environment, services, loop.wake))
                loops.append(loop)
        except Exception as error:  # noqa: BLE001 - reported as the failure of all tasks of this deployment
            self._environment.network.release(command.job_id)
            self._network.deployed(())
            self._refuse(deployments, *describe(error))
            return
        finally:
            states.close()
        job.subtasks = made
        for files in self._files.values():
            files.copies.adopt(ref for deployment in complete for ref in restored_files(deployment))
        for subtask in made:
            subtask.reports.state("DEPLOYING")
        self._network.deployed([subtask.gate for subtask in made if subtask.gate is not None])
        self._environment.network.start_channels(command.job_id)
        for loop, subtask in zip(loops, made, strict=True):
            loop.run(subtask)
        self._check_folder(deployments)

    def _prepare(self, command: PrepareTasks) -> None:
        """Load the state of the next deployment in the background."""
        environment, job_id = self._environment, command.job_id
        deployments = [decode_deployment(task) for task in command.tasks]
        stateful = [deployment for deployment in deployments if keeps_keyed_state(deployment)]
        states = self._prepared.setdefault(job_id, PreparedStates())
        for deployment in stateful:
            if states.of(deployment) is None:
                services = self._services_of(deployment, len(stateful))
                states.add(deployment, PreparedState(deployment, environment, services))

        def answer(_: None, error: str) -> TasksPrepared:
            return TasksPrepared(job_id=job_id, round=command.round, error=error)

        what = "loading the state of the next deployment"
        self._work_beside(job_id, what, lambda: states.load(stateful), answer)

    def _check_folder(self, deployments: list[TaskDeployment]) -> None:
        """Fail the subtasks if the job's folder cannot be written; they run meanwhile."""
        check = self._environment.require_writable
        if check is None or not deployments:
            return
        folder = join_uri(deployments[0].settings.checkpoint_root, deployments[0].job_name)

        def done(_: None, error: BaseException | None) -> None:
            if error is not None:
                self._refuse(deployments, describe(error)[0])

        self._environment.blocking.submit(lambda: check(folder), done)

    def _services_of(self, deployment: TaskDeployment, stateful_subtasks: int) -> JobServices:
        """Return a subtask's services; the files of the job's folder are shared by its subtasks here."""
        folder = join_uri(deployment.settings.checkpoint_root, deployment.job_name)
        key = (folder, deployment.run_id)
        if key not in self._files:
            self._files = {key: self._open_files(deployment, self._environment.open_store(folder))}
        files = self._files[key]
        return JobServices(
            uploader=files.uploader,
            read_file=lambda ref: read_file(files.store, ref),
            copies=files.copies,
            state_files=StateFiles(files.store, files.copies),
            managed_memory_bytes=self._environment.managed_memory_bytes // max(1, stateful_subtasks),
            send=self._reports_of(deployment.job_id).send,
        )

    def _reports_of(self, job_id: str) -> JobReports:
        if job_id not in self._reports:
            self._reports[job_id] = JobReports(job_id, self._environment.report)
        return self._reports[job_id]

    def _open_files(self, deployment: TaskDeployment, store: ObjectStore) -> _Files:
        environment, most = self._environment, deployment.settings.local_recovery_bytes
        uploader = Uploader(
            store,
            f"{deployment.run_id}/{environment.worker_id}",
            environment.background,
            lambda: next(self._object_numbers),
            environment.limits,
            lambda what, work: environment.slow_calls.watched(deployment.job_id, what, work),
        )
        place = None
        if environment.copies_dir is not None and most:
            place = CopyPlace(
                folder=environment.copies_dir,
                worker_id=environment.worker_id,
                most_bytes=most,
                store_folder=local_folder(store),
            )
        copies = LocalCopies(place)
        uploader.keep = copies.keep
        return _Files(store, uploader, copies)

    def _refuse(self, deployments: list[TaskDeployment], error: str, detail: str = "") -> None:
        for deployment in deployments:
            TaskReports(deployment, self._reports_of(deployment.job_id).send).state("FAILED", error, detail)

    # --- checkpoints and splits --------------------------------------------------------------------------------------

    def _trigger(self, command: TriggerCheckpoint) -> None:
        kind = BarrierKind(command.kind)
        subtasks = self._live_subtasks(command.job_id, command.run_id, command.generation)
        self._reports_of(command.job_id).expect(command.checkpoint_id, len(subtasks))
        for subtask in subtasks:
            job = self._jobs[command.job_id]
            job.stopping |= kind.ends_job
            job.newest_checkpoint = max(job.newest_checkpoint, command.checkpoint_id)
            if command.overtakes:
                subtask.permit(command.checkpoint_id)
            if subtask.is_source:
                subtask.trigger(command.checkpoint_id, kind)
            else:
                subtask.expect(command.checkpoint_id)

    def _complete(self, command: CheckpointCompleted) -> None:
        permit = command.permit
        subtasks = self._live_subtasks(permit.job_id, permit.run_id, permit.generation)
        for subtask in subtasks:
            subtask.complete(command)
        for files in self._files.values() if subtasks else ():
            delete = files.copies.completed(permit.checkpoint_id)
            if delete is not None:
                self._environment.background.submit(delete, _log_failure)

    def _assign(self, command: AssignSplits) -> None:
        for subtask in self._live_subtasks(command.job_id, None, command.generation):
            execution = subtask.deployment.execution
            if (execution.vertex_id, execution.subtask, execution.attempt) == (
                command.vertex_id,
                command.subtask,
                command.attempt,
            ):
                taken = self._jobs[command.job_id].splits.setdefault(subtask.metric_name, set())
                taken.update(split["id"] for split in command.splits)
                _call_source(subtask, lambda source: source.add_splits(command.splits, no_more=command.no_more))

    def _align(self, command: AlignWatermarks) -> None:
        for subtask in self._live_subtasks(command.job_id, None, command.generation):
            limit = command.limits.get(subtask.metric_name)
            if limit is not None and subtask.deployment.execution.attempt == command.attempt:
                _call_source(subtask, operator.methodcaller("align", limit))

    def _ask(self, query: AskSubtask) -> None:
        job = self._jobs.get(query.job_id)
        queries = OpenQueries(self._environment.clock, self._environment.report) if job is None else job.queries
        for subtask in self._live_subtasks(query.job_id, None, None):
            if subtask.metric_name == f"{query.vertex_id}/{query.subtask}":
                queries.ask(subtask, query)
                return
        queries.refuse(query, NOT_RUNNING)

    def _tell(self, command: AskTasks) -> None:
        """Tell a new leader what runs here, without waiting for a subtask."""
        environment, job = self._environment, self._jobs.get(command.job_id)
        report = TasksReported(
            job_id=command.job_id,
            generation=command.generation,
            endpoint=environment.network.endpoint,
            pid=os.getpid(),
            beside=environment.beside and job is None,
        )
        if job is None or command.generation < job.generation:
            environment.report(report)
            return
        job.generation = command.generation
        for subtask in job.subtasks:
            subtask.leader_changed()
        tasks = tuple(_running_task(subtask, job.splits.get(subtask.metric_name)) for subtask in job.subtasks)
        environment.report(
            msgspec.structs.replace(
                report,
                run_id=job.run_id,
                attempt=job.attempt,
                stopping=job.stopping,
                newest_checkpoint=job.newest_checkpoint,
                tasks=tasks,
            )
        )

    # --- work beside the subtasks ------------------------------------------------------------------------------------

    def _resolve(self, command: ResolvePending) -> None:
        job_id, generation = command.permit.job_id, command.permit.generation

        def answer(published: tuple[str, ...] | None, error: str) -> PendingResolved:
            return PendingResolved(job_id=job_id, generation=generation, published=published or (), error=error)

        targets = ", ".join(dict.fromkeys(msgspec.convert(s, SinkSpec).target for s in command.sinks.values()))
        what = f"recovery: publishing {len(command.committables)} outputs of earlier runs to {targets}"
        self._work_beside(job_id, what, lambda: resolve_pending(command, self._environment), answer)

    def _copy_part(self, command: WriteSavepoint) -> None:
        open_store = self._environment.open_store

        def write() -> Manifest:
            part, source = decode_manifest(command.manifest), open_store(_job_folder(command))
            return write_part(part, source, open_store(command.uri))

        def answer(part: Manifest | None, error: str) -> SavepointPart:
            return SavepointPart(
                job_id=command.job_id,
                savepoint_id=command.savepoint_id,
                uri=command.uri,
                part=command.part,
                manifest=b"" if part is None else encode_manifest(part),
                error=error,
            )

        self._work_beside(command.job_id, f"copying the savepoint to {place_of(command.uri)}", write, answer)

    def _seal(self, command: SealSavepoint) -> None:
        open_store = self._environment.open_store

        def write() -> FileRef:
            manifest, source = decode_manifest(command.manifest), open_store(_job_folder(command))
            return seal_savepoint(manifest, source, open_store(command.uri), command.uri)

        def answer(manifest: FileRef | None, error: str) -> SavepointWritten:
            return SavepointWritten(
                job_id=command.job_id,
                savepoint_id=command.savepoint_id,
                uri=command.uri,
                manifest=manifest,
                error=error,
            )

        self._work_beside(command.job_id, f"writing the savepoint's manifest to {place_of(command.uri)}", write, answer)

    def _work_beside(
        self, job_id: str, what: str, work: Callable[[], T], answer: Callable[[T | None, str], WorkerReport]
    ) -> None:
        """Run work in a thread, and report its answer: that of the result, or of None and the error's text."""
        environment = self._environment

        def done(result: T | None, error: BaseException | None) -> None:
            environment.report(answer(result, "" if error is None else describe(error)[0]))

        environment.blocking.submit(environment.slow_calls.watched(job_id, what, work), done)


def _log_failure(_: None, error: BaseException | None) -> None:
    if error is not None:
        logging.getLogger(__name__).warning("local copies of checkpoint files could not be dropped: %s", error)


def _job_folder(command: WriteSavepoint | SealSavepoint) -> str:
    return join_uri(command.checkpoint_root, command.job_name)


def _running_task(subtask: Subtask, splits: set[str] | None) -> RunningTask:
    execution, reports = subtask.deployment.execution, subtask.reports
    return RunningTask(
        vertex_id=execution.vertex_id,
        subtask=execution.subtask,
        state=reports.last_state,
        input_ended=reports.has_input_ended,
        splits=None if splits is None else tuple(sorted(splits)),
    )


def _call_source(subtask: Subtask, call: Callable[[SourceOperator], None]) -> None:
    """Call the source at the head of a subtask, in the subtask's thread."""
    subtask.run_in_mailbox(lambda chain, _: call(chain.links[0].source))
