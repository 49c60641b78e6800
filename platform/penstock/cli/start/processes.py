"""`penstock jobmanager` and `penstock taskmanager`: the foreground processes of a cluster (`cli.serve` runs them).

`penstock compile` compiles all kernels before such a process needs them, for example in an image.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import serve
from penstock.cli.options import (
    InsecureOption,
    JsonOption,
    LogFormatOption,
    OtlpOption,
    SecurityOption,
    print_json,
    say,
)
from penstock.client.access import access_of
from penstock.client.kernels import compile_kernels, kernel_modules
from penstock.client.rest_client import RestClient


def compile_all(*, json: JsonOption = False) -> None:
    """Compile the kernels before the first job needs them.

    Otherwise the first job of an installation does it. The result is stored in the package's folder, or in
    ~/.cache/penstock if that folder is not writable.
    """
    compiled, modules = compile_kernels(), len(kernel_modules())
    if json:
        print_json({"modules": modules, "compiled": compiled})
    elif not compiled:
        say(f"the kernels of {modules} modules are already compiled")


ReadyFile = Annotated[Path | None, typer.Option(help="Written (atomically) once the process is ready.", hidden=True)]


def jobmanager(
    *,
    ha_root: Annotated[
        str | None,
        typer.Option(help="Folder or s3:// URI of leadership and job records.", show_default=".penstock/ha"),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    rest_port: Annotated[
        int | None, typer.Option(help="Port of the REST API; 0 picks a free one.", show_default="8081")
    ] = None,
    rpc_port: Annotated[
        int | None, typer.Option(help="Port for TaskManagers; 0 picks a free one.", show_default="6123")
    ] = None,
    security: SecurityOption = None,
    insecure: InsecureOption = None,
    otlp_endpoint: OtlpOption = None,
    log_format: LogFormatOption = None,
    hand_over: Annotated[
        bool, typer.Option("--hand-over", help="Make the leader of the HA root a standby, and exit; jobs continue.")
    ] = False,
    ready_file: ReadyFile = None,
) -> None:
    """Run a JobManager until it is stopped, as leader or standby."""
    if hand_over:
        root = serve.ha_root_of(_given({"ha-root": ha_root}))
        # a folder without a leader would be taken for a URL
        url = root if "://" in root else Path(root).expanduser().absolute().as_uri()
        RestClient(url, access_of(folder=security)).hand_over()
        say("the leader hands over to a standby")
        return
    options = {"ha-root": ha_root, "host": host, "rest-port": rest_port, "rpc-port": rpc_port, "security": security}
    options |= {"insecure": insecure, "otlp-endpoint": otlp_endpoint, "log-format": log_format}
    sys.exit(serve.jobmanager(_given({**options, "ready-file": ready_file})))


def taskmanager(
    *,
    jobmanager_address: Annotated[
        str | None, typer.Option("--jobmanager", help="HOST:PORT of the JobManager, several with commas.")
    ] = None,
    ha_root: Annotated[str | None, typer.Option(help="HA root; the leader is found there.")] = None,
    slots: Annotated[
        int | None, typer.Option(help="Worker processes (slots) to offer.", min=1, show_default="1")
    ] = None,
    work_dir: Annotated[
        Path | None, typer.Option(help="Folder for logs, spill files, requirements.", show_default=".penstock/tm")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of this TaskManager with its workers, such as 8GB.")
    ] = None,
    worker_memory: Annotated[
        str | None, typer.Option(help="Memory limit of a worker, above which it is killed.")
    ] = None,
    identity: Annotated[
        str | None, typer.Option("--id", help="Name of this TaskManager; default: host, pid and a random part.")
    ] = None,
    data_host: Annotated[str | None, typer.Option(help="Host name of these workers for other hosts (TCP).")] = None,
    data_bind: Annotated[str | None, typer.Option(help="Address that workers listen on; default: --data-host.")] = None,
    security: SecurityOption = None,
    insecure: InsecureOption = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of /metrics on loopback; 0 picks a free one.", show_default="0")
    ] = None,
    log_format: LogFormatOption = None,
    ready_file: ReadyFile = None,
) -> None:
    """Run a TaskManager until it is stopped."""
    options = {"jobmanager": jobmanager_address, "ha-root": ha_root, "slots": slots, "work-dir": work_dir}
    options["memory"] = memory
    options |= {"worker-memory": worker_memory, "id": identity, "data-host": data_host, "data-bind": data_bind}
    options |= {"security": security, "insecure": insecure, "metrics-port": metrics_port, "log-format": log_format}
    sys.exit(serve.taskmanager(_given({**options, "ready-file": ready_file})))


def _given(options: Mapping[str, object]) -> dict[str, str]:
    """Return the options of the command line; the others are configured or have their defaults."""
    return {name: str(value) for name, value in options.items() if value is not None}
