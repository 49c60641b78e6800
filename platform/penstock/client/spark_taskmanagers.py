"""TaskManagers as tasks on Spark's executors, as many as jobs need, for as long as their cluster lives.

The driver's part (`SparkTaskManagers`) runs one job of Spark, of one task, for each TaskManager; the task (`hold`) runs
the TaskManager as a child of the executor's Python worker. When an executor is lost the TaskManagers on it die with it,
and others are started: the JobManager sees TaskManagers leave and others come, which is what it is made for. How many
there should be is decided by `sizing`. Used by `spark_cluster`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.client.processes import ChildProcess
from penstock.client.sizing import Bounds, Look, Sizer
from penstock.config.security import CA_FILE, CLUSTER_FILES, FOLDER_VARIABLE, SECRET_VARIABLE
from penstock.core.clock import SystemClock
from penstock.core.errors import NotFoundError, PenstockError, UsageError
from penstock.core.rand import SystemRand
from penstock.snapshots.on_spark.spark_session import open_session, reason_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from penstock.client.rest_client import RestClient

#: Copies of a TaskManager would be two of them, and whether one is started again is decided here.
SETTINGS = {"spark.speculation": "false", "spark.task.maxFailures": "1"}
_NAME = "spark"
_GROUP = "penstock-taskmanagers"
_AGAIN_SECONDS = 1.0
_LOOK_MS = 200.0
_END_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class SparkOptions:
    """Where TaskManagers run."""

    #: e.g. `local-cluster[2,1,1024]`, `spark://host:7077`, `yarn`, `k8s://https://host:6443`.
    master: str
    bounds: Bounds = field(default_factory=Bounds)
    #: Settings of Spark, on top of the user's configuration.
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TaskManagerOrder:
    """What every task is told; it goes to the executors inside Spark's task, not in the environment it shows."""

    jobmanager: str
    slots: int
    secret: str = field(repr=False)
    #: Files of the folder that protects the cluster, by name.
    security: dict[str, bytes] = field(repr=False)
    insecure: bool = False

    def hold(self, number: int, host: str, log: Callable[[str], None]) -> None:
        """Run a TaskManager until it is told to end, or with its end.

        Raises:
            PenstockError: the TaskManager has failed.
        """
        clock = SystemClock()
        with tempfile.TemporaryDirectory(prefix="penstock-", dir=Path.cwd(), ignore_cleanup_errors=True) as name:
            folder = Path(name)
            child = ChildProcess("taskmanager", self._arguments(number, host, folder), folder, clock, self._env(folder))
            child.start()
            log(f"TaskManager of task {number} on {host} is process {child.pid}")
            try:
                while child.alive:
                    clock.sleep_ms(_LOOK_MS)
            finally:
                child.stop()
            if child.process is not None and child.process.returncode == 0:
                return  # the JobManager has released it
            raise PenstockError(f"the TaskManager on {host} has ended: {child.log_tail()}", hint="see its JobManager")

    def _arguments(self, number: int, host: str, folder: Path) -> list[str]:
        return [
            "taskmanager",
            "--jobmanager", self.jobmanager,
            "--slots", str(self.slots),
            # a task that Spark runs again is another one: the JobManager may still have the first
            "--id", f"{_NAME}-{number}-{SystemRand().token(8)}",
            "--work-dir", str(folder / "tm"),
            "--data-host", host,
            "--insecure", str(self.insecure).lower(),
        ]  # fmt: skip

    def _env(self, folder: Path) -> dict[str, str]:
        # files that Spark brought (--py-files) are in this process's path alone
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


def order_for(jobmanager: str, slots: int, secret: str, folder: str, *, insecure: bool) -> TaskManagerOrder:
    """Return the order for TaskManagers of a JobManager that the folder protects; empty: none does.

    Raises:
        UsageError: a certificate of the folder cannot be read.
    """
    files = {}
    for name in (CA_FILE, *CLUSTER_FILES) if folder else ():
        try:
            files[name] = (Path(folder) / name).read_bytes()
        except OSError as error:
            msg = f"{error.filename} cannot be read: {error.strerror}"
            raise UsageError(msg, hint=f"`penstock cluster certs {folder}` makes it") from error
    return TaskManagerOrder(jobmanager=jobmanager, slots=slots, secret=secret, security=files, insecure=insecure)


class SparkTaskManagers:
    """Starts with `start`; `close` ends the TaskManagers and the session."""

    def __init__(
        self,
        options: SparkOptions,
        order: TaskManagerOrder,
        jobmanager: Callable[[], RestClient],
        on_lost: Callable[[], None],
    ) -> None:
        """`jobmanager` gives a client of it. `on_lost` is called, from a thread, when Spark itself is gone."""
        self._options = options
        self._order = order
        self._jobmanager = jobmanager
        self._on_lost = on_lost
        self._clock = SystemClock()
        self._stack = contextlib.ExitStack()
        self._session: SparkSession | None = None
        self._keeper: threading.Thread | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        #: By number; a thread waits for the end of its TaskManager.
        self._held: dict[int, threading.Thread] = {}
        #: Numbers of those that were released and have not ended.
        self._leaving: set[int] = set()
        self._started = 0
        #: How TaskManagers ended that were not told to.
        self._ends: list[str] = []

    def start(self) -> None:
        """Start the session and the first TaskManagers; returns before they are there.

        Raises:
            UsageError: Spark does not start.
        """
        self._session = self._stack.enter_context(
            open_session(self._options.master, {**SETTINGS, **self._options.settings})
        )
        self._session.sparkContext.setLogLevel("ERROR")
        self._keeper = threading.Thread(target=self._keep, args=(self._session,), name="penstock-spark", daemon=True)
        self._keeper.start()

    def check(self) -> None:
        """Raise PenstockError when a TaskManager has ended: for a start, which waits for the first ones."""
        if self._ends:
            msg = f"TaskManagers do not start on Spark's executors: {self._ends[-1]}"
            raise PenstockError(msg, hint="they need penstock, as many free cores as TaskManagers, and the JobManager")

    def close(self) -> None:
        """End the TaskManagers and the session; idempotent."""
        self._closing.set()
        session, self._session = self._session, None
        if self._keeper is not None:
            self._keeper.join(_END_SECONDS)  # it starts no more
        deadline = self._clock.monotonic_ms() + _END_SECONDS * 1000
        while session is not None and self._held and self._clock.monotonic_ms() < deadline:
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                session.sparkContext.cancelJobGroup(_GROUP)  # again: a job may come to Spark behind the first time
            self._clock.sleep_ms(_LOOK_MS)
        self._stack.close()

    def _keep(self, session: SparkSession) -> None:
        """Start and release TaskManagers until the end."""
        sizer = Sizer(self._options.bounds)
        with self._jobmanager() as client:
            while not self._closing.is_set():
                try:
                    decision = sizer.decide(self._look(client), self._clock.monotonic_ms())
                    for _ in range(decision.start):
                        self._start_one(session)
                    for name in decision.release:
                        self._release(client, name)
                except PenstockError as error:
                    if not self._closing.is_set():
                        _log(f"the JobManager is asked again: {error}")
                self._closing.wait(_AGAIN_SECONDS)

    def _look(self, client: RestClient) -> Look:
        # In this order: whoever registers meanwhile counts as starting, and is not started twice.
        managers = {_number_of(manager["id"]): manager for manager in client.taskmanagers()}
        pending = int(client.overview()["slots-pending"])
        with self._lock:
            self._leaving -= managers.keys()  # it registered anew before it heard of its release
            staying = self._held.keys() - self._leaving
        free = {manager["id"]: int(manager["freeSlots"]) for n, manager in managers.items() if n in staying}
        return Look(pending=pending, starting=len(staying - managers.keys()), free=free)

    def _start_one(self, session: SparkSession) -> None:
        number, self._started = self._started, self._started + 1
        thread = threading.Thread(
            target=self._hold, args=(session, number), name=f"penstock-spark-{number}", daemon=True
        )
        with self._lock:
            self._held[number] = thread
        thread.start()

    def _release(self, client: RestClient, name: str) -> None:
        try:
            client.release_taskmanager(name)
        except (NotFoundError, UsageError) as error:
            _log(f"TaskManager {name} is not released: {error}")  # a job was faster
            return
        _log(f"TaskManager {name} is released: no job has used it for {self._options.bounds.timeout_ms / 1000:.0f} s")
        with self._lock:
            self._leaving.add(_number_of(name))

    def _hold(self, session: SparkSession, number: int) -> None:
        """Wait for the end of one TaskManager on Spark."""
        context, end = session.sparkContext, "it was told to end"
        try:
            context.setJobGroup(_GROUP, "TaskManagers of penstock", interruptOnCancel=True)
            context.parallelize([number], 1).mapPartitions(_task_of(self._order)).collect()
        except (PySparkException, Py4JError, OSError, EOFError) as error:  # the last: the JVM ended while it was read
            end = reason_of(error)
            if not self._closing.is_set() and _is_gone(context):
                _log(f"Spark is gone: {end}")
                self._closing.set()  # nothing can be started any more
                self._ends.append(end)
                self._on_lost()
        with self._lock:
            del self._held[number]
            released = number in self._leaving
            self._leaving.discard(number)
        if not released and not self._closing.is_set():
            self._ends.append(end)
            _log(f"TaskManager {number} on Spark ended: {end}")


def _is_gone(context: SparkContext) -> bool:
    """Return whether nothing can be started any more: the driver's JVM has ended, or its master has ended Spark."""
    try:
        return bool(context._jsc.sc().isStopped())  # noqa: SLF001 - PySpark does not tell it
    except (Py4JError, OSError):
        return True


def _task_of(order: TaskManagerOrder) -> Callable[[Iterable[int]], Iterator[int]]:
    def run(numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            order.hold(number, _host_towards(order.jobmanager), _log)
        return iter(())

    return run


def _host_towards(jobmanager: str) -> str:
    """Return the address with which this machine goes to the JobManager, where those who reach it reach us."""
    host, _, port = jobmanager.rpartition(":")
    family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)  # of a datagram's socket: nothing is sent
        return str(probe.getsockname()[0])


def _number_of(taskmanager_id: str) -> int:
    """Return the number of one of ours; -1 for one that somebody else has started."""
    name, _, rest = taskmanager_id.partition("-")
    number = rest.partition("-")[0]
    return int(number) if name == _NAME and number.isdecimal() else -1


def _log(text: str) -> None:
    sys.stderr.write(f"penstock: {text}\n")
    sys.stderr.flush()
