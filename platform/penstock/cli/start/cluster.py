"""`penstock cluster start|status|stop`: a cluster that outlives the command, with TaskManagers here or on Spark."""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import (
    InsecureOption,
    JsonOption,
    LogFormatOption,
    OtlpOption,
    SecurityOption,
    cluster_file,
    connect,
    print_json,
    say,
)
from penstock.cli.restart_wait import alive
from penstock.cli.start.certs import certs
from penstock.cli.start.spark_options import (
    MasterOption,
    SparkConfOption,
    TimeoutOption,
    refuse_settings,
    spark_cluster,
    spark_options,
    spark_settings,
    taskmanager_bounds,
)
from penstock.client.kernels import compile_kernels
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.config.config_file import VARIABLES, Configuration, configuration, home
from penstock.config.security import FOLDER_VARIABLE
from penstock.config.slot_resources import whole
from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError, UsageError
from penstock.rpc.listening import REST

if TYPE_CHECKING:
    from penstock.client.spark_cluster import SparkCluster

commands = typer.Typer(
    help="A local standalone cluster.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
commands.command("certs")(certs)
_SLOTS = 2
_START_TIMEOUT_MS = 330_000
_SPARK_START_TIMEOUT_MS = 960_000
_STOP_TIMEOUT_MS = 60_000
_POLL_MS = 50


@commands.command("start")
def start(
    *,
    taskmanagers: Annotated[str, typer.Option(metavar="N", help="TaskManagers; on Spark also MIN..MAX.")] = "2",
    slots: Annotated[
        int | None, typer.Option(help="Slots (worker processes) of each TaskManager.", show_default="2")
    ] = None,
    jobmanagers: Annotated[int, typer.Option(help="JobManagers: a leader and standbys.", min=1)] = 1,
    rest_port: Annotated[
        int | None, typer.Option(help="Port of the REST API; 0 picks a free one.", show_default="8081")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address that REST listens on.", show_default="127.0.0.1")] = None,
    taskmanager_timeout: TimeoutOption = "",
    provider: Annotated[str, typer.Option(help="Where TaskManagers run: local, or spark.")] = "local",
    master: MasterOption = "",
    spark_conf: SparkConfOption = None,
    security: SecurityOption = None,
    insecure: InsecureOption = None,
    otlp_endpoint: OtlpOption = None,
    log_format: LogFormatOption = None,
    json: JsonOption = False,
) -> None:
    """Start a cluster in the background and print its address."""
    if (provider == "spark") != bool(master) or provider not in {"local", "spark"}:
        msg = f"--provider {provider} with --master {master or '(none)'}"
        raise UsageError(msg, hint="--provider spark needs --master, --provider local (the default) takes none")
    if provider == "spark":
        spark_settings(spark_conf)  # checked here, so that the error is printed by this process
    else:
        refuse_settings(spark_conf, way="start it with --provider spark --master URL")
    given = {"taskmanager.slots": slots, "jobmanager.rest_port": rest_port, "jobmanager.rest_host": host}
    given |= {"cluster.security": security, "cluster.insecure": insecure, "cluster.log_format": log_format}
    given |= {"jobmanager.otlp_endpoint": otlp_endpoint}
    configured = configuration({name: value for name, value in given.items() if value is not None})
    slots = configured.settings.taskmanager.slots if "taskmanager.slots" in configured.origins else _SLOTS
    taskmanager_bounds(taskmanagers, slots, taskmanager_timeout, on_spark=bool(master))
    record = cluster_file()
    if record.exists() and alive(jsonlib.loads(record.read_text(encoding="utf-8"))["pid"]):
        msg = f"a cluster is already running ({record})"
        raise UsageError(msg, hint="stop it with `penstock cluster stop`")
    try:
        home().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"cannot write the cluster's records to {home()}: {error.strerror}"
        raise UsageError(msg, hint="set PENSTOCK_HOME to a writable folder") from error
    REST.require_free(configured.settings.jobmanager.rest_host, configured.settings.jobmanager.rest_port)
    compile_kernels()  # here, where its progress is visible
    record.unlink(missing_ok=True)
    log = home() / "cluster.log"
    arguments = ["cluster", "serve", "--taskmanagers", taskmanagers, "--slots", str(slots)]
    arguments += ["--jobmanagers", str(jobmanagers)]
    arguments += ["--taskmanager-timeout", taskmanager_timeout] if taskmanager_timeout else []
    arguments += ["--master", master] if master else []
    arguments += [part for setting in spark_conf or [] for part in ("--spark-conf", setting)]
    listening, environment = _process_options(configured.settings)
    arguments += listening
    if not json:
        say(f"starting a cluster{' on Spark' if master else ''}; its log is {log}")
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli.main", *arguments],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=environment,
        )  # fmt: skip
    _wait_for(record, process, log, _SPARK_START_TIMEOUT_MS if master else _START_TIMEOUT_MS)
    found = jsonlib.loads(record.read_text(encoding="utf-8"))
    if json:
        print_json(found)
    else:
        say(f"cluster at {found['rest']} (pid {found['pid']}, logs in {found['directory']})")


def _wait_for(record: Path, process: subprocess.Popen[bytes], log: Path, timeout_ms: float) -> None:
    """Wait until the started cluster has written its record; raises PenstockError if it ended or needs longer."""
    clock = SystemClock()
    deadline = clock.monotonic_ms() + timeout_ms
    while not record.exists():
        if process.poll() is not None or clock.monotonic_ms() > deadline:
            last = log.read_text(errors="replace").strip().rpartition("\n")[2].removeprefix("penstock: ")
            hint = "" if "see its log" in last else f"see its log {log}"  # a child process has named its own
            raise PenstockError(f"the cluster did not start: {last}", hint=hint)
        clock.sleep_ms(_POLL_MS)


def _process_options(settings: Configuration) -> tuple[list[str], dict[str, str]]:
    """Return the options of `cluster serve` about listening, and the environment of all the cluster's processes."""
    jobmanager, shared = settings.jobmanager, settings.cluster
    arguments = ["--rest-port", str(jobmanager.rest_port), "--host", jobmanager.rest_host]
    arguments += ["--insecure"] if shared.insecure else []
    variables = {
        "cluster.security": str(Path(shared.security).absolute()) if shared.security else "",
        "cluster.log_format": shared.log_format,
        "jobmanager.otlp_endpoint": jobmanager.otlp_endpoint,
    }
    return arguments, {**os.environ, **{VARIABLES[name]: value for name, value in variables.items() if value}}


@commands.command("serve", hidden=True)
def serve(
    *,
    taskmanagers: str = "2",
    taskmanager_timeout: str = "",
    slots: int = 2,
    jobmanagers: int = 1,
    rest_port: int = 8081,
    host: str = "127.0.0.1",
    insecure: bool = False,
    master: str = "",
    spark_conf: SparkConfOption = None,
) -> None:
    """Run a cluster in the foreground."""
    directory = home() / "cluster"
    bounds = taskmanager_bounds(taskmanagers, slots, taskmanager_timeout, on_spark=bool(master))
    config = LocalClusterConfig(
        taskmanagers=bounds.least,
        jobmanagers=jobmanagers,
        slots_per_taskmanager=slots,
        directory=directory,
        rest_port=rest_port,
        rest_host=host,
        insecure=insecure,
        most_slots=bounds.most * slots,
    )
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    cluster: LocalCluster | SparkCluster
    if master:
        spark = spark_options(master, spark_conf, bounds)
        cluster = spark_cluster(replace(config, rpc_host=host), spark, ended.set)
    else:
        cluster = LocalCluster(config)
    with cluster:
        temporary = cluster_file().with_suffix(".tmp")
        record = {"rest": cluster.address, "pid": os.getpid(), "directory": str(directory)}
        record["security"] = os.environ.get(FOLDER_VARIABLE, "")
        temporary.write_text(jsonlib.dumps(record), encoding="utf-8")
        temporary.replace(cluster_file())
        try:
            ended.wait()
        finally:
            cluster_file().unlink(missing_ok=True)


@commands.command("status")
def status(*, cluster: Annotated[str | None, typer.Option()] = None, json: JsonOption = False) -> None:
    """Show slots, and the processes of JobManagers and TaskManagers."""
    with connect(cluster) as client:
        overview = client.overview()
        managers, leader, standbys = client.taskmanagers(), client.leader(), client.standbys()
    if json:
        print_json({**overview, "taskmanager-list": managers, "leader": leader, "standbys": standbys})
        return
    slots = f"{overview['slots-available']} of {overview['slots-total']} slots free"
    count = overview["taskmanagers"]
    jobmanager = f"JobManager: {leader['url']}, process {overview['jobmanager-pid']}"
    if leader["generation"] > 1:
        jobmanager += f", leader of generation {leader['generation']}"
    say(f"{jobmanager}; {count} TaskManager{'' if count == 1 else 's'}, {slots}")
    for standby in standbys:
        say(f"  standby: {standby['url']}, process {standby['pid']} on {standby['host']}")
    for manager in managers:
        free = f"{manager['freeSlots']}/{manager['slotsNumber']} slots free"
        say(f"  {manager['id']}: process {manager['pid']} on {manager['path']}, {free}")
        say(f"    memory: {_memory(manager['memoryConfiguration'])}")


def _memory(parts: dict[str, int]) -> str:
    """Return the parts of a TaskManager's memory (`documents.taskmanager`)."""
    named = {"framework": "frameworkHeap", "tasks": "taskHeap", "network": "networkMemory", "managed": "managedMemory"}
    shown = ", ".join(f"{name} {whole(parts[key])}" for name, key in named.items())
    return f"{whole(parts['totalProcessMemory'])} ({shown})"


@commands.command("stop")
def stop() -> None:
    """Stop the local cluster; jobs keep their checkpoints."""
    if not cluster_file().exists():
        msg = "no local cluster is running"
        raise UsageError(msg, hint="`penstock cluster start` starts one")
    pid = int(jsonlib.loads(cluster_file().read_text(encoding="utf-8"))["pid"])
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    clock = SystemClock()
    deadline = clock.monotonic_ms() + _STOP_TIMEOUT_MS
    while alive(pid) and clock.monotonic_ms() < deadline:
        clock.sleep_ms(_POLL_MS)
    if alive(pid):
        msg = f"the cluster (pid {pid}) did not end within {_STOP_TIMEOUT_MS // 1000} s"
        raise PenstockError(msg, hint=f"see {home() / 'cluster.log'}")
    cluster_file().unlink(missing_ok=True)
    say("cluster stopped")
