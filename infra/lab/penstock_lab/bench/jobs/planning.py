"""planning: the JobManager's time to plan and deploy a job of many subtasks, with workers that only answer.

The job's master runs alone, in one thread, without a process or a socket: from its start until every subtask is running
and has its splits. Two shapes of two vertices: `forward`, with one channel per subtask, and `keyed`, with a channel
from each to each, whose number is the square of the parallelism. Sent bytes are counted as they go to the TaskManagers,
of 16 slots each.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.checkpoint.manifest_log import Manifest, ManifestLog
from penstock.checkpoint.memory_store import MemoryStore
from penstock.config.settings import JobSettings
from penstock.connector.sink import SinkSpec
from penstock.connector.source import SourceSpec
from penstock.core.clock import ManualClock, SystemClock
from penstock.core.errors import PenstockError
from penstock.core.rand import SeededRand
from penstock.graph.job_graph import Forward, JobEdge, JobGraph, JobVertex, KeyGroup, OperatorSpec
from penstock.graph.task_deployment import TaskDeployment, decode_deployment, needs_peers
from penstock.jobmanager.deploy.job_log import JobIdentity
from penstock.jobmanager.deploy.job_status import JobStatus
from penstock.jobmanager.master.job_master import JobMaster
from penstock.jobmanager.messages import commands as cmd
from penstock.jobmanager.messages import events as ev
from penstock.jobmanager.messages.placement import Slot
from penstock.rpc import messages as msg

if TYPE_CHECKING:
    from penstock.graph.job_graph import Partitioner
    from penstock_lab.bench.options import BenchOptions

#: Subtasks of the whole job (two vertices).
SIZES = (250, 500, 1000, 2000)
_JOB, _RUN = "a" * 32, "r" * 16


def planning(options: BenchOptions) -> dict[str, Any]:
    """Plan and deploy jobs of `SIZES` subtasks (`--events`: only of that many)."""
    sizes = SIZES if options.events is None else (options.events,)
    figures: dict[str, Any] = {"workload": "planning"}
    for shape, partitioner in (("forward", Forward()), ("keyed", KeyGroup(("k",)))):
        for subtasks in sizes:
            seconds, sent = deploy(max(1, subtasks // 2), partitioner)
            figures[f"{shape}_{subtasks}_ms"] = round(seconds * 1000, 1)
            figures[f"{shape}_{subtasks}_sent_mb"] = round(sent / 1e6, 2)
    return {**figures, "load": round(os.getloadavg()[0], 1)}


def deploy(parallelism: int, partitioner: Partitioner) -> tuple[float, int]:
    """Return the seconds until the job was running, and the bytes of the deployments that the master sent.

    Raises:
        PenstockError: it is not running.
    """
    clock, world = SystemClock(), _World(graph_of(parallelism, partitioner))
    started = clock.monotonic_ms()
    world.start()
    elapsed = clock.monotonic_ms() - started - world.workers_ms
    if world.master.status.state is not JobStatus.RUNNING or world.assigned != parallelism:
        raise PenstockError(f"the job is {world.master.status.state}, {world.assigned} subtasks have splits")
    return elapsed / 1000, world.sent_bytes


def graph_of(parallelism: int, partitioner: Partitioner) -> JobGraph:
    """Return a job graph of a source and a sink with `parallelism` subtasks each."""
    source = SourceSpec(factory="x:Y", config={}, schema="", bounded=True)
    sink = SinkSpec(factory="x:Z", config={}, delivery="at-least-once", schema="")
    operators = (
        OperatorSpec(uid="src", name="src", kind="source", config={"source": msgspec.to_builtins(source)}),
        OperatorSpec(uid="out", name="out", kind="sink", config={"sink": msgspec.to_builtins(sink)}),
    )
    vertices = tuple(
        JobVertex(id=str(i) * 32, name=o.name, operators=(o,), parallelism=parallelism) for i, o in enumerate(operators)
    )
    edge = JobEdge(source=vertices[0].id, target=vertices[1].id, partitioner=partitioner, schema="")
    settings = JobSettings(parallelism=parallelism, checkpoint_root="memory://bench")
    return JobGraph(name="bench", vertices=vertices, edges=(edge,), settings=settings, fingerprint="f")


class _World:
    """Executes the master's commands at once; workers report success."""

    def __init__(self, graph: JobGraph) -> None:
        self.graph = graph
        self.log = ManifestLog(MemoryStore(), 1, ManualClock(0), SeededRand(1))
        identity = JobIdentity(job_id=_JOB, run_id=_RUN, generation=1)
        self.log.seal(
            Manifest(
                kind="seal", sequence=0, job_id=_JOB, job_name=graph.name, run_id=_RUN, generation=1, nonce="",
                created_ms=0,
            )
        )  # fmt: skip
        self.master = JobMaster(graph, identity, SeededRand(0), 0)
        self.sent_bytes = self.assigned = 0
        #: Workers that have received the peer table.
        self._told: set[str] = set()
        #: Time spent as the workers, which does not count for the master.
        self.workers_ms = 0.0
        self._events: deque[ev.Event] = deque([ev.Start()])
        self._clock = SystemClock()

    def start(self) -> None:
        """Run until no work is left."""
        while self._events:
            for command in self.master.handle(self._events.popleft(), 0):
                self._execute(command)

    def _execute(self, command: cmd.Command) -> None:
        post = self._events.append
        match command:
            case cmd.ReadLog():
                post(ev.LogRead(self.log.read(), (), None))
            case cmd.RecordAttempt(attempts):
                post(ev.AttemptRecorded(attempts.newest))
            case cmd.RequestSlots(count):
                post(ev.SlotsGranted(tuple(Slot(f"tm-{i // 16}", i % 16) for i in range(count))))
            case cmd.LaunchWorker(worker_id, _):
                endpoint = f"unix:/tmp/ps-1-abcdefgh/{worker_id}"
                post(ev.WorkerReported(worker_id, msg.WorkerReady(worker_id=worker_id, endpoint=endpoint, pid=1)))
            case cmd.DiscoverSplits(uid, epoch):
                splits = tuple({"id": f"s-{i}"} for i in range(self.graph.vertices[0].parallelism))
                post(ev.SplitsDiscovered(uid, epoch, splits))
            case cmd.SendToWorkers(_, worker_ids, msg.DeployPeers() as message):
                self.sent_bytes += len(message.table)
                self._told.update(worker_ids)
            case cmd.SendToWorker(worker_id, msg.DeployTasks() as message):
                began = self._clock.monotonic_ms()
                self.sent_bytes += sum(map(len, message.tasks))
                self._run(worker_id, [decode_deployment(data) for data in message.tasks])
                self.workers_ms += self._clock.monotonic_ms() - began
            case cmd.SendToWorker(_, msg.AssignSplits()):
                self.assigned += 1

    def _run(self, worker_id: str, tasks: list[TaskDeployment]) -> None:
        if worker_id not in self._told and any(map(needs_peers, tasks)):
            raise PenstockError(f"worker {worker_id} did not receive the peer table")
        for state in ("INITIALIZING", "RUNNING"):
            for task in tasks:
                where = task.execution
                report = msg.TaskState(
                    job_id=_JOB, vertex_id=where.vertex_id, subtask=where.subtask, attempt=where.attempt, state=state
                )
                self._events.append(ev.WorkerReported(worker_id, report))
