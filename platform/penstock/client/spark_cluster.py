"""A cluster with a local JobManager and TaskManagers as tasks on Spark's executors, and jobs that start one.

Each task runs a TaskManager as a child of the executor's Python worker; `sizing` decides their number. TaskManagers
die with their executor, and others are started. When Spark decommissions an executor, jobs leave it first.

Used by `penstock cluster start --provider spark` and `penstock run --engine spark`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.client.executors import SubmitOptions, run_to_end, submit_graph
from penstock.client.handle import TERMINAL, JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.processes import ChildProcess
from penstock.client.sizing import Bounds, ClusterSample, Sizer, fitted
from penstock.client.spark_executors import DecommissionWatch
from penstock.config.security import CA_FILE, CLUSTER_FILES, FOLDER_VARIABLE, SECRET_VARIABLE
from penstock.core.clock import SystemClock
from penstock.core.errors import NotFoundError, PenstockError, UsageError
from penstock.core.rand import SystemRand
from penstock.graph.job_graph import required_slots
from penstock.snapshots.on_spark.spark_context import open_context, reason_of

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark import SparkContext

    from penstock.client.rest_client import RestClient
    from penstock.graph.executor import JobResult
    from penstock.graph.job_graph import JobGraph

#: Speculative copies would duplicate a TaskManager, restarts are decided here, and decommissioned executors wait for
#: their tasks.
SETTINGS = {"spark.speculation": "false", "spark.task.maxFailures": "1", "spark.decommission.enabled": "true"}
_NAME = "spark"
_GROUP = "penstock-taskmanager"
_RECONCILE_SECONDS = 1.0
_POLL_MS = 200.0
_END_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class SparkOptions:
    """Where and how TaskManagers run on Spark."""

    #: For example `local-cluster[2,1,1024]`, `spark://host:7077`, `yarn`, `k8s://https://host:6443`.
    master: str
    bounds: Bounds = field(default_factory=Bounds)
    #: Spark settings in addition to the user's configuration.
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TaskManagerLaunch:
    """The parameters of every task; sent inside the Spark task, because the environment is displayed."""

    jobmanager: str
    slots: int
    secret: str = field(repr=False)
    #: Files of the cluster's security folder, by name.
    security: dict[str, bytes] = field(repr=False)
    insecure: bool = False

    def run_taskmanager(self, number: int, host: str, log: Callable[[str], None]) -> None:
        """Run a TaskManager until it ends.

        Raises:
            PenstockError: the TaskManager failed.
        """
        clock = SystemClock()
        with tempfile.TemporaryDirectory(prefix="penstock-", dir=Path.cwd(), ignore_cleanup_errors=True) as name:
            folder = Path(name)
            child = ChildProcess("taskmanager", self._arguments(number, host, folder), folder, clock, self._env(folder))
            child.start()
            log(f"TaskManager of task {number} on {host} is process {child.pid}")
            try:
                while child.alive:
                    clock.sleep_ms(_POLL_MS)
            finally:
                child.stop()
            if child.process is not None and child.process.returncode == 0:
                return  # released by the JobManager
            raise PenstockError(f"the TaskManager on {host} ended: {child.log_tail()}", hint="see the JobManager's log")

    def _arguments(self, number: int, host: str, folder: Path) -> list[str]:
        return [
            "taskmanager",
            "--jobmanager", self.jobmanager,
            "--slots", str(self.slots),
            # a repeated Spark task needs a new id: the JobManager may still know the first
            "--id", f"{_NAME}-{number}-{SystemRand().token(8)}",
            "--work-dir", str(folder / "tm"),
            "--data-host", host,
            "--insecure", str(self.insecure).lower(),
        ]  # fmt: skip

    def _env(self, folder: Path) -> dict[str, str]:
        # files from Spark (--py-files) are only in this process's path
        environment = {SECRET_VARIABLE: self.secret, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if self.security:
            place = folder / "security"
            place.mkdir(mode=0o700)
            for name, content in self.security.items():
                path = place / name
                path.touch(mode=0o600)
                path.write_bytes(content)
            environment[FOLDER_VARIABLE] = str(place)
        return environment


def launch_for(jobmanager: str, slots: int, secret: str, folder: str, *, insecure: bool) -> TaskManagerLaunch:
    """Return the parameters of TaskManagers of a JobManager with a security folder (empty: none).

    Raises:
        UsageError: a file of the folder cannot be read.
    """
    files = {}
    for name in (CA_FILE, *CLUSTER_FILES) if folder else ():
        try:
            files[name] = (Path(folder) / name).read_bytes()
        except OSError as error:
            msg = f"cannot read {error.filename}: {error.strerror}"
            raise UsageError(msg, hint=f"`penstock cluster certs {folder}` creates it") from error
    return TaskManagerLaunch(jobmanager=jobmanager, slots=slots, secret=secret, security=files, insecure=insecure)


class SparkTaskManagers:
    """The TaskManagers of a cluster on Spark; `close` ends them and Spark."""

    def __init__(
        self,
        options: SparkOptions,
        order: TaskManagerLaunch,
        jobmanager: Callable[[], RestClient],
        on_lost: Callable[[], None],
    ) -> None:
        """Create it without Spark; `jobmanager` returns a client.

        `on_lost` is called, from a thread, when Spark itself has ended.
        """
        self._options = options
        self._order = order
        self._jobmanager = jobmanager
        self._on_lost = on_lost
        self._clock = SystemClock()
        self._stack = contextlib.ExitStack()
        self._context: SparkContext | None = None
        self._reconciler: threading.Thread | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        #: A thread for each TaskManager, by number; it waits for the TaskManager's end.
        self._threads: dict[int, threading.Thread] = {}
        #: Numbers of released TaskManagers that have not ended.
        self._releasing: set[int] = set()
        self._started = 0
        #: Numbers of TaskManagers whose executor is decommissioned.
        self._draining: set[int] = set()
        #: How TaskManagers ended that were not released.
        self._ends: list[str] = []

    def start(self) -> None:
        """Start Spark and the first TaskManagers; return before they have registered.

        Raises:
            UsageError: Spark does not start.
        """
        self._context = self._stack.enter_context(
            open_context(self._options.master, {**SETTINGS, **self._options.settings})
        )
        self._context.setLogLevel("ERROR")
        self._reconciler = threading.Thread(
            target=self._reconcile, args=(self._context,), name="penstock-spark", daemon=True
        )
        self._reconciler.start()

    def check(self) -> None:
        """Raise PenstockError if a TaskManager has ended; called while the first ones are awaited."""
        if self._ends:
            msg = f"TaskManagers cannot start on Spark's executors: {self._ends[-1]}"
            raise PenstockError(msg, hint="each needs penstock, a free core, and access to the JobManager")

    def close(self) -> None:
        """End the TaskManagers and Spark; idempotent."""
        self._closing.set()
        context, self._context = self._context, None
        if self._reconciler is not None:
            self._reconciler.join(_END_SECONDS)  # it starts no further ones
        deadline = self._clock.monotonic_ms() + _END_SECONDS * 1000
        while context is not None and self._threads and self._clock.monotonic_ms() < deadline:
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                for number in tuple(self._threads):  # repeated: a job may reach Spark after the first call
                    context.cancelJobGroup(_group_of(number))
            self._clock.sleep_ms(_POLL_MS)
        self._stack.close()

    def _reconcile(self, context: SparkContext) -> None:
        """Start and release TaskManagers until the end."""
        sizer, watch = Sizer(self._options.bounds), DecommissionWatch(context)
        with self._jobmanager() as client:
            while not self._closing.is_set():
                try:
                    decision = sizer.decide(self._sample(client, watch), self._clock.monotonic_ms())
                    for _ in range(decision.start):
                        self._start_one(context)
                    for name in decision.release:
                        self._release(client, name)
                    for name in decision.drain:
                        self._drain(client, name)
                except PenstockError as error:
                    if not self._closing.is_set():
                        _log(f"retrying the JobManager: {error}")
                except (Py4JError, OSError) as error:  # Spark ends: `_run_on_spark` reports it
                    if not self._closing.is_set():
                        _log(f"Spark's driver does not answer: {reason_of(error)}")
                self._closing.wait(_RECONCILE_SECONDS)

    def _sample(self, client: RestClient, watch: DecommissionWatch) -> ClusterSample:
        # In this order, a TaskManager that registers in between counts as starting and is not started twice.
        managers = {_number_of(manager["id"]): manager for manager in client.taskmanagers()}
        pending = int(client.overview()["slots-pending"])
        with self._lock:
            self._releasing -= managers.keys()  # it registered again before it received its release
            staying = self._threads.keys() - self._releasing
            staying -= self._draining - managers.keys()  # released, and its task has not ended
        starting = len(staying - managers.keys())
        leaving = {n for n in staying & managers.keys() if watch.is_leaving(_group_of(n))}
        free = {managers[n]["id"]: int(managers[n]["freeSlots"]) for n in staying & managers.keys() - leaving}
        return ClusterSample(
            pending=pending, starting=starting, free=free, leaving=tuple(managers[n]["id"] for n in sorted(leaving))
        )

    def _start_one(self, context: SparkContext) -> None:
        number, self._started = self._started, self._started + 1
        thread = threading.Thread(
            target=self._run_on_spark, args=(context, number), name=f"penstock-spark-{number}", daemon=True
        )
        with self._lock:
            self._threads[number] = thread
        thread.start()

    def _release(self, client: RestClient, name: str) -> None:
        try:
            client.release_taskmanager(name)
        except (NotFoundError, UsageError) as error:
            _log(f"TaskManager {name} is not released: {error}")  # a job was faster
            return
        _log(f"TaskManager {name} is released: no job has used it for {self._options.bounds.timeout_ms / 1000:.0f} s")
        with self._lock:
            self._releasing.add(_number_of(name))

    def _drain(self, client: RestClient, name: str) -> None:
        """Move jobs away from a TaskManager whose executor is decommissioned; called until it has ended."""
        number = _number_of(name)
        if number not in self._draining:
            with self._lock:
                self._draining.add(number)
            _log(f"TaskManager {name} is drained: Spark decommissions its executor")
        with contextlib.suppress(NotFoundError):  # it has ended
            client.release_taskmanager(name, drain=True)

    def _run_on_spark(self, context: SparkContext, number: int) -> None:
        """Run one TaskManager on Spark and wait for its end."""
        end = "it was asked to end"
        try:
            context.setJobGroup(_group_of(number), f"TaskManager {number} of penstock", interruptOnCancel=True)
            context.parallelize([number], 1).mapPartitions(_task_of(self._order)).collect()
        except (PySparkException, Py4JError, OSError, EOFError) as error:  # EOFError: the JVM ended during a read
            end = reason_of(error)
            if not self._closing.is_set() and _is_gone(context):
                _log(f"Spark has ended: {end}")
                self._closing.set()  # no TaskManager can be started any longer
                self._ends.append(end)
                self._on_lost()
        with self._lock:
            del self._threads[number]
            released = number in self._releasing | self._draining
            self._releasing.discard(number)
        if not released and not self._closing.is_set():
            self._ends.append(end)
            _log(f"TaskManager {number} on Spark ended: {end}")


def _is_gone(context: SparkContext) -> bool:
    """Return whether Spark has ended: the driver's JVM, or the application by its master."""
    try:
        return bool(context._jsc.sc().isStopped())  # noqa: SLF001 - PySpark has no public call for it
    except (Py4JError, OSError):
        return True


def _task_of(order: TaskManagerLaunch) -> Callable[[Iterable[int]], Iterator[int]]:
    def run(numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            order.run_taskmanager(number, _host_towards(order.jobmanager), _log)
        return iter(())

    return run


def _host_towards(jobmanager: str) -> str:
    """Return this machine's address on the route to the JobManager; other machines of that network can reach it."""
    host, _, port = jobmanager.rpartition(":")
    family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)  # a datagram socket: no packet is sent
        return str(probe.getsockname()[0])


def _group_of(number: int) -> str:
    """Return the Spark job group of one TaskManager."""
    return f"{_GROUP}-{number}"


def _number_of(taskmanager_id: str) -> int:
    """Return the number of a TaskManager that this cluster started; -1 for others."""
    name, _, rest = taskmanager_id.partition("-")
    number = rest.partition("-")[0]
    return int(number) if name == _NAME and number.isdecimal() else -1


def _log(text: str) -> None:
    sys.stderr.write(f"penstock: {text}\n")
    sys.stderr.flush()


#: Time limit for executors: a resource manager may have none free at once, and their JVMs start slowly.
START_TIMEOUT_MS = 900_000.0


class SparkCluster:
    """A context manager for one JobManager and TaskManagers on Spark."""

    def __init__(
        self, config: LocalClusterConfig, spark: SparkOptions, on_lost: Callable[[], None] = lambda: None
    ) -> None:
        """Create the cluster; executors must reach `config.rpc_host`. `on_lost` is called when Spark has ended."""
        self._config = config
        self._spark = spark
        self._on_lost = on_lost
        self.jobmanager = LocalCluster(replace(config, taskmanagers=0))
        self._taskmanagers: SparkTaskManagers | None = None

    @property
    def rest_url(self) -> str:
        """The JobManager's REST URL."""
        return self.jobmanager.rest_url

    @property
    def address(self) -> str:
        """The addresses of all JobManagers, as clients take them."""
        return self.jobmanager.address

    def __enter__(self) -> Self:
        """Start the JobManager and Spark, and wait for the minimum number of TaskManagers.

        Raises:
            PenstockError: the JobManager, Spark or the TaskManagers did not start.
        """
        cluster, spark = self.jobmanager, self._spark
        cluster.start()
        try:
            folder = {**os.environ, **self._config.environment}.get(FOLDER_VARIABLE, "")
            slots, insecure = spark.bounds.slots, self._config.insecure
            order = launch_for(cluster.rpc_address, slots, cluster.secret, folder, insecure=insecure)
            self._taskmanagers = SparkTaskManagers(spark, order, cluster.client, self._on_lost)
            self._taskmanagers.start()
            cluster.wait_registered(spark.bounds.least, self._taskmanagers.check, START_TIMEOUT_MS)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process."""
        self.close()

    def close(self) -> None:
        """End TaskManagers, Spark and the JobManager; idempotent."""
        try:
            if self._taskmanagers is not None:
                self._taskmanagers.close()
        finally:
            self.jobmanager.close()


@dataclass(kw_only=True)
class SparkExecutor:
    """Runs jobs, each with a JobManager here and separate TaskManagers on Spark for its duration.

    A job without an end runs until it is stopped. When this process is lost, everything ends with it; the same
    command resumes the job from its newest checkpoint.
    """

    spark: SparkOptions
    #: Slots of each TaskManager; 0: as many as the job needs on the least number of TaskManagers.
    slots: int = 0
    #: Address at which executors reach the JobManager on this machine.
    host: str = "127.0.0.1"
    insecure: bool = False
    options: SubmitOptions = field(default_factory=SubmitOptions)
    on_poll: Callable[[JobHandle, dict[str, Any]], None] | None = None
    #: Called with the JobManager's address when the cluster runs.
    on_started: Callable[[str], None] = lambda _address: None

    def submit(self, graph: JobGraph) -> JobHandle:
        """Refuse: no process would remain to hold the executors.

        Raises:
            UsageError: always.
        """
        msg = f"--engine spark runs {graph.name} to its end, but env.submit does not wait"
        raise UsageError(msg, hint="use env.execute, or `penstock cluster start --provider spark`")

    def execute(
        self, graph: JobGraph, *, enough: Callable[[], bool] | None = None, timeout_ms: float | None = None
    ) -> JobResult:
        """Start the cluster, run the job to its end, end the cluster.

        Raises:
            UsageError: Spark does not start.
            PenstockError: the job failed or did not end in time, or Spark has ended.
        """
        bounds = fitted(self.spark.bounds, required_slots(graph), self.slots)
        spark = replace(self.spark, bounds=bounds)
        config = LocalClusterConfig(
            rest_host=self.host,
            rpc_host=self.host,
            insecure=self.insecure,
            most_slots=bounds.most * bounds.slots,
        )
        lost = threading.Event()

        def poll(handle: JobHandle, job: dict[str, Any]) -> None:
            if lost.is_set() and job["state"] not in TERMINAL:  # otherwise it would wait for slots forever
                msg = f"job {handle.name} was {job['state']} when Spark ended"
                raise PenstockError(msg, hint="run it again; see Spark's log for the cause")
            if self.on_poll is not None:
                self.on_poll(handle, job)

        with SparkCluster(config, spark, lost.set) as cluster:
            self.on_started(cluster.address)
            handle = submit_graph(cluster.jobmanager.client(), graph, self.options)
            # this cluster ends with the job: commands find it by its URL alone
            return run_to_end(replace(handle, cluster=cluster.address), poll, enough, timeout_ms)
