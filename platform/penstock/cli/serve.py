"""Starts a JobManager or TaskManager from plain arguments: `python -m penstock.cli.serve jobmanager --rest-port 0`.

Used by `penstock.client.processes`, and by `penstock jobmanager` and `penstock taskmanager`. It avoids the imports of
the command line.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config.config_file import OPTION, Resolved, SharedSettings, configuration, home
from penstock.core.errors import PenstockError, UsageError
from penstock.core.logs import configure_logs, log_line
from penstock.core.rand import Rand, SystemRand
from penstock.core.secrets import redact, register_secret

if TYPE_CHECKING:
    from penstock.config.security import Security

_PR_SET_PDEATHSIG = 1
#: A TaskManager that waits for its JobManager for longer says so.
_QUIET_MS = 3_000.0
#: Options of a JobManager, and the settings that each of them sets.
JOBMANAGER_OPTIONS = {
    "ha-root": ("cluster.ha_root",),
    "host": ("jobmanager.rpc_host", "jobmanager.rest_host"),
    "rest-host": ("jobmanager.rest_host",),
    "rest-port": ("jobmanager.rest_port",),
    "rpc-port": ("jobmanager.rpc_port",),
    "most-slots": ("jobmanager.most_slots",),
    "security": ("cluster.security",),
    "insecure": ("cluster.insecure",),
    "otlp-endpoint": ("jobmanager.otlp_endpoint",),
    "log-format": ("cluster.log_format",),
}
TASKMANAGER_OPTIONS = {
    "jobmanager": ("taskmanager.jobmanager",),
    "ha-root": ("cluster.ha_root",),
    "slots": ("taskmanager.slots",),
    "work-dir": ("taskmanager.work_dir",),
    "memory": ("taskmanager.memory",),
    "host-taskmanagers": ("taskmanager.host_taskmanagers",),
    "worker-memory": ("taskmanager.worker_memory",),
    "id": ("taskmanager.id",),
    "security": ("cluster.security",),
    "insecure": ("cluster.insecure",),
    "metrics-port": ("taskmanager.metrics_port",),
    "data-host": ("taskmanager.data_host",),
    "data-bind": ("taskmanager.data_bind",),
    "log-format": ("cluster.log_format",),
}
#: Pid of the parent process that a process ends with.
PARENT_VARIABLE = "PENSTOCK_DIE_WITH_PARENT"


def jobmanager(options: Mapping[str, str]) -> int:
    """Run a JobManager until it is stopped; return the exit code."""
    die_with_parent()
    from penstock.jobmanager.config import JobManagerConfig
    from penstock.rest.server.http_server import run_jobmanager_process

    settings = _configured(JOBMANAGER_OPTIONS, options).settings
    configure_logs(settings.cluster.log_format, process="jobmanager")
    config = JobManagerConfig(
        ha_uri=settings.cluster.ha_root, settings=settings.jobmanager, security=_security(settings.cluster)
    )
    return run_jobmanager_process(config, lambda text: _announce(options.get("ready-file", ""), text))


def ha_root_of(options: Mapping[str, str]) -> str:
    """Return the HA root that a JobManager with these options has."""
    return _configured(JOBMANAGER_OPTIONS, options).settings.cluster.ha_root


def taskmanager(options: Mapping[str, str]) -> int:
    """Run a TaskManager until it is stopped; return the exit code. With 0 slots, their number is read from stdin."""
    die_with_parent()
    from penstock.client.wait_lines import WaitLines
    from penstock.metrics.process import physical_memory
    from penstock.taskmanager.host_memory import total_memory
    from penstock.taskmanager.main import TaskManagerConfig, run_taskmanager
    from penstock.taskmanager.memory_division import divided

    configured = _configured(TASKMANAGER_OPTIONS, options)
    settings, shared = configured.settings.taskmanager, configured.settings.cluster
    address, ha_root = _leader_place(configured)
    total = total_memory(settings, physical_memory())
    identity = settings.id or own_name(SystemRand())
    configure_logs(shared.log_format, process="taskmanager", taskmanager=identity)
    config = TaskManagerConfig(
        jobmanager_address=address,
        ha_root=ha_root,
        taskmanager_id=identity,
        log_format=shared.log_format,
        slots=settings.slots or None,
        work_dir=Path(settings.work_dir),
        divide=lambda slots: divided(settings, slots, total.size_bytes, total.origin),
        security=_security(shared),
        data_host=settings.data_host,
        data_bind=settings.data_bind,
        metrics_port=settings.metrics_port,
        cpu_cores=len(os.sched_getaffinity(0)) / settings.host_taskmanagers,
    )
    waits = WaitLines(lambda line: log_line("penstock.taskmanager", line), quiet_ms=_QUIET_MS)
    return run_taskmanager(config, lambda text: _announce(options.get("ready-file", ""), text), waits.note)


def own_name(rand: Rand) -> str:
    """Return a name for a TaskManager; containers of one host may share the host's name, and each has a process 1."""
    return f"{os.uname().nodename}-{os.getpid()}-{rand.token(4)}"


def _configured(table: Mapping[str, tuple[str, ...]], options: Mapping[str, str]) -> Resolved:
    """Return the configuration with the options of the command line."""
    return configuration(
        {name: options[option] for option, names in table.items() if option in options for name in names}
    )


def _leader_place(configured: Resolved) -> tuple[str, str]:
    """Return the JobManagers' addresses, or the HA root in which the leader is found; the other one is empty."""
    address, ha_root = configured.settings.taskmanager.jobmanager, configured.settings.cluster.ha_root
    named, found = (configured.origins.get(name) for name in ("taskmanager.jobmanager", "cluster.ha_root"))
    if (named == found == OPTION) or not (address or found):
        raise UsageError("a TaskManager needs --jobmanager HOST:PORT or --ha-root URI", hint="give one of them")
    return ("", ha_root) if found == OPTION or not address else (address, "")


def _security(shared: SharedSettings) -> Security:
    """Return the security of this process; remove the secret from the environment of its children."""
    from penstock.config.security import SECRET_VARIABLE, load_security, own_secret

    security = load_security(os.environ, shared.security, insecure=shared.insecure)
    os.environ.pop(SECRET_VARIABLE, None)
    if not security.secret:  # also with --insecure, which concerns addresses: both ends always prove the secret
        security = replace(security, secret=own_secret(home()))
    if security.secret:
        register_secret(security.secret.reveal())
    return security


def _announce(ready_file: str, text: str) -> None:
    if ready_file:
        path = Path(ready_file)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def die_with_parent() -> None:
    """Let the kernel end this process with its parent (Linux), if the parent requested that.

    Raises:
        UsageError: the parent has ended, or another process is in between.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        msg = f"expected parent process {parent}, but was started by process {os.getppid()}"
        raise UsageError(msg, hint="a wrapper script of the interpreter must `exec` it")


def main(arguments: list[str]) -> int:
    """Run the process that the first argument names, with the following pairs `--option value`."""
    names = [name.removeprefix("--") for name in arguments[1::2]]
    options = dict(zip(names, arguments[2::2], strict=True))
    try:
        return {"jobmanager": jobmanager, "taskmanager": taskmanager}[arguments[0]](options)
    except PenstockError as error:
        sys.stderr.write(f"penstock: {redact(str(error))}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
