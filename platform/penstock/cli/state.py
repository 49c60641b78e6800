"""`penstock state ...`: look at snapshots: what there is, what they hold, what differs, whether they are whole."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from penstock.cli.live_state import get
from penstock.cli.options import JsonOption, print_json, say
from penstock.cli.terminal import terminal
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from penstock.checkpoint.manifest import Manifest
    from penstock.snapshots.opening import Snapshot

commands = typer.Typer(help="Look at snapshots, and at the state of running jobs.", no_args_is_help=True)
commands.command("get")(get)

UriArgument = Annotated[
    str, typer.Argument(metavar="URI", help="A savepoint's folder, or CHECKPOINT_ROOT/JOB for its newest checkpoint.")
]
CheckpointOption = Annotated[
    int | None, typer.Option("--checkpoint", help="The checkpoint of that sequence instead of the newest.")
]


@commands.command("ls")
def list_snapshots(
    uri: Annotated[str, typer.Argument(metavar="URI", help="A checkpoint root, a job's folder or a savepoint.")],
    *,
    json: JsonOption = False,
) -> None:
    """List the snapshots at a place: checkpoints and savepoints of every job."""
    found = _listed(uri)
    if json:
        print_json(found)
        return
    table = Table("job", "kind", "sequence", "checkpoint", "taken", "rows", "bytes", "where", box=None)
    for row in found:
        cells = [row[name] for name in ("job", "kind", "sequence", "checkpoint")]
        figures = [f"{row['rows']:,}", f"{row['bytes']:,}"]
        table.add_row(*map(str, cells), _when(row["created-ms"]), *figures, row["uri"])
    terminal().print(table)


@commands.command("show")
def show(uri: UriArgument, *, checkpoint: CheckpointOption = None, json: JsonOption = False) -> None:
    """Show what one snapshot holds: its states with their columns and sizes."""
    from penstock.snapshots.content import states_of

    snapshot = _open(uri, checkpoint)
    states = [state.as_json() for state in states_of(snapshot.manifest)]
    head = {**_summary(snapshot), "operators": _operators(snapshot.manifest), "states": states}
    if json:
        print_json(head)
        return
    console = terminal()
    console.print(
        f"[bold]{head['job']}[/] {head['kind']} {head['checkpoint']}, taken {_when(head['created-ms'])},"
        f" {head['key-groups']} key groups, {head['pending-rows']:,} rows of output not yet published"
    )
    table = Table("uid", "state", "key", "value", "subtasks", "files", "rows", "bytes", box=None)
    for row in states:
        columns = [", ".join(row["key"]), ", ".join(row["value"])]  # type: ignore[arg-type] # lists of texts
        figures = [f"{row[name]:,}" for name in ("subtasks", "files", "rows", "bytes")]
        table.add_row(str(row["uid"]), str(row["state"]), *columns, *figures)
    console.print(table)


@commands.command("read")
def read(
    uri: UriArgument,
    uid: Annotated[str, typer.Argument(metavar="UID", help="The operator's uid.")],
    name: Annotated[str | None, typer.Argument(metavar="[STATE]", help="The state's name.")] = None,
    *,
    checkpoint: CheckpointOption = None,
    where: Annotated[str | None, typer.Option(help="Rows to keep, as SQL: --where 'user_id = 7'.")] = None,
    limit: Annotated[int, typer.Option(help="Rows at most; 0: all.")] = 20,
    output: Annotated[Path | None, typer.Option(help="Write all rows to a .parquet or .csv file instead.")] = None,
    json: JsonOption = False,
) -> None:
    """Print the live rows of one state."""
    import polars as pl

    from penstock.snapshots.content import find_state
    from penstock.snapshots.reading import frame_of

    snapshot = _open(uri, checkpoint)
    rows = frame_of(snapshot, find_state(snapshot.manifest, uid, name))
    if where is not None:
        columns = rows.collect_schema().names()
        try:
            rows = rows.filter(pl.sql_expr(where))
            rows.collect_schema()
        except pl.exceptions.PolarsError as error:
            msg = f"--where {where!r}: {str(error).splitlines()[0]}"
            raise UsageError(msg, hint=f"columns: {', '.join(columns)}") from error
    if output is not None:
        _write(rows.collect(), output)
        return
    found = (rows.head(limit) if limit else rows).collect()
    if json:
        print_json(found.to_dicts())
        return
    table = Table(*found.columns, box=None)
    for row in found.iter_rows():
        table.add_row(*map(str, row))
    terminal().print(table)
    if limit and found.height == limit:
        say(f"the first {limit} rows; --limit 0 prints all, --output FILE writes them")


@commands.command("diff")
def diff(
    uri: UriArgument,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The newer snapshot.")],
    *,
    json: JsonOption = False,
) -> None:
    """Say which states of two snapshots differ, and in how many rows; exit code 1 when some do."""
    from penstock.snapshots.compare import diff as compare

    found = compare(_open(uri), _open(other))
    if json:
        print_json([dataclasses.asdict(row) for row in found])
    else:
        table = Table("uid", "state", "verdict", "added", "removed", "changed", "unchanged", box=None)
        for row in found:
            figures = [f"{n:,}" for n in (row.added, row.removed, row.changed, row.unchanged)]
            table.add_row(row.uid, row.state, row.verdict, *figures)
        terminal().print(table)
    if any(row.verdict != "same" for row in found):
        raise typer.Exit(1)


@commands.command("fsck")
def fsck(uri: UriArgument, *, checkpoint: CheckpointOption = None, json: JsonOption = False) -> None:
    """Verify every file a snapshot names, of a job's folder in all checkpoints; exit code 1 when one is damaged."""
    from penstock.snapshots.verify import verify

    report = verify(uri, checkpoint=checkpoint)
    if json:
        print_json({**dataclasses.asdict(report), "ok": not report.damaged})
    else:
        for damage in report.damaged:
            say(f"{damage.file}: {damage.problem}")
            say(f"    named by {damage.manifest} {f'for {damage.state}' if damage.state else ''}".rstrip())
            say(f"    {damage.remedy}")
        for title, files in (("not referenced", report.unreferenced), ("unknown", report.unknown)):
            for name in files:
                say(f"{title}: {name}")
        say(
            f"{len(report.damaged)} damaged; {report.manifests} manifests, {report.files} files,"
            f" {report.size_bytes:,} bytes verified; {len(report.unreferenced)} files that no manifest names,"
            f" {len(report.unknown)} unknown"
        )
    if report.damaged:
        raise typer.Exit(1)


@commands.command("repartition")
def repartition(
    uri: UriArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A new folder for the savepoint.")],
    *,
    key_groups: Annotated[int | None, typer.Option(help="Number of key groups; default: as many as it has.")] = None,
    master: Annotated[str | None, typer.Option(help="Master of Spark that does the work if there is much.")] = None,
    spark_above: Annotated[int, typer.Option(help="Bytes of state that are much.", min=0)] = 1 << 30,
    checkpoint: CheckpointOption = None,
    json: JsonOption = False,
) -> None:
    """Write a snapshot anew as a savepoint, merged, with another number of key groups; nothing has to run."""
    from penstock.snapshots.repartition import Run, in_turn, state_bytes
    from penstock.snapshots.repartition import repartition as write_anew

    snapshot = _open(uri, checkpoint)
    with contextlib.ExitStack() as stack:
        run: Run = in_turn
        if master is not None and state_bytes(snapshot) > spark_above:
            try:
                from penstock.snapshots.spark_repartition import on_spark
                from penstock.snapshots.spark_session import open_session
            except ImportError as error:
                raise UsageError("Spark is not installed", hint="pip install 'penstock[spark]'") from error
            run = on_spark(stack.enter_context(open_session(master)))
        written = write_anew(snapshot, target, key_groups=key_groups, run=run)
    if json:
        print_json(_summary(_open(written)))
    else:
        say(f"savepoint written: {written}")


@commands.command("rekey")
def rekey(
    uri: UriArgument,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A new folder for the savepoint.")],
    *,
    uid: Annotated[str, typer.Option(help="The operator whose state gets another key.")],
    key: Annotated[
        list[str], typer.Option(help="A column of the new key: NAME, or 'NAME=SQL'; once for each, in order.")
    ],
    checkpoint: CheckpointOption = None,
    json: JsonOption = False,
) -> None:
    """Write a snapshot anew as a savepoint with another key for one operator's state; nothing has to run."""
    from penstock.snapshots.rekey import rekey as write_anew

    written = write_anew(_open(uri, checkpoint), target, uid=uid, key=key)
    if json:
        print_json(_summary(_open(written)))
    else:
        say(f"savepoint written: {written}")


def _open(uri: str, checkpoint: int | None = None) -> Snapshot:
    from penstock.snapshots.opening import open_snapshot

    return open_snapshot(uri, checkpoint=checkpoint)


def _listed(uri: str) -> list[dict[str, Any]]:
    from penstock.checkpoint.stores import join_uri, open_store
    from penstock.core.errors import NotFoundError
    from penstock.snapshots import opening

    store = open_store(uri.rstrip("/"))
    jobs = opening.jobs_of(store)
    if not jobs and not store.list("manifests/"):
        return [_summary(_open(uri))]
    found: list[dict[str, Any]] = []
    for folder in [join_uri(uri, job) for job in jobs] or [uri]:
        job_store = open_store(folder)
        for manifest in opening.read_log(job_store):
            if manifest.kind == "checkpoint":
                where = join_uri(job_store.uri, "manifests", f"{manifest.sequence:020d}.json")
                found.append(_summary(opening.Snapshot(where, job_store, manifest)))
        found += [_summary(_open(savepoint)) for savepoint in opening.savepoints_of(job_store)]
    if not found:
        msg = f"{store.uri} holds no checkpoint that is complete"
        raise NotFoundError(msg, hint="a job writes its first one a checkpoint interval after its start")
    return found


def _summary(snapshot: Snapshot) -> dict[str, Any]:
    from penstock.snapshots.content import states_of

    manifest, states = snapshot.manifest, states_of(snapshot.manifest)
    return {
        "job": manifest.job_name,
        "kind": manifest.kind,
        "sequence": manifest.sequence,
        "checkpoint": manifest.checkpoint_id,
        "created-ms": manifest.created_ms,
        "barrier": manifest.barrier,
        "key-groups": manifest.key_groups,
        "rows": sum(state.rows for state in states if state.kind == "keyed"),
        "bytes": sum(state.size_bytes for state in states),
        "pending-rows": sum(output.rows for output in manifest.pending),
        "uri": snapshot.uri,
    }


def _operators(manifest: Manifest) -> list[dict[str, Any]]:
    return [
        {"uid": uid, "parallelism": parallelism} for uid, (parallelism, _vertex) in sorted(manifest.operators.items())
    ]


def _write(rows: Any, output: Path) -> None:
    if output.suffix == ".parquet":
        rows.write_parquet(output)
    elif output.suffix == ".csv":
        rows.write_csv(output)
    else:
        msg = f"--output {output}: its ending says no format"
        raise UsageError(msg, hint="write to a .parquet or .csv file")
    say(f"{rows.height:,} rows written to {output}")


def _when(timestamp_ms: int) -> str:
    return dt.datetime.fromtimestamp(timestamp_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
