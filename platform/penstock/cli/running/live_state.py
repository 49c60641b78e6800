"""`penstock state get` and `penstock show --state | --hot-keys`: the state of running jobs."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from penstock.cli.options import ClusterOption, JsonOption, connect, find_job, print_json, say
from penstock.cli.terminal import terminal
from penstock.client.rest_client import RestClient


def get(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job id, unique id prefix, or name.")],
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
            table.add_row(state["uid"], state["name"], *columns, *place, *figures, largest)
    return table


def _hot_keys(operators: list[dict[str, Any]]) -> Table:
    table = Table("uid", "key", "subtask", "rows (about)", "share", box=None)
    for operator in operators:
        for key in operator["keys"]:
            shown = ", ".join(str(value) for value in key["key"].values())
            table.add_row(operator["uid"], shown, str(key["subtask"]), f"{key['rows']:,.0f}", f"{key['share']:.1%}")
    return table
