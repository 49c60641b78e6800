"""`penstock explain JOB [watermark]`: which operator takes how much of the time, or what holds the watermark back."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Annotated, Any

import typer
from rich.table import Table

from penstock.cli.jobs import JobArgument
from penstock.cli.options import ClusterOption, JsonOption, connect, find_job, print_json
from penstock.cli.terminal import terminal


class What(enum.StrEnum):
    """What can be explained."""

    BUDGET = "budget"
    WATERMARK = "watermark"


def explain(
    job: JobArgument,
    what: Annotated[What, typer.Argument(help="The time budget, or what holds the watermark back.")] = What.BUDGET,
    *,
    cluster: ClusterOption = None,
    json: JsonOption = False,
) -> None:
    """Show the time budget of a job, operator by operator, or the partition that holds its watermark back."""
    with connect(cluster) as client:
        job_id = find_job(client, job)["jid"]
        found = client.budget(job_id) if what is What.BUDGET else client.watermark(job_id)
    if json:
        print_json(found)
    elif what is What.BUDGET:
        _print_budget(found)
    else:
        _print_watermark(found)


def _print_watermark(found: dict[str, Any]) -> None:
    console = terminal()
    console.print(f"[bold]{found['name']}[/] {found['jid']}")
    console.print(found["text"], markup=False)
    if found["held-by"] is not None:
        console.print(
            f"its watermark: {_time(found['held-by']['watermark'])}, since {_time(found['held-by']['since'])}"
        )
    table = Table("source", "partition", "subtask", "watermark", "stands for", "", box=None)
    for source in found["sources"]:
        for split in source["splits"]:
            state = "read" if split["finished"] else "idle" if split["idle"] else ""
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
    table = Table("operator", "uid", box=None)
    for heading in ("CPU ms", "share", "CPU ms/s", "busy ms"):
        table.add_column(heading, justify="right")
    for vertex in found["vertices"]:
        table.add_row(
            f"[bold]{vertex['name']}[/] x{vertex['parallelism']}", "", "", "", "", f"{vertex['busy-ms']:,.0f}"
        )
        for row in vertex["operators"]:
            cells = [row["cpu-ms"], row["share"], row["cpu-ms-per-second"], row["busy-ms"]]
            forms = [f"{cells[0]:,.0f}", f"{cells[1]:.1%}", f"{cells[2]:,.0f}", f"{cells[3]:,.0f}"]
            table.add_row(f"  {row['name']}", row["uid"], *forms)
        table.add_row("  [dim]around the operators[/]", "", "", "", "", f"{vertex['other-busy-ms']:,.0f}")
    console.print(table)
