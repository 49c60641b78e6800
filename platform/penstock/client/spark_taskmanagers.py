"""TaskManagers as barrier tasks on Spark's executors, held for as long as their cluster lives.

The driver's part (`SparkTaskManagers`) starts one barrier stage of as many tasks as there are TaskManagers, and another
whenever one has ended; each task (`hold`) runs one TaskManager as a child of the executor's Python worker. When an
executor is lost its TaskManager dies with it, Spark ends the stage, and the next one brings all of them back: the
JobManager sees TaskManagers leave and others come, which is what it is made for. Used by `spark_cluster`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import BarrierTaskContext
from pyspark.errors import PySparkException

from penstock.client.processes import ChildProcess
from penstock.config.security import CA_FILE, CLUSTER_FILES, FOLDER_VARIABLE, SECRET_VARIABLE
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError, UsageError
from penstock.core.rand import SystemRand
from penstock.snapshots.spark_session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Copies of a TaskManager would be two of them; the check for enough executors waits 40 times as long as this.
SETTINGS = {"spark.speculation": "false", "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "3s"}
_GROUP = "penstock-taskmanagers"
_AGAIN_SECONDS = 1.0
_LOOK_MS = 200.0
_END_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class SparkOptions:
    """Where TaskManagers run."""

    #: e.g. `local-cluster[2,1,1024]`, `spark://host:7077`, `yarn`, `k8s://https://host:6443`.
    master: str
    taskmanagers: int = 2
    #: Of each.
    slots: int = 2
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
        """Run a TaskManager until it ends; ends itself only by being ended, with it.

        Raises:
            PenstockError: the TaskManager has ended.
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
            raise PenstockError(f"the TaskManager on {host} has ended: {child.log_tail()}", hint="see its JobManager")

    def _arguments(self, number: int, host: str, folder: Path) -> list[str]:
        return [
            "taskmanager",
            "--jobmanager", self.jobmanager,
            "--slots", str(self.slots),
            # a task that is run again is another one: the JobManager may still have the first
            "--id", f"spark-{number}-{SystemRand().token(8)}",
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

    def __init__(self, options: SparkOptions, order: TaskManagerOrder, on_lost: Callable[[], None]) -> None:
        """`on_lost` is called, from a thread, when Spark itself is gone: no TaskManager will come any more."""
        self._options = options
        self._order = order
        self._on_lost = on_lost
        self._stack = contextlib.ExitStack()
        self._session: SparkSession | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        #: How the stages before this one ended.
        self._ends: list[str] = []

    def start(self) -> None:
        """Start the session and the first stage; returns before its TaskManagers are there.

        Raises:
            UsageError: Spark does not start.
        """
        self._session = self._stack.enter_context(
            open_session(self._options.master, {**SETTINGS, **self._options.settings})
        )
        self._session.sparkContext.setLogLevel("ERROR")
        self._thread = threading.Thread(target=self._hold, args=(self._session,), name="penstock-spark", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise PenstockError when a stage has ended: for a start, which waits for the first one's TaskManagers."""
        if self._ends:
            msg = f"TaskManagers do not start on Spark's executors: {self._ends[-1]}"
            raise PenstockError(msg, hint="they need penstock, as many free cores as TaskManagers, and the JobManager")

    def close(self) -> None:
        """End the stage, its TaskManagers and the session; idempotent."""
        self._closing.set()
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                session.sparkContext.cancelJobGroup(_GROUP)
        if self._thread is not None:
            self._thread.join(_END_SECONDS)
        self._stack.close()

    def _hold(self, session: SparkSession) -> None:
        context, order = session.sparkContext, self._order
        context.setJobGroup(_GROUP, "TaskManagers of penstock", interruptOnCancel=True)
        count = self._options.taskmanagers
        while not self._closing.is_set():
            try:
                context.parallelize(range(count), count).barrier().mapPartitions(_task_of(order)).collect()
                end = "they were told to end"
            except (PySparkException, Py4JError, OSError) as error:
                end = _reason_of(error)
                if isinstance(error, (Py4JNetworkError, OSError)) and not self._closing.is_set():
                    _log(f"Spark is gone: {end}")
                    self._ends.append(end)
                    self._on_lost()
                    return
            if not self._closing.is_set():
                self._ends.append(end)
                _log(f"TaskManagers on Spark ended, others are started: {end}")
            self._closing.wait(_AGAIN_SECONDS)


def _task_of(order: TaskManagerOrder) -> Callable[[Iterable[int]], Iterator[int]]:
    def run(_numbers: Iterable[int]) -> Iterator[int]:
        context = BarrierTaskContext.get()
        number = context.partitionId()
        order.hold(number, context.getTaskInfos()[number].address.rpartition(":")[0], _log)
        return iter(())

    return run


def _reason_of(error: BaseException) -> str:
    """Return the line that says it: of a task's traceback its own error, else Spark's, else the first."""
    lines = [line.strip(": ") for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(("penstock.", "ModuleNotFoundError"))]
    sparks = [line for line in lines if line.startswith("org.apache.spark")]
    return (said or sparks or lines or [repr(error)])[0]


def _log(text: str) -> None:
    sys.stderr.write(f"penstock: {text}\n")
    sys.stderr.flush()
