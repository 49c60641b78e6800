"""A cluster of local processes.

It runs a JobManager and TaskManagers as child processes and restarts those that die.

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
from penstock.client.processes import ChildProcess, free_port
from penstock.client.rest_client import RestClient
from penstock.config.security import SECRET_VARIABLE
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import PenstockError
from penstock.core.rand import SystemRand

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_WATCH_MS = 50.0
#: A busy machine may need more than a minute for a TaskManager's imports.
_REGISTER_TIMEOUT_MS = 300_000
_MAX_RESTARTS = 20
#: Below the ephemeral ports of outgoing connections and the ports of test servers.
RPC_PORTS = range(10_000, 20_000)


@dataclass(frozen=True, kw_only=True)
class LocalClusterConfig:
    """The configuration of a local cluster."""

    taskmanagers: int = 2
    #: The first one leads, the others are standbys.
    jobmanagers: int = 1
    #: None: set later with `set_slots`, when the job's graph is known.
    slots_per_taskmanager: int | None = 1
    #: Folder for logs, HA records and artifacts; None: a temporary folder that is removed at the end.
    directory: Path | None = None
    rest_port: int = 0
    #: Address that REST listens on.
    rest_host: str = "127.0.0.1"
    #: Address that the JobManager listens on and TaskManagers connect to; this class starts those on this machine.
    rpc_host: str = "127.0.0.1"
    #: Allow `rpc_host` without certificates and tokens.
    insecure: bool = False
    #: Where leadership and job records are stored; None = `<directory>/ha`.
    ha_root: str | None = None
    #: Host names that the TaskManagers claim in turn: rows between different hosts use TCP. Empty: all on one host.
    data_hosts: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    restart_dead: bool = True
    #: Port that the JobManager listens on for TaskManagers; 0: a free one.
    rpc_port: int = 0
    #: `host:port` that TaskManagers connect to instead, for example a proxy's; empty: the JobManager's.
    rpc_dialled: str = ""
    #: Upper limit of slots: a larger job is refused. 0: unlimited.
    most_slots: int = 0


class LocalCluster:
    """A cluster of local processes: use `start()` or a context manager; `close()` ends every process."""

    def __init__(self, config: LocalClusterConfig, clock: Clock | None = None) -> None:
        """Prepare the cluster's folder; no process is started."""
        self._config = config
        self._clock = clock or SystemClock()
        self._temporary = config.directory is None
        self.directory = config.directory or Path(tempfile.mkdtemp(prefix="penstock-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        #: The first leader; a standby may lead later.
        self.jobmanager: ChildProcess | None = None
        self.standbys: list[ChildProcess] = []
        self.taskmanagers: list[ChildProcess] = []
        self.rest_url = ""
        #: The URLs of all JobManagers, with commas between them.
        self.address = ""
        #: `host:port` that TaskManagers connect to, of each JobManager, with commas between them.
        self.rpc_address = ""
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self.restarts: list[str] = []
        self._slots = config.slots_per_taskmanager
        #: The RPC secret of this cluster, inherited by its processes even if a security folder is used.
        self.secret = SystemRand().token(64)
        #: Child processes that have been ready at least once.
        self._started_once: set[str] = set()

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
        """Start all processes and wait until every TaskManager is registered."""
        self.launch()
        try:
            self.wait_for_jobmanager()
            self.wait_registered(self._config.taskmanagers, self.check)
        except BaseException:
            self.abort()
            raise

    def launch(self) -> None:
        """Start all processes without waiting for them; compile missing kernels first.

        Raises:
            PenstockError: the kernels could not be compiled.
        """
        compile_kernels()
        host, rand = self._config.rpc_host, SystemRand()
        ports = [self._config.rpc_port or free_port(host, RPC_PORTS, rand)]
        ports += [free_port(host, RPC_PORTS, rand) for _ in range(self._config.jobmanagers - 1)]
        self.rpc_address = ",".join(f"{host}:{port}" for port in ports)
        self.jobmanager = self._child("jobmanager", self._jobmanager_arguments(str(self._config.rest_port), ports[0]))
        self.jobmanager.start()
        for index in range(self._config.taskmanagers):
            child = self._child(f"taskmanager-{index}", self._taskmanager_arguments(index))
            child.reads_stdin = self._slots is None
            child.start()
            self.taskmanagers.append(child)

    def set_slots(self, slots: int) -> None:
        """Set the number of slots of each TaskManager, for a cluster that was launched without it."""
        self._slots = slots
        for index, child in enumerate(self.taskmanagers):
            child.write_stdin(str(slots))
            child.reads_stdin, child.arguments = False, self._taskmanager_arguments(index)

    def wait_for_jobmanager(self) -> None:
        """Wait until jobs can be submitted; from then on dead processes are restarted.

        Raises:
            PenstockError: the JobManager did not start.
        """
        assert self.jobmanager is not None  # noqa: S101 - `launch` comes first
        self.rest_url = self.address = json.loads(self.jobmanager.wait_ready())["rest"]
        first, *others = (int(address.rpartition(":")[2]) for address in self.rpc_address.split(","))
        # A restarted JobManager must use the same addresses.
        self.jobmanager.arguments = self._jobmanager_arguments(self.rest_url.rpartition(":")[2], first)
        for number, rpc_port in enumerate(others, 1):
            rest_port = free_port(self._config.rest_host, RPC_PORTS, SystemRand())
            self.address += f",{self.rest_url.rpartition(':')[0]}:{rest_port}"
            arguments = self._jobmanager_arguments(str(rest_port), rpc_port)
            self.standbys.append(self._child(f"jobmanager-{number}", arguments))
            self.standbys[-1].start()
        if self._config.restart_dead and self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="penstock-cluster-watch", daemon=True)
            self._watcher.start()

    def check(self) -> None:
        """Check that every TaskManager is running or restarting.

        Raises:
            PenstockError: a TaskManager ended before it was ready for the first time.
        """
        for child in self.taskmanagers:
            if child.is_ready:
                self._started_once.add(child.name)
            elif not child.alive and child.name not in self._started_once:
                msg = f"{child.name} ended while starting: {child.log_tail()}"
                raise PenstockError(msg, hint=f"see its log {child.log_file}")

    def abort(self) -> None:
        """End every process and keep the logs for the error message."""
        self._temporary = False
        self.close()

    def client(self) -> RestClient:
        """Return a new client of this cluster with the credentials of its processes' environment."""
        return RestClient(self.address, access=access_of({**os.environ, **self._config.environment}))

    def close(self) -> None:
        """End every process; idempotent."""
        self._closing.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(timeout=5)
        children = [*self.taskmanagers, *self.standbys, *([] if self.jobmanager is None else [self.jobmanager])]
        for child in children:
            child.terminate()
        for child in children:
            child.stop()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _child(self, name: str, arguments: list[str]) -> ChildProcess:
        environment = {SECRET_VARIABLE: self.secret, **self._config.environment}
        return ChildProcess(name, arguments, self.directory, self._clock, environment)

    def _jobmanager_arguments(self, rest_port: str, rpc_port: int) -> list[str]:
        ha_root = self._config.ha_root or str(self.directory / "ha")
        listening = ["--host", self._config.rpc_host, "--rest-host", self._config.rest_host]
        listening += ["--insecure", str(self._config.insecure).lower(), "--most-slots", str(self._config.most_slots)]
        return ["jobmanager", "--ha-root", ha_root, "--rest-port", rest_port, "--rpc-port", str(rpc_port), *listening]

    def _taskmanager_arguments(self, index: int) -> list[str]:
        hosts = self._config.data_hosts
        return [
            "taskmanager",
            "--jobmanager", self._config.rpc_dialled or self.rpc_address,
            "--slots", str(self._slots or 0),
            "--host-taskmanagers", str(self._config.taskmanagers),
            "--id", f"tm-{index}",
            "--work-dir", str(self.directory / f"tm-{index}"),
            # settings of the configuration file that concern other hosts
            "--data-host", hosts[index % len(hosts)] if hosts else "",
            "--data-bind", "",
            "--metrics-port", "0",
        ]  # fmt: skip

    def wait_registered(self, count: int, check: Callable[[], None], timeout_ms: float = _REGISTER_TIMEOUT_MS) -> None:
        """Wait until `count` TaskManagers are registered and the local ones are ready.

        Raises:
            PenstockError: the time is over, or `check`, which is called repeatedly, raised it.
        """
        deadline = self._clock.monotonic_ms() + timeout_ms
        with self.client() as client:
            while self._clock.monotonic_ms() < deadline:
                if len(client.taskmanagers()) >= count and all(c.is_ready for c in self.taskmanagers):
                    return
                check()
                self._clock.sleep_ms(_WATCH_MS)
        msg = f"TaskManagers did not register within {timeout_ms / 1000:.0f} s"
        raise PenstockError(msg, hint=f"see their logs in {self.directory}")

    def _watch(self) -> None:
        while not self._closing.wait(_WATCH_MS / 1000):
            for child in [self.jobmanager, *self.standbys, *self.taskmanagers]:
                if child is None or child.alive or self._closing.is_set():
                    continue
                if not child.is_ready and child.name not in self._started_once and child not in self.standbys:
                    continue  # a restart would not help; `check` reports it
                if len(self.restarts) >= _MAX_RESTARTS:
                    return
                self._started_once.add(child.name)
                self.restarts.append(child.name)
                child.start()
