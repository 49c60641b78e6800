"""Commands on running jobs: list, show, cancel, stop, savepoint, rescale, story, logs.

Also `penstock state get`, which reads the state of a running job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from rich.table import Table

from penstock.cli.options import (
    ClusterOption,
    JsonOption,
    NativeOption,
    TokenOption,
    cluster_file,
    connect,
    find_job,
    job_to_change,
    print_json,
    say,
)
from penstock.cli.restart_wait import local_cluster
from penstock.cli.running.job_report import (
    counted_line,
    flow_table,
    load_lines,
    report_lines,
    state_text,
    story_lines,
    version_line,
    watermark_lag_ms,
    watermark_line,
)
from penstock.cli.terminal import terminal
from penstock.client.handle import JobHandle
from penstock.client.operation_progress import OperationProgress, cancelling_text
from penstock.client.rest_client import RestClient
from penstock.core.clock import SystemClock, utc_text
from penstock.core.errors import PenstockError, UsageError, job_command

#: A job whose tasks do not exit within 10 s is ended anyway.
_CANCEL_MS = 60_000.0
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Job id, unique id prefix, or name.")]


def list_jobs(*, cluster: ClusterOption = None, json: JsonOption = False) -> None:
    """List the jobs of a cluster."""
    with connect(cluster) as client:
        jobs = client.jobs()
    if json:
        print_json(jobs)
        return
    table = Table("name", "state", "started", "tasks running", "restarts", box=None)
    table.add_column("id", no_wrap=True, min_width=32)
    for job in jobs:
        running = f"{job['tasks'].get('running', 0)}/{job['tasks'].get('total', 0)}"
        table.add_row(job["name"], _state(job), utc_text(job["start-time"]), running, str(job["restarts"]), job["jid"])
    console = terminal()
    console.print(table)
    for job in jobs:
        if job["waits-for"]:
            console.print(
                f"{job['name']} is waiting for slots: it needs {job['waits-for']}", markup=False, soft_wrap=True
            )


def _state(job: dict[str, Any]) -> str:
    """Return the state of a job in `RestClient.jobs`, with a note on slots, regions or the last savepoint."""
    if job["waits-for"]:
        return f"{job['state']} (waits for slots)"
    if job["region-restart"]:
        return f"{job['state']} (a region restarts)"
    stopped = job["stopped-with"] and job["state"] == "FINISHED"  # an upgrade stops with a savepoint, too
    return f"{job['state']} (savepoint)" if stopped else str(job["state"])


def show(
    job: JobArgument,
    *,
    state: Annotated[bool, typer.Option("--state", help="Show its state: rows and bytes by key groups.")] = False,
    hot_keys: Annotated[bool, typer.Option("--hot-keys", help="Show the keys with the most rows.")] = False,
    all_frames: Annotated[bool, typer.Option("--all", help="Show all frames of the last failure.")] = False,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Show one job.

    The command prints the rows of sources, sinks and vertices, the watermark, checkpoints, problems, and the last
    failure: the lines of your code and the row that failed. Options print state or keys instead.
    """
    with connect(cluster) as client:
        found = find_job(client, job)
        if state or hot_keys:
            print_live(client, found["jid"], hot_keys=hot_keys, as_json=json)
            return
        details = client.job(found["jid"])
        checkpoints = client.checkpoints(found["jid"])
        failures = client.exceptions(found["jid"])
        summary = client.summary(found["jid"])
        findings = client.health(found["jid"])["findings"]
    now_ms = SystemClock().now_ms()
    if json:
        summary["watermark-lag-ms"] = watermark_lag_ms(summary, now_ms)
        print_json(
            {
                "job": details,
                "checkpoints": checkpoints,
                "exceptions": failures,
                "summary": summary,
                "findings": findings,
            }
        )
        return
    console = terminal()
    console.print(f"[bold]{details['name']}[/] {details['jid']} {state_text(details)}", soft_wrap=True)
    for line in version_line(summary):
        console.print(line, markup=False, soft_wrap=True)
    console.print(flow_table(summary))
    console.print(watermark_line(summary, now_ms), markup=False)
    table = Table("vertex", "parallelism", "status", "rows in", "rows out", box=None)
    for vertex in details["vertices"]:
        metrics = vertex["metrics"]
        table.add_row(
            vertex["name"],
            str(vertex["parallelism"]),
            vertex["status"],
            f"{metrics.get('read-records', 0):,}",
            f"{metrics.get('write-records', 0):,}",
        )
    console.print(table)
    report = report_lines(checkpoints, failures, summary, now_ms, all_frames=all_frames)
    for line in (*counted_line(summary), *load_lines(findings), *report):
        console.print(line, markup=False, soft_wrap=True)


def cancel(job: JobArgument, *, cluster: ClusterOption = None, json: JsonOption = False) -> None:
    """Cancel a job and wait for its end.

    Its checkpoints are kept, and a later run resumes from them.
    """
    with connect(cluster) as client:
        found = job_to_change(client, job, cluster)
        found.cancel()
        state = found.wait(timeout_ms=_CANCEL_MS, on_poll=None if json else _cancel_progress(found))
    if json:
        print_json({"jobid": found.job_id, "name": found.name, "state": state})
    else:
        say(f"{found.name} {found.job_id} is {state}")


def stop(
    job: JobArgument,
    *,
    drain: Annotated[bool, typer.Option(help="Fire all windows and timers first, as at the end of input.")] = False,
    target: Annotated[
        str | None, typer.Option(help="Folder or URI for the savepoint; default: the job's folder.")
    ] = None,
    native: NativeOption = False,
    token: TokenOption = "",
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Stop a job with a savepoint.

    The command prints the savepoint's location.
    """
    with connect(cluster) as client:
        found = job_to_change(client, job, cluster, token)
        progress = None if json else OperationProgress(say)
        with _continues_after_interrupt("stop", found):
            uri = found.stop(drain=drain, target=target, token=token, native=native, progress=progress)
    _print_savepoint(found, uri, as_json=json)


def savepoint(
    job: JobArgument,
    uri: Annotated[
        str | None, typer.Argument(help="Folder or URI for the savepoint; default: the job's folder.")
    ] = None,
    *,
    native: NativeOption = False,
    token: TokenOption = "",
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Take a savepoint of a running job.

    The command prints the savepoint's location.
    """
    with connect(cluster) as client:
        found = job_to_change(client, job, cluster, token)
        progress = None if json else OperationProgress(say)
        with _continues_after_interrupt("savepoint", found):
            location = found.savepoint(uri, token=token, native=native, progress=progress)
    _print_savepoint(found, location, as_json=json)


@contextlib.contextmanager
def _continues_after_interrupt(what: str, job: JobHandle) -> Iterator[None]:
    """Tell a user who interrupts a request that the cluster continues with it."""
    try:
        yield
    except KeyboardInterrupt:
        show = job.command("story" if what == "rescale" else "show")
        say(f"\nthe {what} of {job.name} continues in the cluster; `{show}` shows it until it has ended")
        raise


def _cancel_progress(job: JobHandle) -> Callable[[dict[str, Any]], None]:
    """Return a poll callback of `JobHandle.wait` that prints what a cancelled job waits for."""
    progress = OperationProgress(say)

    def text(summary: dict[str, Any]) -> str:
        return cancelling_text(summary, len(job.client.workers(job.job_id)))

    def poll(found: dict[str, Any]) -> None:
        if found["state"] == "CANCELLING":
            with contextlib.suppress(PenstockError):  # the JobManager is restarting: the next poll looks again
                progress.poll(lambda: job.client.summary(job.job_id), text)

    return poll


def story(job: JobArgument, *, cluster: ClusterOption = None, json: JsonOption = False) -> None:
    """Print the event log of a job.

    With a name, the command prints all jobs of that name, oldest first; with a job id, that job.
    """
    with connect(cluster) as client:
        found = find_job(client, job)
        entries = client.story(found["name"] if found["name"] == job else found["jid"])
    if json:
        print_json(entries)
        return
    for line in story_lines(entries):
        say(line)


def logs(
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="Job id, unique id prefix, or name.")] = "",
    *,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Print the end of the logs of a job's workers.

    If the job has no workers, the logs are those of its last ones; if one of them failed, only the log of that one.
    """
    if not job:
        record = None if cluster else local_cluster(cluster_file())
        own = f"; logs of the cluster's own processes are in {record['directory']}" if record else ""
        raise UsageError("logs needs a job", hint=f"`penstock logs JOB`; `penstock list` shows the jobs{own}")
    with connect(cluster) as client:
        found = find_job(client, job)
        workers = client.workers(found["jid"])
        if not workers:
            workers = [{**worker, "pid": None} for worker in client.last_workers(found["jid"])]
        workers = [{**worker, "log": _log_of(client, worker["id"])} for worker in workers]
    if json:
        print_json(workers)
        return
    if not workers:
        show, story_of_it = (job_command(command, found["name"], cluster or "") for command in ("show", "story"))
        say(f"job {found['name']} is {found['state']} and has no workers; see `{show}` and `{story_of_it}`")
    for worker in workers:
        ended = f"exited; the job is {found['state']}"
        what = f"pid {worker['pid']}" if worker["pid"] is not None else ended
        say(f"--- {worker['id']} ({what}, {worker['taskmanager']})")
        say(worker["log"])


def _log_of(client: RestClient, worker_id: str) -> str:
    """Return the tail of a log, or an error text."""
    try:
        return client.log(worker_id)
    except PenstockError as error:
        return f"no log: {error}"


def _print_savepoint(job: JobHandle, uri: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"jobid": job.job_id, "name": job.name, "savepoint": uri})
    else:
        say(f"savepoint of {job.name}: {uri}")


def rescale(
    job: JobArgument,
    parallelism: Annotated[
        int | None, typer.Argument(metavar="[N]", help="Parallelism of all vertices that use the job's default.")
    ] = None,
    *,
    vertex: Annotated[
        list[str] | None, typer.Option(metavar="UID=N", help="Parallelism of an operator, by uid; repeatable.")
    ] = None,
    token: TokenOption = "",
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Change the parallelism of a running job.

    It continues from a checkpoint, or unchanged if slots are missing.
    """
    vertices = dict(map(_vertex_parallelism, vertex or []))
    with connect(cluster) as client:
        found = job_to_change(client, job, cluster, token)
        progress = None if json else OperationProgress(say)
        with _continues_after_interrupt("rescale", found):
            found.rescale(parallelism, vertices=vertices, token=token, progress=progress)
        after = {v["name"]: v["parallelism"] for v in client.job(found.job_id)["vertices"]}
    if json:
        print_json({"jobid": found.job_id, "name": found.name, "parallelism": after})
        return
    say(f"{found.name} runs with " + ", ".join(f"{name} x{count}" for name, count in after.items()))
    own = [name for name, count in after.items() if parallelism is not None and count != parallelism]
    if own and not vertices:
        say(f"{', '.join(own)}: keeps its own parallelism; --vertex UID=N changes it")


def _vertex_parallelism(text: str) -> tuple[str, int]:
    uid, _, count = text.rpartition("=")
    if not uid or not count.isdigit():
        msg = f"--vertex {text!r} is not of the form UID=N"
        raise UsageError(msg, hint="for example --vertex totals=3")
    return uid, int(count)


def get(
    job: JobArgument,
    uid: Annotated[str, typer.Argument(metavar="UID", help="The operator's uid.")],
    name: Annotated[str, typer.Argument(metavar="STATE", help="The state's name.")],
    key: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="A value for each key column, or a JSON array or object.")
    ],
    *,
    limit: Annotated[int, typer.Option(help="Maximum number of rows.")] = 1000,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Print the state of a key in a running job.

    The value is the current one (read uncommitted).
    """
    with connect(cluster) as client:
        found = client.state_value(find_job(client, job)["jid"], uid, name, key, limit)
    if json:
        print_json(found)
        return
    table = Table(*(column["name"] for column in found["schema"]), box=None)
    for row in found["rows"]:
        table.add_row(*map(str, row.values()))
    terminal().print(table)
    if found["more"]:
        say(f"only the first {limit} rows; use --limit for more")


def print_live(client: RestClient, job_id: str, *, hot_keys: bool, as_json: bool) -> None:
    """Print the states of a running job, or its hottest keys."""
    found = client.hot_keys(job_id) if hot_keys else client.states(job_id)
    if as_json:
        print_json(found)
    else:
        terminal().print(_hot_keys(found) if hot_keys else _states(found))


def _states(states: list[dict[str, Any]]) -> Table:
    table = Table("uid", "state", "key", "value", "subtask", "key groups", "rows", "bytes", "largest group", box=None)
    for state in states:
        columns = ", ".join(state["key"]), ", ".join(f"{c['name']} {c['type']}" for c in state["schema"])
        for part in state["subtasks"]:
            first, last = part["key-groups"]
            largest = next((f"{g['key-group']}: {g['rows']:,}" for g in part["largest-groups"]), "")
            figures = [f"{part['rows']:,}", f"{part['bytes']:,}"]
            place = str(part["subtask"]), f"{first}-{last}"
            table.add_row(state["uid"], state["title"], *columns, *place, *figures, largest)
    return table


def _hot_keys(operators: list[dict[str, Any]]) -> Table:
    table = Table("uid", "key", "subtask", "rows (about)", "share", box=None)
    for operator in operators:
        for key in operator["keys"]:
            shown = ", ".join(str(value) for value in key["key"].values())
            table.add_row(operator["uid"], shown, str(key["subtask"]), f"{key['rows']:,.0f}", f"{key['share']:.1%}")
    return table
