"""`penstock rescale`: changes the parallelism of a running job, from a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import ClusterOption, JsonOption, TokenOption, connect, job_to_change, print_json, say
from penstock.cli.running.jobs import JobArgument
from penstock.core.errors import UsageError


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
    vertices = dict(map(_of, vertex or []))
    with connect(cluster) as client:
        found = job_to_change(client, job, token)
        found.rescale(parallelism, vertices=vertices, token=token)
        after = {v["name"]: v["parallelism"] for v in client.job(found.job_id)["vertices"]}
    if json:
        print_json({"jobid": found.job_id, "name": found.name, "parallelism": after})
        return
    say(f"{found.name} runs with " + ", ".join(f"{name} x{count}" for name, count in after.items()))


def _of(text: str) -> tuple[str, int]:
    uid, _, count = text.rpartition("=")
    if not uid or not count.isdigit():
        msg = f"--vertex {text!r} is not of the form UID=N"
        raise UsageError(msg, hint="for example --vertex totals=3")
    return uid, int(count)
