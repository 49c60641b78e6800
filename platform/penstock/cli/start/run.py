"""`penstock run job.py`: runs a job file with the chosen executor for `env.execute`."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.api.job_file import execute_file, planned, require_job_file
from penstock.cli.options import (
    InsecureOption,
    JsonOption,
    SettingsOption,
    beside_cluster,
    cluster_executor,
    print_json,
    say,
)
from penstock.cli.progress import JobProgress
from penstock.cli.start.spark_options import (
    MasterOption,
    SparkConfOption,
    TimeoutOption,
    refuse_settings,
    spark_executor,
    taskmanager_bounds,
)
from penstock.client.executors import ClusterExecutor, EmbeddedExecutor, SubmitOptions
from penstock.client.failures import first_bad_record
from penstock.client.handle import TERMINAL
from penstock.config.config_file import require_of_job
from penstock.config.settings import JobSettings, overridden
from penstock.core.counts import counted
from penstock.core.errors import UsageError, cluster_option, job_command
from penstock.graph.executor import JobExecutor, JobResult
from penstock.graph.job_graph import encode_graph

if TYPE_CHECKING:
    from penstock.client.spark_cluster import SparkExecutor

_ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="URL of a JobManager; default: an embedded one, or with --detached, --token, --attach the known one."
    ),
]
_TaskManagersOption = Annotated[
    str, typer.Option(metavar="N", help="With Spark: TaskManagers, a task each; N or MIN..MAX.")
]
_SlotsOption = Annotated[
    int | None, typer.Option(help="With Spark: slots of each TaskManager.", show_default="what the job needs", min=1)
]
_HostOption = Annotated[
    str, typer.Option(help="With Spark: this machine's address for executors; auto: that of its host name.")
]
_TokenOption = Annotated[str, typer.Option(metavar="ID", help="On a cluster: runs with the same token give one job.")]


def run(
    job: Annotated[Path, typer.Argument(metavar="job.py", help="Python file that builds and executes a job.")],
    *,
    parallelism: Annotated[int | None, typer.Option(help="Overrides the job's parallelism.")] = None,
    cluster: _ClusterOption = None,
    from_uri: Annotated[str | None, typer.Option("--from", help="Savepoint to start from.")] = None,
    fresh: Annotated[bool, typer.Option(help="Start a new history instead of resuming the newest checkpoint.")] = False,
    no_claim: Annotated[bool, typer.Option(help="With --from: fork; leave pending output to the origin.")] = False,
    accept_duplicates: Annotated[bool, typer.Option(help="With --from: accept repeated output.")] = False,
    allow_non_restored_state: Annotated[
        list[str] | None,
        typer.Option(metavar="UID[/STATE]", help="With --from: drop state that the job no longer has."),
    ] = None,
    detached: Annotated[bool, typer.Option(help="On a cluster: return once the job is submitted.")] = False,
    token: _TokenOption = "",
    attach: Annotated[bool, typer.Option(help="On a cluster: follow the job if it is already running.")] = False,
    name: Annotated[str, typer.Option(help="Job name instead of the job file's.")] = "",
    engine: Annotated[str, typer.Option(help="Without --cluster: embedded, or spark.")] = "embedded",
    master: MasterOption = "",
    spark_conf: SparkConfOption = None,
    taskmanagers: _TaskManagersOption = "2",
    slots: _SlotsOption = None,
    taskmanager_timeout: TimeoutOption = "",
    host: _HostOption = "127.0.0.1",
    insecure: InsecureOption = False,
    settings: SettingsOption = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the job to a file for the web interface; start nothing.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a job file; resume from its newest checkpoint."""
    require_job_file(job)
    on_cluster = cluster is not None or detached or bool(token) or attach
    _check_engine(engine, master, spark_conf, on_cluster=on_cluster)
    overrides = parse_overrides(settings or [], parallelism)
    if write is not None:
        _write(job, overrides, write)
        return
    options = SubmitOptions(
        from_uri=from_uri,
        claim=not no_claim,
        fresh=fresh,
        accept_duplicates=accept_duplicates,
        allow_non_restored_state=tuple(allow_non_restored_state or ()),
        token=token,
        attach=attach,
        name=name,
    )
    with JobProgress(enabled=not json, attached=attach) as progress, contextlib.ExitStack() as stack:
        executor: ClusterExecutor | EmbeddedExecutor | SparkExecutor
        if engine == "spark":
            bounds = taskmanager_bounds(taskmanagers, slots or 1, taskmanager_timeout, on_spark=True)
            executor = spark_executor(master, spark_conf, bounds, slots=slots or 0, host=host, insecure=bool(insecure))
            executor.options = options
            executor.on_started = lambda address: progress.note(f"the JobManager is at {address}")
        elif not on_cluster:
            if note := beside_cluster():
                progress.note(note)
            executor = EmbeddedExecutor(options=options, on_printed=progress.note, on_step=progress.step)
            stack.callback(executor.close)
            executor.launch()
        else:
            executor = cluster_executor(cluster, options)
            executor.detached, executor.on_step = detached, progress.step
        progress.step(f"reading {job}")
        executor.on_poll = progress.on_poll
        commands = JobCommands(job, cluster or "", name, overrides)
        results = _executed(commands, executor, overrides, progress)
    _tell(results, commands, as_json=json)


@dataclass(frozen=True, slots=True)
class JobCommands:
    """Commands on the submitted job, for hints."""

    job: Path
    #: The `--cluster` of the commands; empty if they need none.
    cluster: str
    #: The name and the settings of the command line.
    name: str = ""
    overrides: dict[str, str] = field(default_factory=dict)

    def of(self, command: str, name: str) -> str:
        """Return a command on the job of that name."""
        return job_command(command, name, self.cluster)

    @property
    def follow(self) -> str:
        """Return the command that follows exactly this job: the job file alone may be another one."""
        settings = [word for key, value in self.overrides.items() for word in ("--set", f"{key}={value}")]
        named = ["--name", self.name] if self.name else []
        return shlex.join(
            ["penstock", "run", str(self.job), "--attach", *named, *settings, *cluster_option(self.cluster)]
        )


def _executed(
    commands: JobCommands, executor: JobExecutor, overrides: dict[str, str], progress: JobProgress
) -> list[JobResult]:
    """Run the job file; its imports run while the cluster's processes start."""
    from penstock.api.building.executors import use_executor

    with use_executor(executor, overrides) as results:
        try:
            execute_file(commands.job)
        except KeyboardInterrupt:
            if isinstance(executor, ClusterExecutor) and executor.submitted is not None:
                name = executor.submitted.name
                say(f"\n{name} keeps running in the cluster")
                say(
                    f"  `{commands.of('stop', name)}` ends it with a savepoint, `{commands.of('cancel', name)}` without"
                )
                say(f"  `{commands.follow}` follows it again")
            else:
                for line in progress.so_far():
                    say(line)
            raise
    if not results:
        msg = f"{commands.job} ran to its end without calling env.execute(...)"
        raise UsageError(msg, hint="end the job file with env.execute('name')")
    return results


def _tell(results: list[JobResult], commands: JobCommands, *, as_json: bool) -> None:
    for result in results:
        if as_json:
            print_json(_document(result))
        elif result.state in TERMINAL:
            say(f"{result.name} {result.job_id} {result.state} after {result.duration_ms / 1000:.1f} s")
            for line in _totals(result):
                say(line)
        else:
            say(f"{result.name} {result.job_id} is submitted")
            say(f"  `{commands.of('show', result.name)}` shows it, `{commands.follow}` follows it")
            if result.resumed_from:
                say(f"  it resumes from {result.resumed_from}")
            if result.waits_for:
                say(f"  it waits for slots: it needs {result.waits_for}")


def _document(result: JobResult) -> dict[str, Any]:
    document: dict[str, Any] = {"jobid": result.job_id, "name": result.name, "state": result.state}
    if result.state in TERMINAL:
        document |= {"checkpoints": result.checkpoints, "restarts": result.restarts}
        document |= {"rows-read": result.rows_read, "rows-written": result.rows_written}
        document |= {"bad-records": result.bad_records, "late-records": result.late_rows}
        document |= {"bad-record-examples": result.bad_record_examples}
    return document


def _totals(result: JobResult) -> list[str]:
    """Return the totals of an ended job (rows read, written, dropped), one line each."""
    unread = [f"  {line}" for line in result.unread]
    if result.nothing_left and unread:
        return [f"  it resumed from {result.resumed_from} and read no rows", *unread]
    if result.nothing_left:
        return [f"  nothing was left to do since {result.resumed_from}; --fresh starts over"]
    lines = [f"  read {counted(count, 'row')} from {uid}" for uid, count in result.rows_read.items()]
    for uid, count in result.bad_records.items():
        example = result.bad_record_examples.get(uid, "")
        restarted = bool(result.restarts or result.jobmanagers_replaced)
        first = f"; {first_bad_record(restarted=restarted)}: {example}" if example else ""
        lines.append(f"  bad records in source {uid}: {count:,}{first}")
    lines += [f"  dropped {counted(count, 'late row')} at {name}" for name, count in result.late_rows.items()]
    lines += [f"  wrote {counted(count, 'row')} to {uid}" for uid, count in result.rows_written.items()]
    lines += [*(f"  {warning}" for warning in result.warnings), *unread]
    if result.jobmanagers_replaced:
        lines.append("  its JobManager was replaced; these counts begin there")
    if result.restarts:
        times = "once" if result.restarts == 1 else f"{result.restarts} times"
        lines.append(f"  the job restarted {times}")
        if result.last_failure:
            lines.append(f"  it restarted because: {result.last_failure}")
    return lines


def _check_engine(engine: str, master: str, spark_conf: list[str] | None, *, on_cluster: bool) -> None:
    if engine not in {"embedded", "spark"} or (engine == "spark") != bool(master):
        msg = f"--engine {engine} with --master {master or '(none)'}"
        raise UsageError(msg, hint="--engine spark needs --master, --engine embedded (the default) takes none")
    if master and on_cluster:
        msg = "--engine spark starts its own cluster, but --cluster, --detached, --token or --attach name another"
        raise UsageError(msg, hint="omit one of them")
    if not master:
        refuse_settings(spark_conf, way="run it with --engine spark --master URL")


def _write(job: Path, overrides: dict[str, str], to: Path) -> None:
    """Write the job graph of a job file to a file for the web interface and REST."""
    encoded = encode_graph(planned(job, overrides, ""))
    try:
        to.write_bytes(encoded)
    except OSError as error:
        msg = f"cannot write {to}: {error.strerror}"
        raise UsageError(msg, hint="pass another path to --write") from error
    say(f"{to}: {len(encoded):,} bytes; start it in the web interface, or send it to POST /v1/penstock/submit")


def parse_overrides(settings: list[str], parallelism: int | None = None) -> dict[str, str]:
    """Return settings of `key=value` texts, and of `parallelism` if it is given; raises UsageError."""
    overrides = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            msg = f"--set {setting!r} has no value"
            raise UsageError(msg, hint="use --set key=value")
        require_of_job(key, value)
        overrides[key] = value
    if parallelism is not None:
        overrides["parallelism"] = str(parallelism)
    overridden(JobSettings(), overrides)  # an error here names no line of the job file
    return overrides
