"""A whole job in one thread: a JobMaster, a real manifest log in memory, and workers that answer as real ones do."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest

from penstock.checkpoint.manifest_log import Manifest, ManifestLog
from penstock.checkpoint.memory_store import MemoryStore
from penstock.checkpoint.recovery import live_manifests, trial_of, with_trial
from penstock.config.settings import JobSettings, RestartStrategy
from penstock.connector.sink import SinkSpec
from penstock.connector.source import SourceSpec
from penstock.core.clock import ManualClock
from penstock.core.errors import LeadershipLostError, StorageError
from penstock.core.rand import SeededRand
from penstock.core.snapshot import CheckpointMetrics, Committable, FileRef, OperatorStateSnapshot, SubtaskSnapshot
from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex, KeyGroup, OperatorSpec
from penstock.graph.rescale import is_adaptive
from penstock.graph.task_deployment import Attempts, decode_deployment
from penstock.jobmanager.master.job_master import JobIdentity, JobMaster
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc import messages as msg

JOB = "a" * 32
SOURCE, SINK = "1" * 32, "2" * 32


def make_graph(
    *, parallelism: int = 2, bounded: bool = False, delivery: str = "exactly-once", factory: str = "x:Y", **settings
) -> JobGraph:
    source = SourceSpec(factory=factory, config={}, schema="", bounded=bounded)
    sink = SinkSpec(factory="x:Z", config={}, delivery=delivery, schema="")
    vertices = (
        JobVertex(
            id=SOURCE,
            name="orders",
            operators=(
                OperatorSpec(uid="src", name="orders", kind="source", config={"source": msgspec.to_builtins(source)}),
            ),
            parallelism=parallelism,
        ),
        JobVertex(
            id=SINK,
            name="totals",
            operators=(OperatorSpec(uid="out", name="out", kind="sink", config={"sink": msgspec.to_builtins(sink)}),),
            parallelism=parallelism,
        ),
    )
    edge = JobEdge(source=SOURCE, target=SINK, partitioner=KeyGroup(("k",)), schema="")
    values = {
        "checkpoint_interval_ms": 1000,
        "checkpoint_root": "memory://root",
        "restart": RestartStrategy(jitter=0.0),
    }
    return JobGraph(
        name="job",
        vertices=vertices,
        edges=(edge,),
        settings=JobSettings(**(values | settings | {"parallelism": parallelism})),
        fingerprint="f",
    )


def with_region(graph: JobGraph, source: str, sink: str) -> JobGraph:
    """Return the graph with an unconnected copy of its first region: these vertices, and uids such as `src-2`."""
    number = len(graph.vertices) // 2 + 1
    added = tuple(
        msgspec.structs.replace(
            vertex,
            id=name,
            name=f"{vertex.name}-{number}",
            slot_sharing_group=f"region-{number}",
            operators=tuple(
                msgspec.structs.replace(o, uid=f"{o.uid}-{number}", name=f"{o.name}-{number}") for o in vertex.operators
            ),
        )
        for vertex, name in zip(graph.vertices[:2], (source, sink), strict=True)
    )
    edge = msgspec.structs.replace(graph.edges[0], source=source, target=sink)
    return msgspec.structs.replace(graph, vertices=(*graph.vertices, *added), edges=(*graph.edges, edge))


def acknowledge(world, checkpoint_id=None):
    """Let all workers acknowledge this checkpoint or the newest: with `auto_ack` off, they do not by themselves."""
    triggers = [m for _, m in world.sent if isinstance(m, msg.TriggerCheckpoint)]
    trigger = next(m for m in reversed(triggers) if checkpoint_id in (None, m.checkpoint_id))
    for worker in list(world.workers.values()):
        for ack in worker.acks(trigger):
            world.post(ev.WorkerReported(worker.worker_id, ack))


class FakeWorker:
    """Answers commands as a slot worker does, as long as its switches allow."""

    def __init__(self, world: World, worker_id: str, *, beside: bool = False) -> None:
        self.world = world
        self.beside = beside
        self.worker_id = worker_id
        self.newest_checkpoint = 0
        self.tasks = []

    def answer(self, command) -> list:
        world = self.world
        if type(command) in world.deaf:
            return []
        match command:
            case msg.DeployTasks():
                self.tasks = [decode_deployment(data) for data in command.tasks]
                world.owed += [c for task in self.tasks for r in task.restore for c in r.held]
                return [self._state(task, "RUNNING") for task in self.tasks]
            case msg.AssignSplits():
                world.assigned.append((command.subtask, tuple(s["id"] for s in command.splits), command.no_more))
                world.splits.setdefault((command.vertex_id, command.subtask), []).extend(command.splits)
                return []
            case msg.TriggerCheckpoint():
                return []
            case msg.PrepareTasks():
                world.prepared.append((self.worker_id, command))
                return [msg.TasksPrepared(job_id=JOB, round=command.round, error=world.prepare_error)]
            case msg.AskTasks():
                return [self.told(command.generation)]
            case msg.CheckpointCompleted():
                world.permits.append(command.permit)
                newest = command.permit.checkpoint_id
                own = [c for c in world.owed if self.writes(c) and c.uid not in command.held]
                return self._publish([c for c in own if c.checkpoint_id <= newest])
            case msg.ResolvePending():
                world.resolved.append(command)
                for committable in command.committables:
                    world.output[committable.id] = world.output.get(committable.id, 0)
                    if not world.output[committable.id]:
                        world.output[committable.id] = 1
                return [
                    msg.PendingResolved(
                        job_id=JOB,
                        generation=command.permit.generation,
                        published=tuple(c.id for c in command.committables),
                    )
                ]
            case msg.WriteSavepoint(savepoint_id=asked, uri=uri, part=part):
                error, written = world.copy_error, b"" if world.copy_error else command.manifest
                answer = msg.SavepointPart(
                    job_id=JOB, savepoint_id=asked, uri=uri, part=part, manifest=written, error=error
                )
                return [answer]
            case msg.SealSavepoint(savepoint_id=asked, uri=uri):
                world.savepoints.append(uri)
                return [msg.SavepointWritten(job_id=JOB, savepoint_id=asked, uri=uri, error=world.copy_error)]
            case msg.FinishTasks():
                return [self._state(task, "FINISHED") for task in self.tasks]
            case msg.CancelTasks():
                return [self._state(task, "CANCELED") for task in self.tasks]
        return []

    def acks(self, trigger: msg.TriggerCheckpoint) -> list:
        return [self._ack(task, trigger) for task in self.tasks]

    def input_ended(self) -> list:
        return [
            msg.InputEnded(
                job_id=JOB, vertex_id=t.execution.vertex_id, subtask=t.execution.subtask, attempt=t.execution.attempt
            )
            for t in self.tasks
        ]

    def told(self, generation: int) -> msg.TasksReported:
        """Return its answer to a new leader."""
        if not self.tasks:
            return msg.TasksReported(
                job_id=JOB, generation=generation, endpoint=f"unix:{self.worker_id}", pid=1, beside=self.beside
            )
        return msg.TasksReported(
            job_id=JOB,
            generation=generation,
            endpoint=f"unix:{self.worker_id}",
            pid=1,
            run_id=self.tasks[0].run_id,
            attempt=self.tasks[0].execution.attempt,
            newest_checkpoint=self.newest_checkpoint,
            tasks=tuple(
                msg.RunningTask(
                    vertex_id=t.execution.vertex_id,
                    subtask=t.execution.subtask,
                    state="RUNNING",
                    splits=tuple(split["id"] for split in self._splits(t)) if _is_source(t) else None,
                )
                for t in self.tasks
            ),
        )

    def writes(self, output: Committable) -> bool:
        """Whether a sink here has written it."""
        return (output.uid, output.subtask) in {(t.operators[-1].uid, t.execution.subtask) for t in self.tasks}

    def _splits(self, task) -> tuple:
        return tuple(self.world.splits.get((task.execution.vertex_id, task.execution.subtask), ()))

    def _publish(self, owed) -> list:
        for committable in owed:
            self.world.output[committable.id] = self.world.output.get(committable.id, 0) + 1
            self.world.owed.remove(committable)
        if not owed:
            return []
        return [msg.OutputPublished(job_id=JOB, run_id="r", committable_ids=tuple(c.id for c in owed))]

    def _state(self, task, state: str) -> msg.TaskState:
        e = task.execution
        return msg.TaskState(job_id=JOB, vertex_id=e.vertex_id, subtask=e.subtask, attempt=e.attempt, state=state)

    def _ack(self, task, trigger) -> msg.CheckpointAcks:
        e, run, uid = task.execution, task.run_id, task.operators[-1].uid
        committables, operator = (), ()
        if _is_source(task):
            operator = (OperatorStateSnapshot(uid=uid, name="splits", mode="split", items=self._splits(task)),)
        else:
            fresh = Committable(
                id=f"{uid}/{run}/{e.subtask}/{trigger.checkpoint_id}",
                uid=uid,
                run_id=run,
                subtask=e.subtask,
                checkpoint_id=trigger.checkpoint_id,
                files=(FileRef(path=f"pending/{run}/{e.attempt}/{uid}-{e.subtask}/{trigger.checkpoint_id}"),),
                rows=1,
            )
            if fresh.id not in {c.id for c in self.world.owed}:
                self.world.owed.append(fresh)
            committables = tuple(c for c in self.world.owed if (c.uid, c.subtask) == (uid, e.subtask))
        ack = msg.CheckpointAck(
            run_id=trigger.run_id,
            generation=trigger.generation,
            checkpoint_id=trigger.checkpoint_id,
            attempt=e.attempt,
            snapshot=SubtaskSnapshot(
                vertex_id=e.vertex_id, subtask=e.subtask, committables=committables, operator=operator
            ),
            metrics=CheckpointMetrics(counts=dict(self.world.counts)),
        )
        return msg.CheckpointAcks(job_id=JOB, acks=(ack,))


def _is_source(task) -> bool:
    return task.operators[0].kind == "source"


class World:
    """Executes the commands of one JobMaster at once, in order."""

    def __init__(
        self,
        graph: JobGraph,
        store: MemoryStore,
        *,
        generation: int = 1,
        run_id: str = "r",
        source=None,
        note="",
        upgrade=None,
    ):
        self.graph, self.store, self.source = graph, store, source
        self.clock = ManualClock(0)
        self.log = ManifestLog(store, generation, self.clock, SeededRand(generation))
        identity = JobIdentity(job_id=JOB, run_id=run_id, generation=generation)
        self.generation = generation
        live = live_manifests([entry.manifest for entry in self.log.read()])
        seal, trial = self._seal(run_id, note), trial_of(live, run_id)
        self.log.seal(seal if trial is None else with_trial(seal, trial))
        self.master = JobMaster(graph, identity, SeededRand(0), 0, upgrade)
        self.workers: dict[str, FakeWorker] = {}
        self.queue: deque = deque()
        self.lost = False
        self.free = [Slot("tm", i) for i in range(8)]
        self.told_free = -1
        #: The slots that the job would use.
        self.declared = 0
        #: Workers whose processes do not exit when they are killed.
        self.immortal: set[str] = set()
        #: Slots in which the TaskManager starts no worker.
        self.refused: set[Slot] = set()
        #: Message types workers do not answer; commands the world does not execute.
        self.deaf: set[type] = set()
        self.auto_ack = True
        self.append_error: str | None = None
        self.discovered = ({"id": "t-0"}, {"id": "t-1"}, {"id": "t-2"})
        #: What workers were asked to load before their tasks, and why they cannot.
        self.prepared: list[tuple[str, msg.PrepareTasks]] = []
        self.prepare_error = ""
        self.assigned, self.permits, self.resolved, self.savepoints, self.sent = [], [], [], [], []
        self.splits: dict[tuple[str, int], list] = {}
        self.owed: list[Committable] = []
        self.output: dict[str, int] = {}
        self.operations: dict[str, cmd.OperationEnded] = {}
        #: Counts of rows that each subtask has at its next barrier.
        self.counts: dict[str, int] = {}
        self.terminal: cmd.JobTerminal | None = None
        self.wake: int | None = None
        #: In the job's lease.
        self.attempts = Attempts()
        self.held_discovery: list = []
        self.hold_discovery = False
        #: What a rescale has put into the job's record; why it cannot.
        self.recorded: cmd.RecordChange | None = None
        self.record_error, self.copy_error = "", ""
        #: The leader dies when the new run of an upgrade is sealed, before it is recorded.
        self.dies_sealed = False
        #: What an upgrade has put there, step by step, and what the job is by the record.
        self.upgrades: list = []
        self.run_id = run_id
        #: Number of an event -> what happens right behind it.
        self.behind: dict[int, object] = {}
        self.handled = 0

    def post(self, event) -> World:
        self.queue.append(event)
        try:
            while self.queue and not self.lost:
                for command in self.master.handle(self.queue.popleft(), self.clock.now_ms()):
                    self._execute(command)
                self._tell_free()
                if (strike := self.behind.pop(self.handled, None)) is not None:
                    strike(self)
                self.handled += 1
        except LeadershipLostError:
            # As the process does: it ends.
            self.lost = True
        return self

    def _tell_free(self) -> None:
        """Tell a job whose parallelism follows the slots how many are free, if that has changed."""
        if is_adaptive(self.master.graph) and self.told_free != len(self.free):
            self.told_free = len(self.free)
            self.queue.append(ev.SlotsAvailable(self.told_free))

    def start(self) -> World:
        self._tell_free()
        return self.post(ev.Start())

    def take_over(self, before: World, reconcile_ms: int = 2_000) -> World:
        """Start as the leader after that of `before`, whose workers still run and have not registered."""
        self.splits, self.owed, self.output = before.splits, before.owed, before.output
        self.free, self.attempts = before.free, before.attempts
        self.slots = {worker.worker_id: worker.slot for worker in before.master.deployment.workers.values()}
        self.workers = before.workers
        for worker in self.workers.values():
            worker.world = self
        return self.post(ev.Start(self.attempts, reconcile_ms))

    def register(self, *worker_ids: str) -> World:
        """Let the TaskManager register with these workers, or with all."""
        return self.post(ev.WorkersKept(tuple((name, self.slots[name]) for name in worker_ids or tuple(self.workers))))

    def pass_time(self, duration_ms: int) -> World:
        end = self.clock.now_ms() + duration_ms
        while self.wake is not None and self.wake <= end:
            self.clock.advance(max(0, self.wake - self.clock.now_ms()))
            self.wake = None
            self.post(ev.Tick())
        self.clock.advance(end - self.clock.now_ms())
        return self

    def kill(self, worker_id: str, reason: str = "it was killed by SIGKILL") -> World:
        self._gone(worker_id)
        return self.post(ev.WorkerLost(worker_id, reason))

    def end_input(self) -> World:
        for worker in list(self.workers.values()):
            for report in worker.input_ended():
                self.post(ev.WorkerReported(worker.worker_id, report))
        return self

    def manifests(self, kind: str = "checkpoint") -> list[Manifest]:
        return [e.manifest for e in self.log.read() if e.manifest.kind == kind]

    def _gone(self, worker_id: str) -> None:
        """A worker has ended: its sinks publish nothing more."""
        worker = self.workers.pop(worker_id, None)
        if worker is not None:
            self.owed = [output for output in self.owed if not worker.writes(output)]

    def _execute(self, command) -> None:
        post = self.queue.append
        match command:
            case cmd.ReadLog():
                post(ev.LogRead(self.log.read(), tuple(self.store.list("pending/")), self.source))
            case cmd.RecordAttempt(attempts):
                self.attempts = attempts
                post(ev.AttemptRecorded(attempts.newest))
            case cmd.RequestSlots(count, wait):
                if count <= len(self.free):
                    taken, self.free = self.free[:count], self.free[count:]
                    post(ev.SlotsGranted(tuple(taken)))
                elif not wait:
                    post(ev.SlotsRefused(f"{count} are needed, {len(self.free)} are free"))
            case cmd.DeclareSlots(count):
                self.declared = count
            case cmd.ReleaseSlots(slots):
                self.free += slots or ()
            case cmd.RecordChange(upgrade=None):
                self._record(command)
            case cmd.RecordChange():
                self._record_upgrade(command)
            case cmd.LaunchWorker(worker_id, slot) if slot in self.refused:
                post(ev.WorkerLost(worker_id, "the slot is held by worker w", started=False, refused=slot))
            case cmd.LaunchWorker(worker_id, _, beside):
                self.workers[worker_id] = FakeWorker(self, worker_id, beside=beside)
                ready = msg.WorkerReady(worker_id=worker_id, endpoint=f"unix:{worker_id}", pid=1)
                post(ev.WorkerReported(worker_id, ready))
            case cmd.KillWorker(worker_id, _):
                self._gone(worker_id)
                if worker_id not in self.immortal:
                    post(ev.WorkerLost(worker_id, "stopped"))
            case cmd.SendToWorker(worker_id, message):
                self._send(worker_id, message)
            case cmd.SendToWorkers(_, worker_ids, message):
                for worker_id in worker_ids:
                    self._send(worker_id, message)
            case cmd.AppendManifest(tag, manifest):
                self._append(tag, manifest)
            case cmd.DeleteEntries(sequences, files, emptied):
                self.log.delete(sequences, emptied)
                for path in files:
                    self.store.delete(path)
            case cmd.DiscoverSplits(uid, epoch, known, _):
                found = ev.SplitsDiscovered(uid, epoch, tuple(s for s in self.discovered if s["id"] not in known))
                self.held_discovery.append(found) if self.hold_discovery else post(found)
            case cmd.WakeAt(at_ms):
                self.wake = at_ms
            case cmd.OperationEnded(request_id):
                self.operations[request_id] = command
            case cmd.JobTerminal():
                self.terminal = command

    def _record(self, command: cmd.RecordChange) -> None:
        if self.record_error:
            self.queue.append(ev.ChangeNotRecorded(self.record_error))
            return
        self.recorded = command
        if command.run_id:
            self.log.append(self._seal(command.run_id))
            self.source = None
        self.queue.append(ev.ChangeRecorded())

    def _record_upgrade(self, command: cmd.RecordChange) -> None:
        if self.record_error:
            self.queue.append(ev.ChangeNotRecorded(self.record_error))
            return
        if command.graph is not None:
            seal = self._seal(command.run_id)
            self.log.append(seal if command.trial is None else with_trial(seal, command.trial))
            if self.dies_sealed:
                self.lost = True
                return
            self.source, self.graph, self.run_id = None, command.graph, command.run_id
        self.upgrades.append(command.upgrade)
        self.queue.append(ev.ChangeRecorded())

    def _seal(self, run_id: str, note: str = "") -> Manifest:
        return Manifest(
            kind="seal", sequence=0, job_id=JOB, job_name="job", run_id=run_id, generation=self.generation, nonce="",
            created_ms=0, note=note,
        )  # fmt: skip

    def _send(self, worker_id: str, message) -> None:
        self.sent.append((worker_id, message))
        worker = self.workers.get(worker_id)
        if worker is None:
            return
        for report in worker.answer(message):
            self.queue.append(ev.WorkerReported(worker_id, report))
        if isinstance(message, msg.TriggerCheckpoint) and self.auto_ack:
            first = next(
                w
                for w, m in self.sent
                if isinstance(m, msg.TriggerCheckpoint) and m.checkpoint_id == message.checkpoint_id
            )
            if first == worker_id:
                for other in self.workers.values():
                    for ack in other.acks(message):
                        self.queue.append(ev.WorkerReported(other.worker_id, ack))

    def _append(self, tag: str, manifest: Manifest) -> None:
        if self.append_error is not None:
            self.queue.append(ev.ManifestFailed(tag, self.append_error))
            return
        try:
            self.queue.append(ev.ManifestAppended(tag, self.log.append(manifest)))
        except StorageError as error:
            self.queue.append(ev.ManifestFailed(tag, str(error)))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def world_of(store):
    """Return a maker of worlds over one store."""

    def make(graph: JobGraph | None = None, **options) -> World:
        return World(graph or make_graph(), store, **options)

    return make


@pytest.fixture
def graph_of():
    """Return the maker of graphs."""
    return make_graph


@pytest.fixture
def fake_worker_type():
    """Return the imitation of a worker."""
    return FakeWorker
