"""Workers in one thread: scripted operators, network and store in memory, background work done when the test says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.checkpoint.memory_store import MemoryStore
from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import MAX_TIMESTAMP, Batch, Watermark
from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.core.permits import CommitPermit
from penstock.core.schema import schema_to_text
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, OperatorStateSnapshot, Segment
from penstock.graph.job_graph import OperatorSpec, Rebalance
from penstock.graph.task_deployment import (
    ChannelId,
    ExecutionId,
    InputChannelSpec,
    InputSpec,
    OutputChannelSpec,
    OutputSpec,
    TaskDeployment,
    encode_deployment,
)
from penstock.network.simulated_network import MemoryNetwork, MemoryTransport
from penstock.operators.operator import Capabilities, Operator, OperatorSnapshot, StagedOutput
from penstock.rpc.messages import (
    CheckpointAborted,
    CheckpointAck,
    CheckpointAcks,
    CheckpointCompleted,
    DeployTasks,
    FinishTasks,
    InputEnded,
    NetworkNeed,
    TaskState,
    TriggerCheckpoint,
)
from penstock.state.log.segments import EncodedSegment
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.task.chain.background import SlowCalls
from penstock.task.chain.environment import TaskEnvironment
from penstock.task.drive.runtime import TaskRuntime
from penstock.task.drive.subtask import StepResult, Subtask

SCHEMA = pa.schema([pa.field("x", pa.int64())])
TEXT = schema_to_text(SCHEMA)


def rows(*values: int) -> Batch:
    return Batch(pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA))


class SubtaskLoop:
    """Steps only when the test says."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def run(self, subtask: Subtask) -> None:
        self._driver.subtasks.append(subtask)


@dataclass
class Driver:
    subtasks: list[Subtask] = field(default_factory=list)

    def loop(self, deployment: TaskDeployment) -> SubtaskLoop:
        return SubtaskLoop(self)


@dataclass
class Deferred:
    """Background work that waits for the test."""

    waiting: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], object]]] = field(
        default_factory=deque
    )

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], object]) -> None:
        self.waiting.append((work, done))

    def run_one(self) -> None:
        work, done = self.waiting.popleft()
        try:
            result, error = work(), None
        except Exception as failure:
            result, error = None, failure
        done(result, error)

    def run_all(self) -> None:
        while self.waiting:
            self.run_one()


class Source(Operator):
    """Emits what the test puts into `script`: batches, watermarks, statuses; ends when `ended` is set."""

    def __init__(self) -> None:
        self.script: deque[Any] = deque()
        self.ended = False
        self.suspended = False
        self.polled_backpressured = 0
        self.splits: list[Any] = []
        self.position = 0
        self._finished = False
        self.drained = False

    def open(self, context):
        return Capabilities(source=self)

    def poll(self, out, *, backpressured):
        if backpressured:
            self.polled_backpressured += 1
            return False
        if self.suspended:
            return False
        if self.script:
            item = self.script.popleft()
            if isinstance(item, Batch):
                self.position += item.num_rows
                out.batch(item)
            elif isinstance(item, Watermark):
                out.watermark(item)
            else:
                out.status(item)
            return True
        if self.ended and not self._finished:
            out.watermark(Watermark(MAX_TIMESTAMP))
            self._finished = True
        return False

    @property
    def finished(self):
        return self._finished

    def add_splits(self, splits, *, no_more):
        self.splits += splits

    def suspend(self):
        self.suspended = True

    def process_batch(self, batch, input_index, out):
        raise AssertionError

    def snapshot(self, barrier, out):
        return OperatorSnapshot(
            operator=(OperatorStateSnapshot(uid="source", name="position", mode="list", items=(self.position,)),)
        )


def encoded_segment(position, data, tier=0):
    """Return a segment of one row that is ready for upload."""
    spans = {"hash_min": 0, "hash_max": 0, "namespace_min": 0, "namespace_max": 0}
    return EncodedSegment(Segment(file=FileRef(), position=position, writer="", rows=1, tier=tier, **spans), data)


class Frozen:
    """A frozen state of `Sink`'s log: one segment a freeze, offered until it is durable."""

    def __init__(self, log: dict[int, Any], upto: int, pages: int, memory_bytes: int) -> None:
        self.log = log
        self.upto = upto
        self.pages = pages
        self.memory_bytes = memory_bytes

    def copy_pages(self, limit):
        self.pages -= limit
        return self.pages <= 0

    def encode(self):
        return tuple(
            encoded_segment(p, data) for p, data in self.log.items() if p <= self.upto and isinstance(data, bytes)
        )

    def durable(self, files):
        for position, ref in files.items():
            self.log[position] = ref

    def snapshot(self):
        refs = {p: ref for p, ref in self.log.items() if p <= self.upto}
        assert not any(isinstance(ref, bytes) for ref in refs.values()), "acked before durable"
        segments = tuple(
            Segment(file=ref, position=p, writer="w", rows=1, hash_min=0, hash_max=0, namespace_min=0, namespace_max=0)
            for p, ref in refs.items()
        )
        return KeyedStateSnapshot(
            uid="sink", state="s", schema="", hash_low=HASH_MIN, hash_high=HASH_MAX, segments=segments
        )


class Sink(Operator):
    """Records what it is given; keeps a state log and staged output as the test configures."""

    available = True

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.fail_on: Any = None
        self.publishing = self.has_unpublished = False
        self.state_size = 0
        self.pages = 1
        self.frozen_bytes = 100
        self.log: dict[int, Any] = {}
        self.staged: dict[str, StagedOutput] = {}
        self.closed = 0

    def open(self, context):
        self.context = context
        return Capabilities(available=lambda: self.available, publishing=self)

    def process_batch(self, batch, input_index, out):
        for value in batch.data.column(0).to_pylist():
            if value == self.fail_on:
                raise ValueError(f"cannot take {value}")
            self.seen.append(value)

    def process_watermark(self, watermark, out):
        self.seen.append(("watermark", watermark.timestamp))

    def process_status(self, status, out):
        self.seen.append(("idle", status.idle))

    def snapshot(self, barrier, out):
        self.seen.append(("barrier", barrier.checkpoint_id))
        keyed = ()
        if self.state_size:
            position = len(self.log) + 1
            self.log[position] = bytes([position]) * self.state_size
            keyed = (Frozen(self.log, position, self.pages, self.frozen_bytes),)
        return OperatorSnapshot(keyed=keyed, staged=tuple(self.staged.values()))

    def staged_written(self, committable):
        self.seen.append(("written", committable.id, len(committable.files)))
        self.staged.pop(committable.id, None)

    def notify_complete(self, permit):
        self.seen.append(("complete", permit.checkpoint_id))

    def notify_aborted(self, checkpoint_id):
        self.seen.append(("aborted", checkpoint_id))

    def finish(self, out):
        self.seen.append("finish")

    def close(self):
        self.closed += 1


class World:
    """`sources` source subtasks in one worker, one sink subtask in another."""

    def __init__(
        self,
        sources: int = 1,
        settings: JobSettings | None = None,
        network_memory_bytes: int | None = None,
        state_dir: Path = Path("state"),
        limits: StateLimits = PRODUCTION,
    ) -> None:
        self.network_memory_bytes, self.state_dir, self.limits = network_memory_bytes, state_dir, limits
        self.clock = ManualClock()
        self.transport = MemoryTransport()
        self.store = MemoryStore("unit")
        self.background = Deferred()
        self.blocking = Deferred()
        self.reports: list[Any] = []
        self.needs: list[NetworkNeed] = []
        self.settings = settings or JobSettings(checkpoint_root="memory://unit", buffer_timeout_ms=0)
        self.sources = [Source() for _ in range(sources)]
        self.sink = Sink()
        self._new = {"source": deque(self.sources), "sink": deque([self.sink])}
        self.workers = {name: self._worker(name) for name in ("w-source", "w-sink")}

    def _worker(self, name: str) -> tuple[TaskRuntime, Driver]:
        environment = TaskEnvironment(
            worker_id=name,
            clock=self.clock,
            network=MemoryNetwork(name, self.transport, self.clock),
            report=self._report,
            background=self.background,
            blocking=self.blocking,
            slow_calls=SlowCalls(self.clock),
            network_memory_bytes=self.network_memory_bytes,
            tell_need=self.needs.append,
            state_dir=self.state_dir,
            limits=self.limits,
            open_store=lambda _uri: self.store,
            create_operator=lambda kind: self._new[kind].popleft(),
        )
        driver = Driver()
        return TaskRuntime(environment, driver), driver

    def _report(self, report: Any) -> None:
        self.reports += report.acks if isinstance(report, CheckpointAcks) else [report]

    def deployment(self, vertex: str, subtask: int) -> TaskDeployment:
        count = len(self.sources)
        channel = [ChannelId(0, n, 0, 1) for n in range(count)]
        inputs: tuple[InputSpec, ...] = ()
        outputs: tuple[OutputSpec, ...] = ()
        if vertex == "sink":
            channels = tuple(InputChannelSpec(c, "w-source", "memory:w-source") for c in channel)
            inputs = (InputSpec(input_index=0, schema=TEXT, channels=channels),)
        else:
            to = (OutputChannelSpec(channel[subtask], "w-sink", "memory:w-sink"),)
            outputs = (OutputSpec(partitioner=Rebalance(), schema=TEXT, channels=to),)
        return TaskDeployment(
            job_id="job",
            job_name="name",
            run_id="run",
            generation=1,
            execution=ExecutionId(vertex, subtask, 1),
            vertex_name=vertex,
            parallelism=count if vertex == "source" else 1,
            hash_low=HASH_MIN,
            hash_high=HASH_MAX,
            operators=(OperatorSpec(uid=vertex, name=vertex, kind=vertex, output_schema=TEXT),),
            inputs=inputs,
            outputs=outputs,
            settings=self.settings,
        )

    def deploy(self, **changes: Any) -> None:
        import msgspec

        for vertex, count in (("source", len(self.sources)), ("sink", 1)):
            tasks = tuple(
                encode_deployment(msgspec.structs.replace(self.deployment(vertex, n), **changes)) for n in range(count)
            )
            self.runtime(vertex).handle(DeployTasks(job_id="job", generation=1, tasks=tasks))

    def runtime(self, vertex: str) -> TaskRuntime:
        return self.workers[f"w-{vertex}"][0]

    def subtasks(self, vertex: str) -> list[Subtask]:
        return self.workers[f"w-{vertex}"][1].subtasks

    def settle(self, *, background: bool = True, limit: int = 10_000) -> None:
        """Step everything until nothing moves."""
        for _ in range(limit):
            moved = False
            for _, driver in self.workers.values():
                for subtask in driver.subtasks:
                    moved |= subtask.step() is StepResult.BUSY
            moved |= bool(self.transport.pump_all())
            if background and (self.background.waiting or self.blocking.waiting):
                self.background.run_all()
                self.blocking.run_all()
                moved = True
            if not moved:
                return
        raise AssertionError("never settles")

    def trigger(self, checkpoint_id: int, kind: str = "checkpoint") -> None:
        message = TriggerCheckpoint(job_id="job", run_id="run", generation=1, checkpoint_id=checkpoint_id, kind=kind)
        self.runtime("source").handle(message)

    def complete(self, checkpoint_id: int, generation: int = 1) -> None:
        permit = CommitPermit(
            job_id="job", run_id="run", generation=generation, checkpoint_id=checkpoint_id, manifest_sequence=1
        )
        self.broadcast(CheckpointCompleted(permit=permit))

    def abort(self, checkpoint_id: int) -> None:
        self.broadcast(CheckpointAborted(job_id="job", run_id="run", generation=1, checkpoint_id=checkpoint_id))

    def finish(self) -> None:
        self.broadcast(FinishTasks(job_id="job", generation=1))

    def broadcast(self, message: Any) -> None:
        for runtime, _ in self.workers.values():
            runtime.handle(message)

    def of(self, kind: type) -> list[Any]:
        return [report for report in self.reports if isinstance(report, kind)]

    def acks(self, vertex: str) -> list[CheckpointAck]:
        return [ack for ack in self.of(CheckpointAck) if ack.snapshot.vertex_id == vertex]

    def states(self, vertex: str, subtask: int = 0) -> list[str]:
        return [s.state for s in self.of(TaskState) if (s.vertex_id, s.subtask) == (vertex, subtask)]

    def ended(self) -> list[str]:
        return [report.vertex_id for report in self.of(InputEnded)]


@pytest.fixture
def world():
    return World


@pytest.fixture
def batch_of():
    return rows
