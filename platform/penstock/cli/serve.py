"""Starts a JobManager or TaskManager from plain arguments: `python -m penstock.cli.serve jobmanager --rest-port 0`.

What `penstock.client.processes` starts: the same as `penstock jobmanager` and `penstock taskmanager`, which call it
too, without the command line's own imports.
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
from penstock.core.secrets import redact

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
    "slots": "1",
    "work-dir": ".penstock/tm",
    "id": "",
    "security": "",
    "insecure": "false",
    "metrics-port": "0",
    "data-host": "",
    "data-bind": "",
    "log-format": "",
}
#: What an option is where it is not given, so that it reaches processes that others start.
OTLP_VARIABLE = "PENSTOCK_OTLP_ENDPOINT"
LOG_VARIABLE = "PENSTOCK_LOG_FORMAT"
#: Id of the process that a process ends with.
PARENT_VARIABLE = "PENSTOCK_DIE_WITH_PARENT"


def jobmanager(options: dict[str, str]) -> int:
    """Run a JobManager until it is told to stop; return the exit code."""
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
    """Run a TaskManager until it is told to stop; return the exit code. With 0 slots, stdin says their number."""
    die_with_parent()
    from penstock.taskmanager.main import TaskManagerConfig, run_taskmanager

    given = {**TASKMANAGER_DEFAULTS, **options}
    identity, log_format = given["id"] or f"{os.uname().nodename}-{os.getpid()}", _log_format(given["log-format"])
    configure_logs(log_format, process="taskmanager", taskmanager=identity)
    config = TaskManagerConfig(
        jobmanager_address=given["jobmanager"],
        taskmanager_id=identity,
        log_format=log_format,
        slots=int(given["slots"]) or None,
        work_dir=Path(given["work-dir"]),
        security=_security(given["security"], insecure=given["insecure"] == "true"),
        data_host=given["data-host"],
        data_bind=given["data-bind"],
        metrics_port=int(given["metrics-port"]),
    )
    return run_taskmanager(config, lambda text: _announce(given.get("ready-file", ""), text))


def _security(folder: str, *, insecure: bool = False) -> Security:
    """Return what protects this process; what it inherits no child inherits from it."""
    from penstock.config.security import SECRET_VARIABLE, load_security, own_secret
    from penstock.core.secrets import remember

    security = load_security(os.environ, folder, insecure=insecure)
    os.environ.pop(SECRET_VARIABLE, None)
    if not security.secret:  # --insecure too: it is about addresses, and both ends prove something always
        home = Path(os.environ.get("PENSTOCK_HOME") or Path.home() / ".penstock")
        security = replace(security, secret=own_secret(home))
    if security.secret:
        remember(security.secret.reveal())
    return security


def _log_format(option: str) -> Literal["text", "json"]:
    name = option or os.environ.get(LOG_VARIABLE, "") or "text"
    if name not in ("text", "json"):
        raise UsageError(f"log format {name!r} is not known", hint="use text or json")
    return "json" if name == "json" else "text"


def _announce(ready_file: str, text: str) -> None:
    if ready_file:
        path = Path(ready_file)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def die_with_parent() -> None:
    """End with the starter (Linux), when it asked for that: however it ends, no process is left behind.

    Raises:
        UsageError: the starter has ended, or another process stands between it and this one.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        msg = f"process {parent} was to start this one and end with it, but it was process {os.getppid()}"
        raise UsageError(msg, hint="a script that stands for the interpreter has to `exec` it")


def main(arguments: list[str]) -> int:
    """Run what the first argument names with the pairs `--option value` behind it."""
    names = [name.removeprefix("--") for name in arguments[1::2]]
    options = dict(zip(names, arguments[2::2], strict=True))
    try:
        return {"jobmanager": jobmanager, "taskmanager": taskmanager}[arguments[0]](options)
    except PenstockError as error:
        sys.stderr.write(f"penstock: {redact(str(error))}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
