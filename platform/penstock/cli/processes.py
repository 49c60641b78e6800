"""`penstock jobmanager` and `penstock taskmanager`: the foreground processes of a cluster."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

_PR_SET_PDEATHSIG = 1

ReadyFile = Annotated[Path | None, typer.Option(help="Written (atomically) once the process is ready.", hidden=True)]


def jobmanager(
    *,
    ha_root: Annotated[str, typer.Option(help="Folder or s3:// URI of leadership and job records.")] = ".penstock/ha",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    rest_port: Annotated[int, typer.Option(help="Port of the REST API; 0 picks a free one.")] = 8081,
    rpc_port: Annotated[int, typer.Option(help="Port for TaskManagers; 0 picks a free one.")] = 6123,
    ready_file: ReadyFile = None,
) -> None:
    """Run a JobManager until it is told to stop."""
    _die_with_parent()
    from penstock.config.settings import ClusterSettings
    from penstock.jobmanager.config import JobManagerConfig
    from penstock.rest.server import run_jobmanager_process

    settings = ClusterSettings(rest_host=host, rest_port=rest_port, rpc_host=host, rpc_port=rpc_port)
    config = JobManagerConfig(ha_uri=ha_root, settings=settings)
    sys.exit(run_jobmanager_process(config, lambda text: _announce(ready_file, text)))


def taskmanager(
    *,
    jobmanager_address: Annotated[str, typer.Option("--jobmanager", help="HOST:PORT of the JobManager's RPC.")],
    slots: Annotated[int, typer.Option(help="Worker processes this TaskManager offers.")] = 1,
    work_dir: Annotated[Path, typer.Option(help="Folder for logs, spill files, requirements.")] = Path(".penstock/tm"),
    identity: Annotated[str, typer.Option("--id", help="Name of this TaskManager; default: host and pid.")] = "",
    ready_file: ReadyFile = None,
) -> None:
    """Run a TaskManager until it is told to stop."""
    _die_with_parent()
    from penstock.taskmanager.main import TaskManagerConfig, run_taskmanager

    name = identity or f"{os.uname().nodename}-{os.getpid()}"
    config = TaskManagerConfig(
        jobmanager_address=jobmanager_address, taskmanager_id=name, slots=slots, work_dir=work_dir
    )  # fmt: skip
    sys.exit(run_taskmanager(config, lambda text: _announce(ready_file, text)))


def _announce(ready_file: Path | None, text: str) -> None:
    if ready_file is not None:
        temporary = ready_file.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(ready_file)


def _die_with_parent() -> None:
    """End with the starter (Linux), when it asked for that: however it ends, no process is left behind."""
    parent = os.environ.pop("PENSTOCK_DIE_WITH_PARENT", "")
    if not parent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(0)
