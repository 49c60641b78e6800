"""A whole cluster on this machine.

One JobManager and some TaskManagers as processes, watched and restarted when they die.

Used by the embedded executor (`penstock run`, `penstock demo`), the process-level tests and `penstock cluster start`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penstock.client.access import access_of
from penstock.client.kernels import compile_kernels
from penstock.client.ports import free_port
from penstock.client.processes import ChildProcess
from penstock.client.rest_client import RestClient
from penstock.config.security import SECRET_VARIABLE
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import PenstockError
from penstock.core.rand import SystemRand

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_WATCH_MS = 50.0
#: A busy machine takes more than a minute to import what a TaskManager needs.
_REGISTER_TIMEOUT_MS = 300_000
_MAX_RESTARTS = 20
#: Below those of outgoing connections and of the servers that tests start.
RPC_PORTS = range(10_000, 20_000)


@dataclass(frozen=True, kw_only=True)
class LocalClusterConfig:
    """Shape of a local cluster."""

    taskmanagers: int = 2
    #: None: said later (`offer`), when the job's graph is known.
    slots_per_taskmanager: int | None = 1
    #: Folder for logs, HA records and artifacts; None = a temporary one, removed at the end.
    directory: Path | None = None
    rest_port: int = 0
    #: Where REST listens.
    rest_host: str = "127.0.0.1"
    #: Where the JobManager listens for TaskManagers, and they dial; those of this class are on this machine anyway.
    rpc_host: str = "127.0.0.1"
    #: Let it listen there without certificates and tokens.
    insecure: bool = False
    #: Where leadership and job records live; None = `<directory>/ha`.
    ha_root: str | None = None
    #: Hosts that the TaskManagers claim to be on, in turn: between two of them rows go by TCP. Empty: all are on one.
    data_hosts: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    restart_dead: bool = True
    #: Where the JobManager listens for TaskManagers; 0: a free port.
    rpc_port: int = 0
    #: `host:port` that TaskManagers dial instead, such as that of a proxy; empty: where the JobManager listens.
    rpc_dialled: str = ""
    #: Slots that it will have at most: a larger job is refused. 0: more may come.
    most_slots: int = 0


class LocalCluster:
    """Start with `start()` or as a context manager; `close()` ends every process."""

    def __init__(self, config: LocalClusterConfig, clock: Clock | None = None) -> None:
        """Nothing is started yet."""
        self._config = config
        self._clock = clock or SystemClock()
        self._temporary = config.directory is None
        self.directory = config.directory or Path(tempfile.mkdtemp(prefix="penstock-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.jobmanager: ChildProcess | None = None
        self.taskmanagers: list[ChildProcess] = []
        self.rest_url = ""
        #: `host:port` that TaskManagers dial.
        self.rpc_address = ""
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self.restarts: list[str] = []
        self._slots = config.slots_per_taskmanager
        #: Of this cluster alone: its processes inherit it, whatever folder protects them besides.
        self.secret = SystemRand().token(64)
        #: Children that have been ready once.
        self._begun: set[str] = set()

    def __enter__(self) -> Self:
        """Start and return self."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process."""
        self.close()

    def start(self) -> None:
        """Start all processes at once and wait until every TaskManager is registered."""
        self.launch()
        try:
            self.wait_for_jobmanager()
            self.wait_registered(self._config.taskmanagers, self.check)
        except BaseException:
            self.give_up()
            raise

    def launch(self) -> None:
        """Start all processes and wait for none; the first time on a machine, when the kernels are compiled.

        Raises:
            PenstockError: the kernels cannot be compiled.
        """
        compile_kernels()
        port = self._config.rpc_port or free_port(self._config.rpc_host, RPC_PORTS, SystemRand())
        self.rpc_address = f"{self._config.rpc_host}:{port}"
        self._start_jobmanager()
        for index in range(self._config.taskmanagers):
            child = self._child(f"taskmanager-{index}", self._taskmanager_arguments(index))
            child.listens = self._slots is None
            child.start()
            self.taskmanagers.append(child)

    def offer(self, slots: int) -> None:
        """Say how many slots each TaskManager has, of a cluster that was launched without that knowledge."""
        self._slots = slots
        for index, child in enumerate(self.taskmanagers):
            child.tell(str(slots))
            child.listens, child.arguments = False, self._taskmanager_arguments(index)

    def wait_for_jobmanager(self) -> None:
        """Return when jobs can be submitted; from now on dead processes are started again.

        Raises:
            PenstockError: the JobManager did not start.
        """
        assert self.jobmanager is not None  # noqa: S101 - `launch` comes first
        self.rest_url = json.loads(self.jobmanager.wait_ready())["rest"]
        # A restarted JobManager must be found under the same addresses.
        self.jobmanager.arguments = self._jobmanager_arguments(self.rest_url.rpartition(":")[2])
        if self._config.restart_dead and self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="penstock-cluster-watch", daemon=True)
            self._watcher.start()

    def check(self) -> None:
        """Look whether every TaskManager runs or is being started again.

        Raises:
            PenstockError: one ended before it was ready for the first time.
        """
        for child in self.taskmanagers:
            if child.was_ready:
                self._begun.add(child.name)
            elif not child.alive and child.name not in self._begun:
                msg = f"{child.name} ended while starting: {child.log_tail()}"
                raise PenstockError(msg, hint=f"its log is {child.log_file}")

    def give_up(self) -> None:
        """End every process and keep the logs, which an error names."""
        self._temporary = False
        self.close()

    def client(self) -> RestClient:
        """Return a new client of this cluster, with the rights its processes' environment gives."""
        return RestClient(self.rest_url, access=access_of({**os.environ, **self._config.environment}))

    def close(self) -> None:
        """End every process; idempotent."""
        self._closing.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(timeout=5)
        children = [*self.taskmanagers, *([] if self.jobmanager is None else [self.jobmanager])]
        for child in children:
            child.ask_to_end()
        for child in children:
            child.stop()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _child(self, name: str, arguments: list[str]) -> ChildProcess:
        environment = {SECRET_VARIABLE: self.secret, **self._config.environment}
        return ChildProcess(name, arguments, self.directory, self._clock, environment)

    def _start_jobmanager(self) -> None:
        self.jobmanager = self._child("jobmanager", self._jobmanager_arguments(str(self._config.rest_port)))
        self.jobmanager.start()

    def _jobmanager_arguments(self, rest_port: str) -> list[str]:
        ha_root = self._config.ha_root or str(self.directory / "ha")
        rpc_port = self.rpc_address.rpartition(":")[2]
        listening = ["--host", self._config.rpc_host, "--rest-host", self._config.rest_host]
        listening += ["--insecure", str(self._config.insecure).lower(), "--most-slots", str(self._config.most_slots)]
        return ["jobmanager", "--ha-root", ha_root, "--rest-port", rest_port, "--rpc-port", rpc_port, *listening]

    def _taskmanager_arguments(self, index: int) -> list[str]:
        hosts = self._config.data_hosts
        return [
            "taskmanager",
            "--jobmanager", self._config.rpc_dialled or self.rpc_address,
            "--slots", str(self._slots or 0),
            "--id", f"tm-{index}",
            "--work-dir", str(self.directory / f"tm-{index}"),
            *(["--data-host", hosts[index % len(hosts)]] if hosts else []),
        ]  # fmt: skip

    def wait_registered(self, count: int, check: Callable[[], None], timeout_ms: float = _REGISTER_TIMEOUT_MS) -> None:
        """Return when so many TaskManagers have registered and those of this machine are ready.

        Raises:
            PenstockError: they have not in time, or `check`, which is asked meanwhile, says why they will not.
        """
        deadline = self._clock.monotonic_ms() + timeout_ms
        with self.client() as client:
            while self._clock.monotonic_ms() < deadline:
                if len(client.taskmanagers()) >= count and all(c.was_ready for c in self.taskmanagers):
                    return
                check()
                self._clock.sleep_ms(_WATCH_MS)
        msg = f"TaskManagers did not register within {timeout_ms / 1000:.0f} s"
        raise PenstockError(msg, hint=f"their logs are in {self.directory}")

    def _watch(self) -> None:
        while not self._closing.wait(_WATCH_MS / 1000):
            for child in [self.jobmanager, *self.taskmanagers]:
                if child is None or child.alive or self._closing.is_set():
                    continue
                if not child.was_ready and child.name not in self._begun:
                    continue  # a fault that a new start would not mend; `check` tells of it
                if len(self.restarts) >= _MAX_RESTARTS:
                    return
                self._begun.add(child.name)
                self.restarts.append(child.name)
                child.start()
