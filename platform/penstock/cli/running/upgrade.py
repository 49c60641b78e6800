"""`penstock upgrade`: replaces a running job by a new version, with a rollback if it is not healthy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.api.job_file import planned
from penstock.cli.options import (
    ClusterOption,
    JsonOption,
    SettingsOption,
    TokenOption,
    connect,
    find_job,
    job_to_change,
    print_json,
    say,
)
from penstock.cli.running.jobs import JobArgument
from penstock.cli.start.run import parse_overrides
from penstock.client.handle import TERMINAL, JobHandle, request_upgrade
from penstock.client.operation_progress import OperationProgress, outside_text, waiting_text
from penstock.client.rest_client import RestClient, UpgradeOptions
from penstock.core.clock import SystemClock, utc_text
from penstock.core.errors import UsageError
from penstock.graph.job_graph import JobGraph


def upgrade(
    job: JobArgument,
    new: Annotated[
        Path | None, typer.Argument(metavar="[JOB.PY]", help="The new version; omitted with the next three options.")
    ] = None,
    *,
    status: Annotated[bool, typer.Option("--status", help="Show the progress of the newest upgrade.")] = False,
    healthy: Annotated[bool, typer.Option("--healthy", help="Accept the version on trial.")] = False,
    unhealthy: Annotated[bool, typer.Option("--unhealthy", help="Reject the version on trial and roll back.")] = False,
    from_checkpoint: Annotated[
        bool, typer.Option("--from-checkpoint", help="Continue from a checkpoint, without a savepoint.")
    ] = False,
    target: Annotated[str, typer.Option(help="Folder or URI for the savepoint.")] = "",
    canonical: Annotated[bool, typer.Option("--canonical", help="Write plain rows to the savepoint: later.")] = False,
    checkpoints: Annotated[int, typer.Option(help="Checkpoints to complete in the trial.")] = 3,
    max_restarts: Annotated[int, typer.Option(help="Restarts allowed during the trial.")] = 0,
    deadline: Annotated[str, typer.Option(help="Time limit of the trial.")] = "5m",
    confirm: Annotated[bool, typer.Option("--confirm", help="Require --healthy to accept the version.")] = False,
    no_rollback: Annotated[
        bool, typer.Option("--no-rollback", help="Do not withhold output; the new version stays.")
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(metavar="UID", help="Accept a sink that cannot withhold output: a rollback keeps its rows."),
    ] = None,
    allow_non_restored_state: Annotated[
        list[str] | None, typer.Option(metavar="UID[/STATE]", help="Drop state that it no longer has.")
    ] = None,
    parallelism: Annotated[int | None, typer.Option(help="Parallelism of the new version; default: unchanged.")] = None,
    settings: SettingsOption = None,
    token: TokenOption = "",
    detached: Annotated[bool, typer.Option(help="Return once it is requested; see --status.")] = False,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Replace a running job by another version.

    The old version stops with a savepoint, and the new one continues from there with its output withheld. If it is
    healthy in time, its output is released. Otherwise it is discarded, and the old version continues from there.
    """
    if (new is None) != (status or healthy or unhealthy):
        msg = "pass either the new version's file, or one of --status, --healthy and --unhealthy"
        raise UsageError(msg, hint="use `penstock upgrade JOB new.py`")
    options: UpgradeOptions = {
        "from_checkpoint": from_checkpoint,
        "target": target,
        "native": not canonical,
        "checkpoints": checkpoints,
        "max_restarts": max_restarts,
        "deadline": deadline,
        "confirm": confirm,
        "rollback": not no_rollback,
        "accept": tuple(accept or ()),
        "allow_non_restored_state": tuple(allow_non_restored_state or ()),
    }
    with connect(cluster) as client:
        if new is None:
            _decide_or_show(client, find_job(client, job), (healthy, unhealthy), as_json=json)
            return
        found, overrides = job_to_change(client, job, cluster, token), parse_overrides(settings or [], parallelism)
        options["keep_parallelism"], options["file"] = "parallelism" not in overrides, str(new)
        graph = _planned(new, overrides, found.name, quiet=json)
        if detached:
            _print_requested(found, request_upgrade(found, graph, token, options), as_json=json)
            return
        uri = found.upgrade(graph, token=token, on_poll=None if json else _Progress(found).show, **options)
    if json:
        print_json({"jobid": found.job_id, "name": found.name, "savepoint": uri})
        return
    say(f"{found.name} runs as {new}" + (f"; savepoint of the old version: {uri}" if uri else ""))


def _planned(new: Path, overrides: dict[str, str], name: str, *, quiet: bool) -> JobGraph:
    """Return the job graph of the new version; tell that it is read, which can take seconds."""
    if not quiet:
        say(f"reading {new}")
    return planned(new, overrides, name)


def _print_requested(handle: JobHandle, request_id: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"jobid": handle.job_id, "name": handle.name, "request-id": request_id})
    else:
        say(f"requested; see its progress with `{handle.command('upgrade')} --status`")


class _Progress:
    """Prints a line for each change of the upgrade, and what its present step waits for."""

    def __init__(self, job: JobHandle) -> None:
        self._job = job
        self._last = self._phase = ""
        self._waits = OperationProgress(say)
        self._parallelism_shown = False

    def show(self, view: dict[str, Any]) -> None:
        """Print the changes in `RestClient.newest_upgrade`; the reason of a failure is in the command's error."""
        text = _described({**view, "reason": ""})
        if not self._parallelism_shown:
            self._parallelism_shown = True
            for line in _parallelism(view):
                say(line)
        if text != self._last:
            say(text)
        if view["phase"] != self._phase:
            self._waits = OperationProgress(say)
        self._last, self._phase = text, view["phase"]
        awaited = waiting_text if self._phase == "cut" else outside_text
        self._waits.poll(lambda: self._job.client.summary(self._job.job_id), awaited)


def _described(view: dict[str, Any]) -> str:
    if view["phase"] == "cut":
        return f"the old version {'stops with a savepoint' if view['savepoint'] else 'takes a checkpoint and stops'}"
    if view["phase"] == "trial":
        done, restarts, held = view["checkpoints"], view["restarts"], view["held"]
        text = f"trial of the new version: checkpoint {done['completed']} of {done['wanted']}"
        allowed = f"of {restarts['allowed']} allowed" if restarts["allowed"] else "(none is allowed)"
        text += f", restarts: {restarts['seen']} {allowed}, {held['rows']:,} output rows withheld"
        return text + ("; waiting for --healthy or --unhealthy" if view["confirm"] else "")
    return f"upgrade {view['phase'].replace('-', ' ')}{view['reason'] and ': ' + view['reason']}"


def _details(view: dict[str, Any]) -> list[str]:
    """Return what is known of an upgrade beside its phase: the version, its times, the savepoint."""
    times = [("requested", view["begun"]), ("ended", view["ended"])]
    when = ", ".join(f"{what} at {utc_text(at_ms)}" for what, at_ms in times if at_ms is not None)
    lines = [
        f"new version: {view['file']}" if view["file"] else "",
        when,
        f"savepoint of the old version: {view['savepoint']}" if view["savepoint"] else "",
    ]
    return [f"  {line}" for line in lines if line]


def _parallelism(view: dict[str, Any]) -> list[str]:
    """Return a line for each operator whose parallelism differs from before, or from the new version's file."""
    lines = []
    for uid, count in view["parallelism"].items():
        if count["now"] == count["before"]:
            lines.append(
                f"{uid} keeps parallelism {count['now']} although the file says {count['file']};"
                " --parallelism N changes it"
            )
        else:
            lines.append(f"{uid}: parallelism {count['before']} -> {count['now']}")
    return lines


def _decide_or_show(client: RestClient, job: dict[str, Any], decision: tuple[bool, bool], *, as_json: bool) -> None:
    healthy, unhealthy = decision
    if healthy or unhealthy:
        client.judge_upgrade(job["jid"], healthy=healthy)
    view = client.newest_upgrade(job["jid"])
    if as_json:
        print_json(view)
        return
    text = _described(view)
    if view["phase"] in ("cut", "trial"):
        left = (view["deadline"] - SystemClock().now_ms()) / 1000
        ended = job["state"] in TERMINAL
        text = f"the upgrade has no outcome: the job is {job['state']}" if ended else f"{text}, {left:.0f} s left"
    for line in (text, *_details(view)):
        say(line)
