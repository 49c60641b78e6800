"""One deployment of a job: from slots, workers and resolved output to all subtasks RUNNING; a pure decider.

A member of `master.job_master`, created for every start and restart. `split_assigner` distributes a source's splits.
The order is fixed: manifest chosen, workers ready, pending output resolved, tasks deployed, all RUNNING, splits.
A region restarts by a deployment of its part of the graph, which then joins that of the job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.checkpoint.manifest_log import Manifest
from penstock.checkpoint.recovery import RecoveryPlan
from penstock.connector.sink import SinkSpec
from penstock.connector.source import SourceSpec
from penstock.core.counts import counted
from penstock.core.snapshot import Committable, pending_text
from penstock.graph.execution_graph import Placement, PlanIds, peers_of, plan
from penstock.graph.job_graph import JobGraph, OperatorSpec, required_slots
from penstock.graph.restore_plan import RestorePlan
from penstock.graph.task_deployment import Attempts, ExecutionId, encode_deployment, encode_peers
from penstock.jobmanager.deploy.split_assigner import SplitAssigner
from penstock.jobmanager.messages.commands import (
    Command,
    DiscoverSplits,
    LaunchWorker,
    RequestSlots,
    SendToWorker,
    SendToWorkers,
)
from penstock.jobmanager.messages.placement import Slot, place
from penstock.rpc.messages import (
    AssignSplits,
    DeployPeers,
    DeployTasks,
    PendingResolved,
    ResolvePending,
    RunningTask,
    WorkerCommand,
)

#: A start may take this long, plus the time to read its state at the rate below.
START_TIMEOUT_MS = 600_000
_LEAST_BYTES_PER_MS = 1_000
_ENDED = ("FINISHED", "CANCELED", "FAILED")
_EXACTLY_ONCE = ("exactly-once", "exactly-once-2pc")


@dataclass(slots=True)
class Worker:
    """A worker process of this deployment."""

    worker_id: str
    slot: Slot
    endpoint: str = ""
    pid: int = 0


@dataclass(slots=True)
class Execution:
    """An attempt of a subtask."""

    id: ExecutionId
    worker_id: str = ""
    state: str = "CREATED"
    start_ms: int = -1
    end_ms: int = -1
    input_ended: bool = False


@dataclass(frozen=True, slots=True)
class AdoptedTask:
    """A running subtask that an earlier leader deployed, and its worker."""

    worker_id: str
    report: RunningTask
    attempt: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """The recovery decision from the log, and the state it assigns."""

    plan: RecoveryPlan
    restore: RestorePlan | None
    #: Older runs to fence: output is resolved before sinks open, unless the job has never written any.
    fence: tuple[tuple[str, str], ...]
    #: The user accepted a restore older than output that may have been published.
    accepted_duplicates: bool = False

    @property
    def text(self) -> str:
        """The decision in one line."""
        restored = self.plan.restored
        what = "an empty start"
        if restored is not None:
            what = f"checkpoint {restored.checkpoint_id}"
            what = f"savepoint {restored.savepoint_uri} ({what})" if restored.savepoint_uri else what
            what += f" of run {restored.run_id[:8]}"
        if self.accepted_duplicates:
            what += ", older than output that may have been published (--accept-duplicates)"
        what += f"; pending output: {pending_text(self.plan.pending)}"
        runs = counted(len(self.fence), "earlier run")
        return f"{what}; uncommitted output of {runs} is discarded, and its rows are read again" if self.fence else what

    @property
    def start_timeout_ms(self) -> int:
        """How long the start may take from now on."""
        return start_timeout_ms(self.restore.read_bytes if self.restore is not None else 0)


def start_timeout_ms(read_bytes: int) -> int:
    """Return how long a start may take whose slowest subtask reads this much state."""
    return START_TIMEOUT_MS + read_bytes // _LEAST_BYTES_PER_MS


class Deployment:
    """The state of one start or restart."""

    def __init__(self, graph: JobGraph, ids: PlanIds, checkpoint_root: str) -> None:
        """Create the subtasks; `ids.attempt` and `ids.epoch` are this deployment's number."""
        self.graph = graph
        self.ids = ids
        self._root = checkpoint_root
        self.workers: dict[str, Worker] = {}
        #: Workers that were lost.
        self.lost: list[Worker] = []
        self.executions = {
            (vertex.id, subtask): Execution(ExecutionId(vertex.id, subtask, ids.attempt))
            for vertex in graph.vertices
            for subtask in range(vertex.parallelism)
        }
        self.recovered: Recovered | None = None
        self.assigners: dict[str, SplitAssigner] = {}
        #: By uid of a source: the epoch of its discoveries.
        self._epochs: dict[str, int] = {}
        self._intervals: dict[str, int] = {}
        self._discover_at: dict[str, int] = {}
        self._resolver = ""
        self.resolved = False
        #: The job's lease names this attempt.
        self.recorded = False
        #: Output that is still uncommitted after the resolution.
        self.pending: tuple[Committable, ...] = ()
        self.deployed = False
        # Kept as counters because they are read at every event.
        self._needed = required_slots(graph)
        self._wait = True
        self._executions_by_worker: dict[str, list[Execution]] = {}
        self._ready = 0
        self._running = 0
        #: Number of subtasks that have not ended.
        self.open = len(self.executions)

    # --- queries ---------------------------------------------------------------------------------------------------

    @property
    def needed(self) -> int:
        """Number of slots the job needs."""
        return self._needed

    @property
    def attempts(self) -> Attempts:
        """The attempt of each vertex; those of a part that restarts are newer."""
        present = {vertex.id: self.executions[vertex.id, 0].id.attempt for vertex in self.graph.vertices}
        newest = max(present.values())
        return Attempts(newest, {vertex_id: attempt for vertex_id, attempt in present.items() if attempt < newest})

    @property
    def fenced(self) -> bool:
        """Whether the resolution of earlier output has been sent to a worker."""
        return bool(self._resolver)

    @property
    def finishing(self) -> bool:
        """Whether no tasks are deployed because only the final checkpoint's publication is left."""
        return self.recovered is not None and self.recovered.plan.finishing

    @property
    def final_checkpoint(self) -> Manifest | None:
        """The checkpoint that ended the job, once it is published and a worker can copy it; else None."""
        worker = any(w.endpoint for w in self.workers.values())
        return self.recovered.plan.restored if self.recovered and self.finishing and self.resolved and worker else None

    @property
    def ready(self) -> bool:
        """Whether all workers are ready."""
        return len(self.workers) == self._ready == self.needed

    @property
    def running(self) -> bool:
        """Whether all subtasks are running."""
        return self.deployed and self._running == len(self.executions)

    @property
    def assigned(self) -> bool:
        """Whether all sources know their splits."""
        return all(assigner.complete for assigner in self.assigners.values())

    def waiting_for(self) -> str:
        """Return what the start is waiting for, for a timeout message."""
        if self.recovered is None:
            return "the manifest log"
        if not self.resolved and self._resolver:
            return "the publication of pending output"
        if not self.recorded:
            return "the job's lease"
        if not self.ready:
            return f"workers: {sum(bool(w.endpoint) for w in self.workers.values())} of {self.needed} are ready"
        late = [str(e.id) for e in self.executions.values() if e.state != "RUNNING"]
        return f"subtasks to run: {', '.join(late[:3])}" if late else "source splits"

    def present_workers(self) -> list[str]:
        """Return the workers that have started, for work besides the tasks."""
        return [worker.worker_id for worker in self.workers.values() if worker.endpoint]

    def sources(self) -> list[tuple[str, OperatorSpec]]:
        """Return vertex id and operator of each source."""
        return [(vertex.id, vertex.operators[0]) for vertex in self.graph.vertices if vertex.is_source]

    def vertices_of(self, worker_id: str) -> tuple[str, ...]:
        """Return the vertices of a worker's subtasks, also if it was lost."""
        return tuple(dict.fromkeys(e.id.vertex_id for e in self._executions_by_worker.get(worker_id, ())))

    def is_present(self, vertex_id: str, subtask: int, attempt: int) -> bool:
        """Return whether this is the present attempt of a subtask."""
        execution = self.executions.get((vertex_id, subtask))
        return execution is not None and execution.id.attempt == attempt

    def awaits_splits(self, uid: str, epoch: int) -> bool:
        """Return whether an enumerator's answer is for the present discovery."""
        return self._epochs.get(uid) == epoch

    # --- events ----------------------------------------------------------------------------------------------------

    def begin(self, kept: Iterable[Slot], *, wait: bool = True, prepared: Iterable[Worker] = ()) -> list[Command]:
        """Start workers in the slots the job still holds, and request the rest; `wait`: see `RequestSlots`.

        Where a `prepared` worker runs, none is started.
        """
        slots, self._wait = list(kept)[: self.needed], wait
        self.workers = {worker.worker_id: worker for worker in prepared}
        self._ready = sum(bool(worker.endpoint) for worker in self.workers.values())
        used = {worker.slot for worker in self.workers.values()}
        commands = self.slots_granted([slot for slot in slots if slot not in used], slots)
        if len(slots) < self.needed:
            commands.append(RequestSlots(self.needed - len(slots), wait))
        return commands

    def slots_granted(self, slots: Iterable[Slot], order: Sequence[Slot] = ()) -> list[Command]:
        """Start a worker in each slot; `order`: of all slots of the job, in which subtasks are placed."""
        commands: list[Command] = []
        restart = self.ids.epoch - (self.ids.generation << 16)
        for slot in slots:
            # Names must be unique over all restarts: files carry them.
            number = len(self.workers) + len(self.lost)
            worker_id = f"{self.ids.job_id[:8]}-g{self.ids.generation}-r{restart}-{number}"
            self.workers[worker_id] = Worker(worker_id, slot)
            commands.append(LaunchWorker(worker_id, slot))
        places = {slot: place for place, slot in enumerate(order)}
        ordered = sorted(self.workers.items(), key=lambda item: places.get(item[1].slot, len(places)))
        self.workers = dict(ordered)
        return commands

    def log_read(self, recovered: Recovered, now_ms: int) -> list[Command]:
        """Handle the recovery decision: discover splits while the workers start."""
        self.recovered = recovered
        commands: list[Command] = []
        if not recovered.plan.finishing:
            for vertex_id, operator in self.sources():
                splits = None if recovered.restore is None else recovered.restore.splits.get(operator.uid)
                restored = None if splits is None else [msgspec.to_builtins(split) for split in splits]
                subtasks, bounded = self.graph.vertex(vertex_id).parallelism, source_spec(operator).bounded
                assigner = SplitAssigner(subtasks, bounded=bounded, restored=restored)
                commands += self._open_source(operator, assigner, now_ms)
        return commands + self._advance()

    def adopt(
        self, recovered: Recovered, workers: Iterable[Worker], tasks: Iterable[AdoptedTask], now_ms: int
    ) -> list[Command]:
        """Continue a deployment of an earlier leader, all subtasks of which run; discover splits again."""
        self.recovered, self.recorded, self.resolved, self.deployed = recovered, True, True, True
        self.workers = {worker.worker_id: worker for worker in workers}
        self._ready, self._running = len(self.workers), len(self.executions)
        splits: dict[tuple[str, int], tuple[str, ...]] = {}
        for task in tasks:
            where = task.report.vertex_id, task.report.subtask
            execution, splits[where] = self.executions[where], task.report.splits or ()
            execution.id = ExecutionId(*where, task.attempt)
            execution.worker_id, execution.state, execution.start_ms = task.worker_id, "RUNNING", now_ms
            execution.input_ended = task.report.input_ended
            self._executions_by_worker.setdefault(task.worker_id, []).append(execution)
        commands: list[Command] = []
        for vertex_id, operator in self.sources():
            owned = [splits[vertex_id, subtask] for subtask in range(self.graph.vertex(vertex_id).parallelism)]
            assigner = SplitAssigner.of_running(owned, bounded=source_spec(operator).bounded)
            commands += self._open_source(operator, assigner, now_ms)
        return commands

    def attempt_recorded(self) -> list[Command]:
        """Handle that the job's lease names this attempt as the newest."""
        self.recorded = True
        return self._advance()

    def worker_ready(self, worker_id: str, endpoint: str, pid: int) -> list[Command]:
        """Handle a worker that is ready for tasks."""
        worker = self.workers[worker_id]
        self._ready += bool(endpoint) - bool(worker.endpoint)
        worker.endpoint, worker.pid = endpoint, pid
        return self._advance()

    def worker_lost(self, worker_id: str, end_state: str = "") -> None:
        """Remove a lost worker; with `end_state`, its subtasks count as ended in that state."""
        worker = self.workers.pop(worker_id)
        self.lost.append(worker)
        self._ready -= bool(worker.endpoint)
        for execution in self._executions_by_worker.get(worker_id, ()) if end_state else ():
            self.open -= execution.state not in _ENDED
            self._running -= execution.state == "RUNNING"
            execution.state = end_state

    def slot_refused(self, worker_id: str) -> list[Command]:
        """Request another slot in place of that of a worker, which its TaskManager has refused."""
        self.worker_lost(worker_id)
        return [RequestSlots(self.needed - len(self.workers), self._wait)]

    def replace_part(self, part: Deployment) -> tuple[Worker, ...]:
        """Show the subtasks of `part` in place of their earlier attempts; return the workers of those, to be killed.

        Until `join` the part is on its own: here it counts neither as running nor as open.
        """
        earlier = [self.executions[where] for where in part.executions]
        left = [worker for name in dict.fromkeys(e.worker_id for e in earlier) if (worker := self.workers.get(name))]
        for worker in left:
            self.worker_lost(worker.worker_id)
        for execution in earlier:
            self._executions_by_worker.pop(execution.worker_id, None)
        self.executions.update(part.executions)
        for _, operator in part.sources():
            self.assigners.pop(operator.uid, None)
            self._epochs.pop(operator.uid, None)
            self._intervals.pop(operator.uid, None)
            self._discover_at.pop(operator.uid, None)
        self._count(set(part.executions))
        return tuple(left)

    def join(self, part: Deployment) -> None:
        """Take over a part of the job that runs again."""
        self.workers |= part.workers
        self._executions_by_worker |= part._executions_by_worker
        self.assigners |= part.assigners
        self._epochs |= part._epochs
        self._intervals |= part._intervals
        self._discover_at |= part._discover_at
        self._ready = sum(bool(worker.endpoint) for worker in self.workers.values())
        self._count(set())

    def pending_resolved(self, report: PendingResolved) -> tuple[list[Command], str]:
        """Handle a worker's report on the resolution; also return what failed, if anything did."""
        if report.error:
            return [], f"earlier output could not be published: {report.error}"
        known = set(report.published)
        self.pending = tuple(c for c in self.pending if c.id not in known)
        if self.pending:
            return [], f"output is still not published: {pending_text(self.pending)}"
        self.resolved = True
        return self._advance(), ""

    def has_ended(self, name: str) -> bool:
        """Return whether a subtask, named `VERTEX/INDEX`, has reported its end."""
        vertex_id, _, subtask = name.rpartition("/")
        execution = self.executions.get((vertex_id, int(subtask)))
        return execution is not None and execution.state in _ENDED

    def task_state(self, vertex_id: str, subtask: int, state: str, now_ms: int) -> list[Command]:
        """Handle a subtask's state; once all run, the sources get their splits."""
        execution = self.executions[vertex_id, subtask]
        was_running = self.running
        self._running += (state == "RUNNING") - (execution.state == "RUNNING")
        self.open += (state not in _ENDED) - (execution.state not in _ENDED)
        execution.state = state
        if state in _ENDED:
            execution.end_ms = now_ms
        elif execution.start_ms < 0:
            execution.start_ms = now_ms
        return self.send_splits() if self.running and not was_running else []

    def discovered(self, uid: str, splits: tuple[dict[str, Any], ...]) -> list[Command]:
        """Handle an enumerator's answer; see `awaits_splits`."""
        self.assigners[uid].discovered(splits)
        return self.send_splits() if self.running else []

    def tick(self, now_ms: int) -> list[Command]:
        """Start the split discoveries that are due."""
        due = [uid for uid, at_ms in self._discover_at.items() if now_ms >= at_ms]
        for uid in due:
            self._discover_at[uid] = now_ms + self._intervals[uid]
        return [DiscoverSplits(uid, self._epochs[uid], self.assigners[uid].known, first_run=False) for uid in due]

    def wake_ms(self) -> int | None:
        """Return the time at which `tick` is due."""
        return min(self._discover_at.values(), default=None)

    def send_splits(self) -> list[Command]:
        """Assign new splits to the source subtasks."""
        commands: list[Command] = []
        for vertex_id, operator in self.sources():
            for subtask, (splits, no_more) in self.assigners[operator.uid].take().items():
                execution = self.executions[vertex_id, subtask]
                message = AssignSplits(
                    job_id=self.ids.job_id,
                    generation=self.ids.generation,
                    vertex_id=vertex_id,
                    subtask=subtask,
                    attempt=execution.id.attempt,
                    splits=splits,
                    no_more=no_more,
                )
                commands.append(SendToWorker(execution.worker_id, message))
        return commands

    # --- steps -----------------------------------------------------------------------------------------------------

    def _advance(self) -> list[Command]:
        if self.recovered is None or self.deployed:
            return []
        if not self.resolved:
            return self._resolve(self.recovered)
        return self._deploy(self.recovered) if self.ready and self.recorded and not self.finishing else []

    def _resolve(self, recovered: Recovered) -> list[Command]:
        if self._resolver:
            return []
        sinks = publishing_sinks(self.graph)
        entry = recovered.plan.permit_entry
        if not sinks or not recovered.fence or entry is None:
            self.resolved = True
            return self._advance()
        ready = [worker for worker in self.workers.values() if worker.endpoint]
        if not ready:
            return []
        self._resolver = ready[0].worker_id
        self.pending = recovered.plan.pending
        message = ResolvePending(
            permit=entry.permit,
            job_name=self.graph.name,
            checkpoint_root=self._root,
            sinks=sinks,
            prefixes={uid: tuple(f"{job}.{uid}.{run}." for job, run in recovered.fence) for uid in sinks},
            committables=recovered.plan.pending,
        )
        return [SendToWorker(self._resolver, message)]

    def _deploy(self, recovered: Recovered) -> list[Command]:
        planned = plan_tasks(self.graph, self.ids, self.workers.values(), recovered.restore)
        for where, execution in self.executions.items():
            execution.worker_id, execution.state = planned.placement[where], "SCHEDULED"
            self._executions_by_worker.setdefault(execution.worker_id, []).append(execution)
        self.deployed = True
        job_id, generation = self.ids.job_id, self.ids.generation
        return self._send_peers(planned) + [
            SendToWorker(worker_id, DeployTasks(job_id=job_id, generation=generation, tasks=tasks))
            for worker_id, tasks in planned.tasks.items()
        ]

    def _send_peers(self, planned: PlannedTasks) -> list[Command]:
        """Send all workers the peer addresses: one message per TaskManager, because it is the same for all."""
        table = peers_of(self.graph, self.ids.epoch, planned.placement, planned.endpoints)
        if table is None:
            return []
        message = DeployPeers(job_id=self.ids.job_id, table=encode_peers(table))
        return send_to_all(self.workers.values(), message)

    def _count(self, apart: Collection[tuple[str, int]]) -> None:
        """Count the subtasks that run and that have not ended, without those in `apart`."""
        states = [execution.state for where, execution in self.executions.items() if where not in apart]
        self._running = states.count("RUNNING")
        self.open = sum(state not in _ENDED for state in states)

    def _open_source(self, operator: OperatorSpec, assigner: SplitAssigner, now_ms: int) -> list[Command]:
        spec, resumed = source_spec(operator), assigner.complete
        self.assigners[operator.uid], self._epochs[operator.uid] = assigner, self.ids.epoch
        if spec.bounded and resumed:
            return []
        if spec.discovery_interval_ms is not None and not spec.bounded:
            self._intervals[operator.uid] = spec.discovery_interval_ms
            self._discover_at[operator.uid] = now_ms + spec.discovery_interval_ms
        return [DiscoverSplits(operator.uid, self.ids.epoch, assigner.known, first_run=not resumed)]


@dataclass(frozen=True, slots=True)
class PlannedTasks:
    """The subtasks of a deployment, placed on its workers."""

    placement: Placement
    #: By worker: its network endpoint.
    endpoints: dict[str, str]
    #: By worker: its encoded `TaskDeployment`s, in topological order.
    tasks: dict[str, tuple[bytes, ...]]


def plan_tasks(graph: JobGraph, ids: PlanIds, workers: Iterable[Worker], restore: RestorePlan | None) -> PlannedTasks:
    """Place the subtasks on the workers, in the order of the slots; all workers are ready.

    Raises:
        ValueError: there are fewer workers than slots (a bug of the caller).
    """
    endpoints = {worker.worker_id: worker.endpoint for worker in workers}
    placement = place(graph, list(endpoints))
    tasks: dict[str, list[bytes]] = {}
    for task in plan(graph, ids=ids, placement=placement, endpoints=endpoints, restore=restore):
        worker_id = placement[task.execution.vertex_id, task.execution.subtask]
        tasks.setdefault(worker_id, []).append(encode_deployment(task))
    return PlannedTasks(placement, endpoints, {worker_id: tuple(encoded) for worker_id, encoded in tasks.items()})


def send_to_all(workers: Iterable[Worker], command: WorkerCommand) -> list[Command]:
    """Return the commands that send one message to all these workers: one relay per TaskManager."""
    by_manager: dict[str, list[str]] = {}
    for worker in workers:
        by_manager.setdefault(worker.slot.taskmanager_id, []).append(worker.worker_id)
    return [SendToWorkers(manager, tuple(worker_ids), command) for manager, worker_ids in by_manager.items()]


def source_spec(operator: OperatorSpec) -> SourceSpec:
    """Return the source specification of a source operator."""
    return msgspec.convert(operator.config["source"], SourceSpec)


def publishing_sinks(graph: JobGraph) -> dict[str, Any]:
    """Return the sinks that publish under a permit, by uid."""
    return {
        operator.uid: operator.config["sink"]
        for vertex in graph.vertices
        for operator in vertex.operators
        if operator.kind == "sink" and msgspec.convert(operator.config["sink"], SinkSpec).delivery in _EXACTLY_ONCE
    }
