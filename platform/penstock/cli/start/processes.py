"""`penstock jobmanager` and `penstock taskmanager`: the foreground processes of a cluster (`cli.serve` runs them).

`penstock compile` compiles all kernels before such a process needs them, for example in an image.
"""

from __future__ import annotations

import sys
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
from penstock.client.kernels import compile_kernels, kernel_modules


def compile_all(*, json: JsonOption = False) -> None:
    """Compile the kernels before the first job needs them.

    Otherwise the first job of an installation does it. The result is stored in the package's folder, or in
    ~/.cache/penstock if that folder is not writable.
    """
    compiled, modules = compile_kernels(benchmarks=True), len(kernel_modules(benchmarks=True))
    if json:
        print_json({"modules": modules, "compiled": compiled})
    elif not compiled:
        say(f"the kernels of {modules} modules are already compiled")


ReadyFile = Annotated[Path | None, typer.Option(help="Written (atomically) once the process is ready.", hidden=True)]


def jobmanager(
    *,
    ha_root: Annotated[str, typer.Option(help="Folder or s3:// URI of leadership and job records.")] = ".penstock/ha",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    rest_port: Annotated[int, typer.Option(help="Port of the REST API; 0 picks a free one.")] = 8081,
    rpc_port: Annotated[int, typer.Option(help="Port for TaskManagers; 0 picks a free one.")] = 6123,
    security: SecurityOption = "",
    insecure: InsecureOption = False,
    otlp_endpoint: OtlpOption = "",
    log_format: LogFormatOption = "",
    ready_file: ReadyFile = None,
) -> None:
    """Run a JobManager until it is stopped, as leader or standby."""
    options = {"ha-root": ha_root, "host": host, "rest-port": str(rest_port), "rpc-port": str(rpc_port)}
    protection = {"security": security, "insecure": str(insecure).lower()}
    logging_options = {"otlp-endpoint": otlp_endpoint, "log-format": log_format}
    sys.exit(serve.jobmanager({**options, **protection, **logging_options, "ready-file": str(ready_file or "")}))


def taskmanager(
    *,
    jobmanager_address: Annotated[
        str, typer.Option("--jobmanager", help="HOST:PORT of the JobManager, several with commas.")
    ] = "",
    ha_root: Annotated[str, typer.Option(help="HA root; the leader is found there.")] = "",
    slots: Annotated[int, typer.Option(help="Worker processes (slots) to offer.", min=1)] = 1,
    work_dir: Annotated[Path, typer.Option(help="Folder for logs, spill files, requirements.")] = Path(".penstock/tm"),
    worker_memory: Annotated[str, typer.Option(help="Memory limit of a worker, above which it is killed.")] = "",
    identity: Annotated[str, typer.Option("--id", help="Name of this TaskManager; default: host and pid.")] = "",
    data_host: Annotated[str, typer.Option(help="Host name of these workers for other hosts (TCP).")] = "",
    data_bind: Annotated[str, typer.Option(help="Address that workers listen on; default: --data-host.")] = "",
    security: SecurityOption = "",
    insecure: InsecureOption = False,
    metrics_port: Annotated[int, typer.Option(help="Port of /metrics on loopback; 0 picks a free one.")] = 0,
    log_format: LogFormatOption = "",
    ready_file: ReadyFile = None,
) -> None:
    """Run a TaskManager until it is stopped."""
    options = {"jobmanager": jobmanager_address, "slots": str(slots), "work-dir": str(work_dir), "id": identity}
    options |= {"data-host": data_host, "data-bind": data_bind, "ha-root": ha_root, "worker-memory": worker_memory}
    options |= {"security": security, "insecure": str(insecure).lower()}
    options["metrics-port"], options["log-format"] = str(metrics_port), log_format
    sys.exit(serve.taskmanager({**options, "ready-file": str(ready_file or "")}))
