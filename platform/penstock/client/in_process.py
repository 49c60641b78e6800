"""A job's subtasks in this thread: the engine's own task code, without servers.

`InProcessJob` takes the parts of JobManager and worker process: it deploys, assigns splits, takes checkpoints and
restores them; made by `testing.harness`, over a clock that only the test moves. `InProcessExecutor` runs a job to its
end or to enough rows, for `stream.show()` and short tests.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.checkpoint.stores import open_job_store
from penstock.client.call_limit import CallLimit
from penstock.client.kernels import compile_kernels
from penstock.connector.sink import load_factory
from penstock.connector.source import SourceFactory, SourceSpec
from penstock.core.clock import SystemClock
from penstock.core.elements import BarrierKind, Watermark
from penstock.core.errors import PenstockError, UsageError, job_failed
from penstock.core.permits import CommitPermit
from penstock.graph.execution_graph import PlanIds, peers_of, plan
from penstock.graph.executor import JobResult
from penstock.graph.restore_plan import assign_state
from penstock.graph.task_deployment import encode_deployment, encode_peers
from penstock.network.simulated_network import MemoryNetwork, MemoryTransport
from penstock.rpc import messages as msg
from penstock.task.chain.background import SlowCalls
from penstock.task.chain.environment import TaskEnvironment
from penstock.task.drive.runtime import TaskRuntime
from penstock.task.drive.subtask import StepResult

if TYPE_CHECKING:
    from penstock.checkpoint.store import ObjectStore
    from penstock.core.clock import Clock
    from penstock.core.rand import Rand
    from penstock.core.snapshot import SubtaskSnapshot
    from penstock.graph.executor import JobHandle
    from penstock.graph.job_graph import JobGraph, JobVertex
    from penstock.graph.task_deployment import TaskDeployment
    from penstock.task.drive.subtask import Subtask

JOB_ID = "0" * 32
RUN_ID = "harness"
_WORKER = "harness"
#: Real time for which rows of asynchronous functions are awaited.
_ASYNC_LIMIT_MS = 30_000.0
_ASYNC_POLL_MS = 1.0
#: Most steps of a turn if turns are random; as good as endless if not.
_LONGEST_TURN, _ENDLESS = 6, 1 << 60


class _Later:
    """Background work: kept until the driver runs it, in order."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], object]) -> None:
        """Keep work for `run`."""

        def run() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - the receiver decides
                done(None, error)
            else:
                done(result, None)

        self._waiting.append(run)

    def run(self) -> bool:
        """Run what waits; return whether there was anything."""
        ran = bool(self._waiting)
        while self._waiting:
            self._waiting.popleft()()
        return ran


class _Loops:
    """Gives each subtask its turn; a wake-up needs no record, because `settle` asks all."""

    def loop(self, deployment: TaskDeployment) -> _Loops:
        """Return the loop of a subtask."""
        del deployment
        return self

    def wake(self) -> None:
        """Do nothing."""

    def run(self, subtask: Subtask) -> None:
        """Do nothing: `settle` steps all subtasks."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A complete checkpoint of a job."""

    id: int
    subtasks: tuple[SubtaskSnapshot, ...]


class InProcessJob:
    """One deployment after the other of a job graph."""

    def __init__(self, graph: JobGraph, clock: Clock, folder: Path, root: str, rand: Rand | None = None) -> None:
        """Deploy nothing yet; spilled state goes below `folder`, files of checkpoints to `root`.

        `rand` chooses whose turn it is and how long it lasts; without it subtasks take turns in their order.
        """
        self.graph, self._clock, self._folder = graph, clock, folder
        self._root, self._rand = root, rand
        self._attempt = self._next_checkpoint = 0
        self._later = _Later()
        self._failure: msg.TaskState | None = None
        #: Number of subtasks whose input has ended.
        self._ended = 0
        self._acks: dict[tuple[str, int], SubtaskSnapshot] = {}
        self._declined = ""
        self._runtime: TaskRuntime | None = None
        self._network: MemoryNetwork | None = None

    @property
    def subtasks(self) -> tuple[Subtask, ...]:
        """The subtasks of the present deployment."""
        return () if self._runtime is None else self._runtime.subtasks

    def of(self, vertex: JobVertex) -> list[Subtask]:
        """Return the subtasks of one vertex, in order."""
        return [subtask for subtask in self.subtasks if subtask.deployment.execution.vertex_id == vertex.id]

    @property
    def input_ended(self) -> bool:
        """Whether every subtask has processed all its input."""
        return self._ended == len(self.subtasks)

    # --- deployment -----------------------------------------------------------------------------------------------

    def deploy(self, snapshots: Sequence[SubtaskSnapshot], checkpoint_id: int | None) -> None:
        """Start all subtasks, with the state of a checkpoint; what ran before is dropped as by a crash."""
        self.close()
        self._attempt += 1
        self._failure, self._ended = None, 0
        self._network = MemoryNetwork(_WORKER, MemoryTransport(), self._clock)
        environment = TaskEnvironment(
            worker_id=_WORKER,
            clock=self._clock,
            network=self._network,
            report=self._report,
            background=self._later,
            blocking=self._later,
            slow_calls=SlowCalls(self._clock),
            state_dir=self._folder / str(self._attempt),
        )
        self._runtime = TaskRuntime(environment, _Loops())
        graph = self.graph
        restore = assign_state(graph, snapshots, checkpoint_id=checkpoint_id) if snapshots else None
        placement = {(v.id, i): _WORKER for v in graph.vertices for i in range(v.parallelism)}
        ids = PlanIds(job_id=JOB_ID, run_id=RUN_ID, generation=1, attempt=self._attempt, epoch=self._attempt)
        endpoints = {_WORKER: self._network.endpoint}
        tasks = plan(graph, ids=ids, placement=placement, endpoints=endpoints, restore=restore)
        peers = peers_of(graph, self._attempt, placement, endpoints)
        if peers is not None:
            self._handle(msg.DeployPeers(job_id=JOB_ID, table=encode_peers(peers)))
        self._handle(msg.DeployTasks(job_id=JOB_ID, generation=1, tasks=tuple(map(encode_deployment, tasks))))
        self._assign_splits(restore.splits if restore is not None else None)

    def _assign_splits(self, restored: dict[str, tuple[Any, ...]] | None) -> None:
        for vertex in self.graph.vertices:
            if not vertex.is_source:
                continue
            spec = msgspec.convert(vertex.operators[0].config["source"], SourceSpec)
            known = [] if restored is None else list(restored.get(vertex.operators[0].uid, ()))
            factory: SourceFactory = load_factory(spec.factory)
            enumerator = factory.create_enumerator(spec, first_run=restored is None)
            found = enumerator.discover(frozenset(split["id"] for split in known))
            enumerator.close()
            splits = [*known, *(msgspec.to_builtins(split) for split in found)]
            for subtask in range(vertex.parallelism):
                own = tuple(splits[subtask :: vertex.parallelism])
                self._handle(
                    msg.AssignSplits(
                        job_id=JOB_ID, generation=1, vertex_id=vertex.id, subtask=subtask, attempt=self._attempt,
                        splits=own, no_more=True,
                    )
                )  # fmt: skip

    def close(self) -> None:
        """Drop the present deployment: nothing more is written or published."""
        if self._runtime is None or self._network is None:
            return
        self._handle(msg.CancelTasks(job_id=JOB_ID, generation=1))
        self._turns_of(_ENDLESS)
        self._network.close()
        self._runtime = self._network = None
        self._later.run()

    # --- running ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Process everything that can be processed now.

        Raises:
            JobFailedError: a subtask failed, with the traceback of the user's function.
        """
        real = SystemClock()
        until_ms = real.monotonic_ms() + _ASYNC_LIMIT_MS
        quiet = 0
        while quiet < 2:  # the second pass flushes what the first one has put into channels
            quiet = 0 if self.take_turns(_ENDLESS) else quiet + 1
            if quiet == 2 and any(subtask.has_pending_output for subtask in self.subtasks):
                if real.monotonic_ms() > until_ms:
                    text = f"rows of an asynchronous function are not complete after {_ASYNC_LIMIT_MS / 1000:.0f} s"
                    raise PenstockError(text, hint="see what the function waits for")
                quiet = 0
                real.sleep_ms(_ASYNC_POLL_MS)

    def take_turns(self, most_steps: int) -> bool:
        """Give each subtask a turn of at most `most_steps` steps; return whether there was work.

        Raises:
            JobFailedError: a subtask failed, with the traceback of the user's function.
        """
        moved = self._turns_of(most_steps)
        if self._failure is not None:
            raise job_failed(self.graph.name, self._failure.error, self._failure.detail)
        return moved

    def _turns_of(self, most_steps: int) -> bool:
        moved = self._later.run()
        for subtask in self._turns():
            steps = most_steps if self._rand is None else 1 + int(_LONGEST_TURN * self._rand.fraction())
            while steps and subtask.step() is StepResult.BUSY:
                steps, moved = steps - 1, True
        return moved

    def _turns(self) -> tuple[Subtask, ...]:
        rand = self._rand
        return self.subtasks if rand is None else tuple(sorted(self.subtasks, key=lambda _: rand.fraction()))

    def run_steps(self, steps: int) -> None:
        """Let the subtasks make `steps` steps in turn, so that rows, barriers and uploads may be on their way."""
        for number in range(steps):
            subtasks = self._turns()
            subtasks[number % len(subtasks)].step()
            if number % 2:
                self._later.run()

    def watermark(self, vertex: JobVertex, timestamp_us: int) -> None:
        """Have all subtasks of a vertex emit a watermark after the source at their head."""
        for subtask in self.of(vertex):
            subtask.run_in_mailbox(lambda chain, _: chain.emit_watermark(Watermark(timestamp_us)))

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def checkpoint(self, kind: BarrierKind = BarrierKind.CHECKPOINT) -> Checkpoint:
        """Take a checkpoint of all subtasks.

        Raises:
            JobFailedError: a subtask failed. PenstockError: one could not take part; with its reason.
        """
        number = self.begin_checkpoint(kind)
        self.settle()
        if self._declined:
            raise PenstockError(f"a checkpoint of {self.graph.name} failed: {self._declined}")
        if len(self._acks) != len(self.subtasks):
            missing = [s.metric_name for s in self.subtasks if _place(s.deployment) not in self._acks]
            raise PenstockError(f"no answer to a checkpoint from {', '.join(missing)}", hint="this is a bug: report it")
        permit = CommitPermit(
            job_id=JOB_ID, run_id=RUN_ID, generation=1, checkpoint_id=number, manifest_sequence=number
        )
        self._handle(msg.CheckpointCompleted(permit=permit))
        self.settle()
        return Checkpoint(number, tuple(self._acks[place] for place in sorted(self._acks)))

    def begin_checkpoint(self, kind: BarrierKind = BarrierKind.CHECKPOINT) -> int:
        """Process all rows, then have the sources emit a barrier; return the checkpoint's id."""
        self.settle()
        self._next_checkpoint += 1
        self._acks, self._declined = {}, ""
        number = self._next_checkpoint
        self._handle(
            msg.TriggerCheckpoint(job_id=JOB_ID, run_id=RUN_ID, generation=1, checkpoint_id=number, kind=kind.value)
        )
        return number

    def store(self) -> ObjectStore:
        """Return the store of the job's checkpoint files."""
        return open_job_store(self._root, self.graph.name)

    def _handle(self, command: msg.WorkerCommand) -> None:
        assert self._runtime is not None  # noqa: S101 - `deploy` comes first
        self._runtime.handle(command)

    def _report(self, message: msg.WorkerMessage) -> None:
        match message:
            case msg.TaskState(state="FAILED") if self._failure is None:
                self._failure = message
            case msg.InputEnded():
                self._ended += 1
            case msg.CheckpointAcks(acks=acks):
                self._acks.update({(ack.snapshot.vertex_id, ack.snapshot.subtask): ack.snapshot for ack in acks})
            case msg.CheckpointDeclined():
                self._declined = self._declined or message.reason
            case _:
                pass


def _place(deployment: TaskDeployment) -> tuple[str, int]:
    return deployment.execution.vertex_id, deployment.execution.subtask


#: Steps of a turn and the pause without work, if sources run by the real clock.
_TURN_STEPS, _PAUSE_MS = 64, 2.0


class InProcessExecutor:
    """Runs one job in this thread, with its own sources: no checkpoints, no restarts, no other process."""

    def __init__(self, idle_ms: float | None = None) -> None:
        """Stop after `idle_ms` without any row; None: wait for more."""
        self._idle_ms = idle_ms

    def submit(self, graph: JobGraph) -> JobHandle:
        """Refuse: nothing would run the job.

        Raises:
            UsageError: always.
        """
        text = f"job {graph.name!r} cannot be submitted to its own process"
        raise UsageError(text, hint="use env.execute(...)")

    def execute(
        self, graph: JobGraph, *, enough: Callable[[], bool] | None = None, timeout_ms: float | None = None
    ) -> JobResult:
        """Run the job until its input ends, `enough` returns True, rows stop coming, or Ctrl-C.

        Raises:
            UsageError: it has a sink, whose output only checkpoints publish.
            JobFailedError: a subtask failed, with the traceback of the user's function.
            PenstockError: `timeout_ms` passed.
        """
        if any(operator.kind == "sink" for vertex in graph.vertices for operator in vertex.operators):
            text = f"job {graph.name!r} has a sink, and a job in its own process takes no checkpoints"
            raise UsageError(text, hint="use stream.show(), or run it with `penstock run`")
        clock = SystemClock()
        begun_ms = clock.monotonic_ms()
        compile_kernels()
        graph = msgspec.structs.replace(graph, settings=msgspec.structs.replace(graph.settings, buffer_timeout_ms=0))
        with tempfile.TemporaryDirectory(prefix="penstock-in-process-") as folder:
            job = InProcessJob(graph, clock, Path(folder), f"{folder}/checkpoints")
            try:
                limit = CallLimit(graph.name, timeout_ms, lambda: job.subtasks)
                job.deploy((), None)
                # after Ctrl-C the rows so far are the result
                with contextlib.suppress(KeyboardInterrupt), limit.watched():
                    self._run(job, enough, clock)
                state = "FINISHED" if job.input_ended else "CANCELED"
            finally:
                job.close()
        return JobResult(job_id=JOB_ID, name=graph.name, state=state, duration_ms=clock.monotonic_ms() - begun_ms)

    def _run(self, job: InProcessJob, enough: Callable[[], bool] | None, clock: Clock) -> None:
        moved_ms = clock.monotonic_ms()
        while not job.input_ended and not (enough is not None and enough()):
            if job.take_turns(_TURN_STEPS):
                moved_ms = clock.monotonic_ms()
            elif self._idle_ms is not None and clock.monotonic_ms() - moved_ms > self._idle_ms:
                return
            else:
                clock.sleep_ms(_PAUSE_MS)
