"""`penstock explain JOB [WHAT]`: time per operator, the split that holds the watermark back, autoscaler decisions."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from penstock.cli.options import ClusterOption, JsonOption, connect, find_job, print_json
from penstock.cli.running.job_report import load_lines
from penstock.cli.running.jobs import JobArgument
from penstock.cli.terminal import terminal
from penstock.client.failures import slow_calls
from penstock.core.clock import SystemClock


class What(enum.StrEnum):
    """The subjects that can be explained."""

    BUDGET = "budget"
    WATERMARK = "watermark"
    SCALING = "scaling"


def explain(
    job: JobArgument,
    what: Annotated[
        What, typer.Argument(help="The time budget, the split that holds the watermark back, or the autoscaler.")
    ] = What.BUDGET,
    *,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Show where a job spends its time.

    It also shows the partition that holds back the watermark, and the autoscaler's decisions.
    """
    with connect(cluster) as client:
        job_id = find_job(client, job)["jid"]
        match what:
            case What.BUDGET:
                found = {
                    **client.budget(job_id),
                    "findings": client.health(job_id)["findings"],
                    "slow-calls": client.summary(job_id)["slow-calls"],
                }
            case What.WATERMARK:
                found = client.watermark(job_id)
            case What.SCALING:
                found = client.autoscaler(job_id)
    if json:
        print_json(found)
        return
    {What.BUDGET: _print_budget, What.WATERMARK: _print_watermark, What.SCALING: _print_scaling}[what](found)


def _print_scaling(found: dict[str, Any]) -> None:
    console = terminal()
    mode = "off" if not found["enabled"] else "dry run" if found["dry-run"] else "on"
    known = f"measured, {found['restarts-measured']}" if found["restarts-measured"] else "assumed"
    cost = f"a restart costs {found['restart-ms'] / 1000:.1f} s ({known})"
    console.print(f"[bold]{found['name']}[/] {found['jid']} autoscaler {mode}, {cost}")
    log = Table("since", "until", "decision", "", "outcome", box=None)
    for entry in found["decisions"]:
        log.add_row(_time(entry["at"]), _time(entry["until"]), entry["kind"], escape(entry["text"]), entry["outcome"])
    console.print(log)
    if found["decisions"]:
        last = Table("operators", "subtasks", "wanted", "true rate", "wanted rate", "utilization", box=None)
        for row in found["decisions"][0]["vertices"].values():
            rates = [f"{row[name]:,.0f}" for name in ("true-rate", "wanted-rate")]
            counts = [str(row["parallelism"]), str(row["wanted"])]
            last.add_row(escape(row["name"]), *counts, *rates, f"{row['utilization']:.0%}")
        console.print(last)


def _print_watermark(found: dict[str, Any]) -> None:
    console = terminal()
    console.print(f"[bold]{found['name']}[/] {found['jid']}")
    console.print(found["text"], markup=False)
    if found["held-by"] is not None:
        console.print(
            f"its watermark: {_time(found['held-by']['watermark'])}, since {_time(found['held-by']['since'])}"
        )
    table = Table("source", "partition", "subtask", "watermark", "standing for", "", box=None)
    for source in found["sources"]:
        for split in source["splits"]:
            silent = "no answer" if source["unreachable-ms"] else ""
            state = "read" if split["finished"] else "idle" if split["idle"] else silent
            stands = f"{split['standing-ms'] / 1000:,.1f} s"
            table.add_row(source["uid"], split["id"], str(split["subtask"]), _time(split["watermark"]), stands, state)
    console.print(table)
    behind = Table("operators", "watermark", box=None)
    for vertex in found["vertices"]:
        behind.add_row(vertex["name"], _time(vertex["watermark"]))
    console.print(behind)


def _time(at_ms: int | None) -> str:
    if at_ms is None:
        return "none yet"
    try:
        return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat(sep=" ", timespec="milliseconds")
    except (OverflowError, ValueError):
        return "the end of time"


def _print_budget(found: dict[str, Any]) -> None:
    console = terminal()
    console.print(f"[bold]{found['name']}[/] {found['jid']} {found['cpu-ms']:,.0f} ms of CPU time in operators")
    for line in (*slow_calls(found, SystemClock().now_ms()).values(), *load_lines(found["findings"])):
        console.print(line, markup=False, soft_wrap=True)
    table = Table("operator", "uid", box=None)
    for heading in ("CPU ms", "share", "CPU ms/s", "busy ms", "busy ms/s"):
        table.add_column(heading, justify="right")
    for vertex in found["vertices"]:
        table.add_row(
            f"[bold]{vertex['name']}[/] x{vertex['parallelism']}", "", "", "", "", f"{vertex['busy-ms']:,.0f}", ""
        )
        for row in vertex["operators"]:
            times = [f"{row[name]:,.0f}" for name in ("cpu-ms-per-second", "busy-ms", "busy-ms-per-second")]
            table.add_row(f"  {row['name']}", row["uid"], f"{row['cpu-ms']:,.0f}", f"{row['share']:.1%}", *times)
        table.add_row("  [dim]around the operators[/]", "", "", "", "", f"{vertex['other-busy-ms']:,.0f}", "")
    console.print(table)
