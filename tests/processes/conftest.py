"""A supervisor with real templates and workers, in the test's event loop; the test plays the JobManager."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from tests.support.waiting import patience, wait_until

from penstock.config.config_file import TaskManagerSettings
from penstock.config.settings import JobSettings
from penstock.connector.source import SourceSpec
from penstock.core.clock import SystemClock
from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.task_deployment import (
    ChannelId,
    ExecutionId,
    InputChannelSpec,
    InputSpec,
    TaskDeployment,
    encode_deployment,
)
from penstock.rpc.messages import (
    DeployTasks,
    FromWorker,
    Heartbeat,
    HeartbeatAck,
    Registered,
    StartWorker,
    TaskState,
    ToWorker,
    WorkerExited,
    WorkerReady,
    decode_worker_report,
    encode,
)
from penstock.taskmanager.memory_division import divided
from penstock.taskmanager.supervisor import Supervisor, SupervisorConfig

SCHEMA = schema_to_text(pa.schema([("x", pa.int64())]))
PROBE = Path(__file__).parent / "probe"
WAIT_SECONDS = 60
#: More heartbeats than the short lease takes: they are sent every tenth of a second at most.
BEATS = 30


class JobManager:
    """Hears reports, acknowledges heartbeats while `acknowledge` is set."""

    def __init__(self) -> None:
        self.reports = []
        self.acknowledge = True
        self.supervisor = None
        self._news = asyncio.Event()

    def send(self, report):
        self.reports.append(report)
        if isinstance(report, Heartbeat) and self.acknowledge:
            self.supervisor.handle(HeartbeatAck(sequence=report.sequence))
        self._news.set()
        return True

    def expect(self, silence_ms):
        self.silence_ms = silence_ms

    def close(self):
        pass

    async def until(self, find, seconds=WAIT_SECONDS):
        """Return the first true `find(report)`."""
        deadline = time.monotonic() + seconds * patience()
        while True:
            for report in list(self.reports):
                found = find(report)
                if found:
                    return found
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), max(0.001, deadline - time.monotonic()))

    async def lease_over(self):
        """Return when a lease that began before has run out, counted in heartbeats."""
        seen = max((report.sequence for report in self.reports if isinstance(report, Heartbeat)), default=0)
        await self.until(lambda report: isinstance(report, Heartbeat) and report.sequence >= seen + BEATS)

    async def ready(self, worker_id):
        def find(report):
            if isinstance(report, FromWorker) and report.worker_id == worker_id:
                inner = decode_worker_report(report.report)
                return inner if isinstance(inner, WorkerReady) else None
            return None

        return await self.until(find)

    async def probed(self, worker_id):
        """Return what the probe in that worker found."""

        def find(report):
            if isinstance(report, FromWorker) and report.worker_id == worker_id:
                inner = decode_worker_report(report.report)
                return inner.error or None if isinstance(inner, TaskState) else None
            return None

        return await self.until(find)

    async def exited(self, worker_id):
        return await self.until(
            lambda report: report if isinstance(report, WorkerExited) and report.worker_id == worker_id else None
        )


class Stage:
    """One supervisor and its JobManager."""

    #: A lease that no busy machine lets run out, and one for a test that waits for its end.
    LEASE_MS, SHORT_LEASE_MS = 60_000, 2_500

    def __init__(self, work_dir, **options) -> None:
        self.jobmanager = JobManager()
        options = {"memory": divided(TaskManagerSettings(), 4, 64 << 30, "--memory"), **options}
        config = SupervisorConfig(taskmanager_id="tm", work_dir=work_dir, **options)
        self.supervisor = Supervisor(config, SystemClock(), lambda text: print("TM:", text, file=sys.stderr))
        self.jobmanager.supervisor = self.supervisor
        self.supervisor.connect(self.jobmanager)

    async def open(self):
        await self.supervisor.prepare()
        self.register()
        self.running = asyncio.ensure_future(self.supervisor.run())

    def register(self, lease_ms=LEASE_MS):
        """Begin a new stream."""
        self.supervisor.registration()
        registered = Registered(jobmanager_id="jm", generation=1, heartbeat_interval_ms=100, worker_lease_ms=lease_ms)
        self.supervisor.handle(registered)

    async def close(self):
        await self.supervisor.close()
        await self.running

    def start(self, worker_id, slot=0, **options):
        command = {"requirements": (), "python_path": (str(PROBE),), "managed_memory_bytes": 1 << 26, **options}
        self.supervisor.handle(StartWorker(worker_id=worker_id, job_id="job", slot=slot, **command))

    def open_channels(self, worker_id, count):
        """Let the worker run a subtask with so many input channels, on which nothing arrives."""
        channels = tuple(InputChannelSpec(ChannelId(0, n, 0, 1), worker_id, "") for n in range(count))
        inputs = (InputSpec(input_index=0, schema=SCHEMA, channels=channels),)
        head = OperatorSpec(uid="print", name="print", kind="print", config={"name": "x"}, output_schema=SCHEMA)
        task = msgspec.structs.replace(deployment(""), operators=(head,), inputs=inputs)
        message = DeployTasks(job_id="job", generation=1, tasks=(encode_deployment(task),))
        self.supervisor.handle(ToWorker(worker_ids=(worker_id,), command=encode(message)))

    def probe(self, worker_id, run):
        """Let the worker run one of the probe's functions."""
        message = DeployTasks(job_id="job", generation=1, tasks=(encode_deployment(deployment(run)),))
        self.supervisor.handle(ToWorker(worker_ids=(worker_id,), command=encode(message)))


def deployment(run: str) -> TaskDeployment:
    spec = SourceSpec(factory="worker_probe:ProbeFactory", config={"run": run}, schema=SCHEMA, bounded=True)
    operator = OperatorSpec(
        uid="probe", name="probe", kind="source", config={"source": msgspec.to_builtins(spec)}, output_schema=SCHEMA
    )
    return TaskDeployment(
        job_id="job",
        job_name="job",
        run_id="run",
        generation=1,
        execution=ExecutionId("vertex", 0, 1),
        vertex_name="probe",
        parallelism=1,
        hash_low=HASH_MIN,
        hash_high=HASH_MAX,
        operators=(operator,),
        inputs=(),
        outputs=(),
        settings=JobSettings(checkpoint_root="memory://probe"),
    )


@pytest.fixture
async def stage(tmp_path):
    made = Stage(tmp_path)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def stage_with(tmp_path):
    return lambda **options: Stage(tmp_path, **options)


def alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


@pytest.fixture
def gone():
    """Wait until none of the processes lives; they are killed where that fails."""

    def wait(pids):
        try:
            wait_until(lambda: not any(map(alive, pids)), lambda: f"the end of {[pid for pid in pids if alive(pid)]}")
        finally:
            for pid in filter(alive, pids):
                os.kill(pid, signal.SIGKILL)

    return wait
