"""Starts a JobManager or TaskManager from plain arguments: `python -m penstock.cli.serve jobmanager --rest-port 0`.

Used by `penstock.client.processes`, and by `penstock jobmanager` and `penstock taskmanager`. It avoids the imports of
the command line.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from penstock.core.errors import PenstockError, UsageError
from penstock.core.logs import configure_logs
from penstock.core.secrets import redact, register_secret

if TYPE_CHECKING:
    from penstock.config.security import Security

_PR_SET_PDEATHSIG = 1
JOBMANAGER_DEFAULTS = {
    "ha-root": ".penstock/ha",
    "host": "127.0.0.1",
    "rest-port": "8081",
    "rpc-port": "6123",
    "most-slots": "0",
    "security": "",
    "insecure": "false",
    "otlp-endpoint": "",
    "log-format": "",
}
TASKMANAGER_DEFAULTS = {
    "jobmanager": "",
    "ha-root": "",
    "slots": "1",
    "work-dir": ".penstock/tm",
    "worker-memory": "",
    "id": "",
    "security": "",
    "insecure": "false",
    "metrics-port": "0",
    "data-host": "",
    "data-bind": "",
    "log-format": "",
}
#: Defaults of options, inherited by child processes.
OTLP_VARIABLE = "PENSTOCK_OTLP_ENDPOINT"
LOG_VARIABLE = "PENSTOCK_LOG_FORMAT"
#: Pid of the parent process that a process ends with.
PARENT_VARIABLE = "PENSTOCK_DIE_WITH_PARENT"


def jobmanager(options: dict[str, str]) -> int:
    """Run a JobManager until it is stopped; return the exit code."""
    die_with_parent()
    from penstock.config.settings import ClusterSettings
    from penstock.jobmanager.config import JobManagerConfig
    from penstock.rest.server.http_server import run_jobmanager_process

    given = {**JOBMANAGER_DEFAULTS, **options}
    settings = ClusterSettings(
        rest_host=given.get("rest-host") or given["host"],
        rest_port=int(given["rest-port"]),
        rpc_host=given["host"],
        rpc_port=int(given["rpc-port"]),
        most_slots=int(given["most-slots"]),
        otlp_endpoint=given["otlp-endpoint"] or os.environ.get(OTLP_VARIABLE, ""),
        log_format=_log_format(given["log-format"]),
    )
    configure_logs(settings.log_format, process="jobmanager")
    security = _security(given["security"], insecure=given["insecure"] == "true")
    config = JobManagerConfig(ha_uri=given["ha-root"], settings=settings, security=security)
    return run_jobmanager_process(config, lambda text: _announce(given.get("ready-file", ""), text))


def taskmanager(options: dict[str, str]) -> int:
    """Run a TaskManager until it is stopped; return the exit code. With 0 slots, their number is read from stdin."""
    die_with_parent()
    from penstock.config.settings import parse_bytes
    from penstock.taskmanager.main import TaskManagerConfig, run_taskmanager

    given = {**TASKMANAGER_DEFAULTS, **options}
    if bool(given["jobmanager"]) == bool(given["ha-root"]):
        raise UsageError("a TaskManager needs --jobmanager HOST:PORT or --ha-root URI", hint="give one of them")
    identity, log_format = given["id"] or f"{os.uname().nodename}-{os.getpid()}", _log_format(given["log-format"])
    configure_logs(log_format, process="taskmanager", taskmanager=identity)
    config = TaskManagerConfig(
        jobmanager_address=given["jobmanager"],
        ha_root=given["ha-root"],
        taskmanager_id=identity,
        log_format=log_format,
        slots=int(given["slots"]) or None,
        work_dir=Path(given["work-dir"]),
        worker_memory_limit_bytes=parse_bytes(given["worker-memory"], "--worker-memory")
        if given["worker-memory"]
        else None,
        security=_security(given["security"], insecure=given["insecure"] == "true"),
        data_host=given["data-host"],
        data_bind=given["data-bind"],
        metrics_port=int(given["metrics-port"]),
    )
    return run_taskmanager(config, lambda text: _announce(given.get("ready-file", ""), text))


def _security(folder: str, *, insecure: bool = False) -> Security:
    """Return the security of this process; remove the secret from the environment of its children."""
    from penstock.config.security import SECRET_VARIABLE, load_security, own_secret

    security = load_security(os.environ, folder, insecure=insecure)
    os.environ.pop(SECRET_VARIABLE, None)
    if not security.secret:  # also with --insecure, which concerns addresses: both ends always prove the secret
        home = Path(os.environ.get("PENSTOCK_HOME") or Path.home() / ".penstock")
        security = replace(security, secret=own_secret(home))
    if security.secret:
        register_secret(security.secret.reveal())
    return security


def _log_format(option: str) -> Literal["text", "json"]:
    name = option or os.environ.get(LOG_VARIABLE, "") or "text"
    if name not in ("text", "json"):
        raise UsageError(f"unknown log format {name!r}", hint="use text or json")
    return "json" if name == "json" else "text"


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
