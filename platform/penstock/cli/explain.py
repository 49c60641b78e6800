"""`penstock explain JOB`: how a job runs, and which operator takes how much of its time."""

from __future__ import annotations

from rich.table import Table

from penstock.cli.jobs import JobArgument
from penstock.cli.options import ClusterOption, JsonOption, connect, find_job, print_json
from penstock.cli.terminal import terminal


def explain(job: JobArgument, *, cluster: ClusterOption = None, json: JsonOption = False) -> None:
    """Show the time budget of a job, operator by operator: CPU time, its share of the job's, and per second."""
    with connect(cluster) as client:
        found = client.budget(find_job(client, job)["jid"])
    if json:
        print_json(found)
        return
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
