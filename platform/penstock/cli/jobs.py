"""Commands on running jobs: list, show, cancel, stop, savepoint, story, logs."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import typer
from rich.table import Table

from penstock.cli.live_state import print_live
from penstock.cli.options import ClusterOption, JsonOption, connect, find_job, print_json, say
from penstock.cli.terminal import terminal
from penstock.client.handle import JobHandle

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Job id, a unique beginning of it, or the job's name.")]


def list_jobs(*, cluster: ClusterOption = None, json: JsonOption = False) -> None:
    """List the jobs of a cluster."""
    with connect(cluster) as client:
        jobs = client.jobs()
    if json:
        print_json(jobs)
        return
    table = Table("name", "state", "started", "tasks running", box=None)
    table.add_column("id", no_wrap=True, min_width=32)
    for job in jobs:
        running = f"{job['tasks'].get('running', 0)}/{job['tasks'].get('total', 0)}"
        table.add_row(job["name"], job["state"], _when(job["start-time"]), running, job["jid"])
    terminal().print(table)


def show(
    job: JobArgument,
    *,
    state: Annotated[bool, typer.Option("--state", help="The state it holds: rows and bytes by key groups.")] = False,
    hot_keys: Annotated[bool, typer.Option("--hot-keys", help="The keys with the most rows.")] = False,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Show one job: vertices with rates, checkpoints, the last failure; or what its state is, or its hottest keys."""
    with connect(cluster) as client:
        found = find_job(client, job)
        if state or hot_keys:
            print_live(client, found["jid"], hot_keys=hot_keys, as_json=json)
            return
        details = client.job(found["jid"])
        checkpoints = client.checkpoints(found["jid"])
        failures = client.exceptions(found["jid"])
    if json:
        print_json({"job": details, "checkpoints": checkpoints, "exceptions": failures})
        return
    console = terminal()
    console.print(
        f"[bold]{details['name']}[/] {details['jid']} {details['state']} since {_when(details['start-time'])}"
    )
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
    counts = checkpoints["counts"]
    latest = (checkpoints["latest"] or {}).get("completed")
    text = f"checkpoints: {counts['completed']} completed, {counts['failed']} failed"
    if latest:
        text += (
            f"; newest {latest['id']} at {_when(latest['latest_ack_timestamp'])}, {latest['end_to_end_duration']} ms"
        )
    console.print(text)
    if failures.get("root-exception"):
        console.print(f"last failure: {str(failures['root-exception']).strip().splitlines()[0]}", markup=False)


def cancel(job: JobArgument, *, cluster: ClusterOption = None) -> None:
    """Cancel a job; its checkpoints are kept and a later run resumes them."""
    with connect(cluster) as client:
        found = find_job(client, job)
        client.cancel(found["jid"])
    say(f"canceling {found['jid']} {found['name']}")


def stop(
    job: JobArgument,
    *,
    drain: Annotated[bool, typer.Option(help="Fire all windows and timers first, as at the end of input.")] = False,
    target: Annotated[str | None, typer.Option(help="URI of the savepoint.")] = None,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Stop a job with a savepoint and print where it lies."""
    with connect(cluster) as client:
        found = find_job(client, job)
        uri = JobHandle(client, found["jid"], found["name"]).stop(drain=drain, target=target)
    _print_savepoint(found, uri, as_json=json)


def savepoint(
    job: JobArgument,
    uri: Annotated[
        str | None, typer.Argument(help="Where to write it; default: under the job's checkpoint root.")
    ] = None,
    *,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Take a savepoint of a running job and print where it lies."""
    with connect(cluster) as client:
        found = find_job(client, job)
        location = JobHandle(client, found["jid"], found["name"]).savepoint(uri)
    _print_savepoint(found, location, as_json=json)


def story(job: JobArgument, *, cluster: ClusterOption = None, json: JsonOption = False) -> None:
    """Print what the job's coordinator saw and decided, and those before it."""
    with connect(cluster) as client:
        entries = client.story(find_job(client, job)["jid"])
    if json:
        print_json(entries)
        return
    several, leader = len({entry["generation"] for entry in entries}) > 1, None
    for entry in entries:
        if several and entry["generation"] != leader:
            leader = entry["generation"]
            say(f"--- the leader of generation {leader}")
        say(f"{_when(entry['at_ms'])} {entry['kind']:<12} {entry['text']}")


def logs(job: JobArgument, *, cluster: ClusterOption = None) -> None:
    """Print the tail of the logs of a job's workers."""
    with connect(cluster) as client:
        for worker in client.workers(find_job(client, job)["jid"]):
            say(f"--- {worker['id']} (pid {worker['pid']}, {worker['taskmanager']})")
            say(client.log(worker["id"]))


def _print_savepoint(job: dict[str, Any], uri: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"jobid": job["jid"], "name": job["name"], "savepoint": uri})
    else:
        say(f"savepoint of {job['name']}: {uri}")


def _when(timestamp_ms: int) -> str:
    return dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
