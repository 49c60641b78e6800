"""`penstock state ...`: lists, shows, reads, compares, verifies and rewrites snapshots.

`repartition`, `rekey` and `prepare` rewrite a snapshot in this process or, for large state, with Spark.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from penstock.cli.options import JsonOption, print_json, say
from penstock.cli.running.jobs import get
from penstock.cli.silence import reading
from penstock.cli.start.spark_options import SparkConfOption, needs_spark, spark_settings
from penstock.cli.terminal import terminal
from penstock.core.clock import utc_text
from penstock.core.errors import NotFoundError, UsageError
from penstock.core.state_names import shown_name

if TYPE_CHECKING:
    from penstock.checkpoint.manifest_log import Manifest
    from penstock.snapshots.access.opening import Snapshot
    from penstock.snapshots.rewrite.prepared import RewritePlan
    from penstock.snapshots.rewrite.repartition import Run

UriArgument = Annotated[
    str, typer.Argument(metavar="URI", help="Folder of a savepoint, or CHECKPOINT_ROOT/JOB for the newest checkpoint.")
]
CheckpointOption = Annotated[
    int | None, typer.Option("--checkpoint", help="Use the checkpoint with this sequence instead of the newest.")
]


def opened(uri: str, checkpoint: int | None = None) -> Snapshot:
    """Return a snapshot; see `snapshots.access.opening.open_snapshot`."""
    from penstock.snapshots.access.opening import open_snapshot

    with reading(uri):
        return open_snapshot(uri, checkpoint=checkpoint)


def summary_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return the summary of a snapshot for listings."""
    from penstock.snapshots.access.content import states_of

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


#: Bytes of state files above which Spark is used by default.
SPARK_ABOVE = 1 << 30
_ABOVE_VARIABLE = "PENSTOCK_SPARK_ABOVE"
_MASTER_VARIABLE = "PENSTOCK_SPARK_MASTER"
#: All cores of this machine, and its disk for spilled data.
_MASTER = "local[*]"


class Where(enum.StrEnum):
    """Where the work is done."""

    auto = enum.auto()
    local = enum.auto()
    spark = enum.auto()


TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help="New folder for the savepoint.")]
EngineOption = Annotated[Where, typer.Option(help="Where to run; auto: Spark for large state.")]
MasterOption = Annotated[
    str | None, typer.Option(metavar="URL", help=f"Spark master; default: ${_MASTER_VARIABLE}, else {_MASTER}.")
]
AboveOption = Annotated[
    int | None,
    typer.Option(help=f"State size from which auto uses Spark; default: ${_ABOVE_VARIABLE}, else 1 GiB.", min=0),
]

PreparedOption = Annotated[
    str | None, typer.Option("--prepared", help="Use the files that `state prepare` wrote to this folder.")
]

commands = typer.Typer(
    help="Inspect snapshots and the state of running jobs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
commands.command("get")(get)


@commands.command("ls")
def list_snapshots(
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="A checkpoint root, a job's folder, a savepoint, or a folder of those.")
    ],
    *,
    json: JsonOption = False,
) -> None:
    """List the checkpoints and savepoints below a URI."""
    with reading(uri):
        found = _listed(uri)
    if json:
        print_json(found)
        return
    table = Table("job", "kind", "sequence", "checkpoint", "taken", "rows", "bytes", "where", box=None)
    for row in found:
        cells = [row[name] for name in ("job", "kind", "sequence", "checkpoint")]
        figures = [f"{row['rows']:,}", f"{row['bytes']:,}"]
        table.add_row(*map(str, cells), utc_text(row["created-ms"]), *figures, row["uri"])
    terminal().print(table)


@commands.command("show")
def show(uri: UriArgument, *, checkpoint: CheckpointOption = None, json: JsonOption = False) -> None:
    """Show the states of a snapshot.

    The command prints their columns and sizes.
    """
    from penstock.snapshots.access.content import states_of

    snapshot = opened(uri, checkpoint)
    states = [state.as_json() for state in states_of(snapshot.manifest)]
    head = {**summary_of(snapshot), "operators": _operators(snapshot.manifest), "states": states}
    if json:
        print_json(head)
        return
    console = terminal()
    console.print(
        f"[bold]{head['job']}[/] {head['kind']} {head['checkpoint']}, taken {utc_text(head['created-ms'])},"
        f" {head['key-groups']} key groups, {head['pending-rows']:,} rows of unpublished output"
    )
    table = Table("uid", "state", "key", "value", "subtasks", "files", "rows", "bytes", box=None)
    for row in states:
        columns = [", ".join(row["key"]), ", ".join(row["value"])]  # type: ignore[arg-type] # lists of texts
        figures = [f"{row[name]:,}" for name in ("subtasks", "files", "rows", "bytes")]
        table.add_row(str(row["uid"]), shown_name(str(row["state"])), *columns, *figures)
    console.print(table)


@commands.command("read")
def read(
    uri: UriArgument,
    uid: Annotated[str, typer.Argument(metavar="UID", help="The operator's uid.")],
    name: Annotated[str | None, typer.Argument(metavar="[STATE]", help="The state's name.")] = None,
    *,
    checkpoint: CheckpointOption = None,
    where: Annotated[str | None, typer.Option(help="Filter as SQL: --where 'user_id = 7'.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of rows; 0: all.")] = 20,
    output: Annotated[Path | None, typer.Option(help="Write all rows to a .parquet or .csv file instead.")] = None,
    json: JsonOption = False,
) -> None:
    """Print the live rows of one state."""
    from penstock.snapshots.access.content import find_state
    from penstock.snapshots.access.pruning import parsed_filter
    from penstock.snapshots.access.reading import frame_of

    snapshot = opened(uri, checkpoint)
    rows = frame_of(snapshot, find_state(snapshot.manifest, uid, name))
    if where is not None:
        rows = rows.filter(parsed_filter(where, rows.collect_schema(), "--where"))
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
        say(f"only the first {limit} rows; --limit 0 prints all, --output FILE writes them to a file")


@commands.command("diff")
def diff(
    uri: UriArgument,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The newer snapshot.")],
    *,
    json: JsonOption = False,
) -> None:
    """Compare the states of two snapshots.

    The command prints how many rows differ by state. The exit code is 1 if any differ.
    """
    from penstock.snapshots.access.reading import diff as compare

    found = compare(opened(uri), opened(other))
    if json:
        print_json([dataclasses.asdict(row) for row in found])
    else:
        table = Table("uid", "state", "verdict", "added", "removed", "changed", "unchanged", box=None)
        for row in found:
            figures = [f"{n:,}" for n in (row.added, row.removed, row.changed, row.unchanged)]
            table.add_row(row.uid, shown_name(row.state), row.verdict, *figures)
        terminal().print(table)
    if any(row.verdict != "same" for row in found):
        raise typer.Exit(1)


@commands.command("fsck")
def fsck(uri: UriArgument, *, checkpoint: CheckpointOption = None, json: JsonOption = False) -> None:
    """Verify the files of snapshots.

    It reads all files that a snapshot references, or all checkpoints of a job's folder. The exit code is 1 if one is
    damaged.
    """
    from penstock.snapshots.access.verify import verify

    with reading(uri):
        report = verify(uri, checkpoint=checkpoint)
    if json:
        print_json({**dataclasses.asdict(report), "ok": not report.damaged})
    else:
        for damage in report.damaged:
            say(f"{damage.file}: {damage.problem}")
            say(f"    referenced by {damage.manifest} {f'for {damage.state}' if damage.state else ''}".rstrip())
            say(f"    {damage.remedy}")
        for title, files in (("not referenced", report.unreferenced), ("unknown", report.unknown)):
            for name in files:
                say(f"{title}: {name}")
        say(
            f"{len(report.damaged)} damaged; {report.manifests} manifests, {report.files} files,"
            f" {report.size_bytes:,} bytes verified; {len(report.unreferenced)} unreferenced files,"
            f" {len(report.unknown)} unknown"
        )
    if report.damaged:
        raise typer.Exit(1)


@commands.command("prepare")
def prepare(
    uri: UriArgument,
    folder: Annotated[str, typer.Argument(metavar="TARGET", help="Folder for the rewritten files.")],
    *,
    uid: Annotated[str | None, typer.Option(help="Operator whose state gets another key.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Column of the new key: NAME or 'NAME=SQL'.")] = None,
    engine: EngineOption = Where.auto,
    master: MasterOption = None,
    spark_above: AboveOption = None,
    spark_conf: SparkConfOption = None,
    checkpoint: CheckpointOption = None,
    json: JsonOption = False,
) -> None:
    """Rewrite most of a running job's state before it stops.

    `repartition` and `rekey` use them with --prepared. A repetition adds the files that are new since.
    """
    from penstock.snapshots.rewrite.prepared import Preparation, key_change

    if (uid is None) != (not key):
        raise UsageError("--uid and --key belong together", hint="give both for a rekey, neither for a repartition")
    snapshot = opened(uri, checkpoint)
    change = key_change(snapshot, uid, key) if uid is not None and key else None
    choice = _EngineChoice(engine, master, spark_above, spark_settings(spark_conf), quiet=json)
    preparation = Preparation.of(snapshot, folder, change=change)
    with choice.run(preparation.missing_bytes) as run:
        done = preparation.write(run)
    if json:
        print_json({name.replace("_", "-"): value for name, value in dataclasses.asdict(done).items()})
        return
    say(f"{done.written} files ({done.written_bytes:,} bytes) rewritten, {done.reused} there already")
    if done.gone:
        say(f"{done.gone} files were compacted by the job before they were read; run the command again to add the rest")


@commands.command("repartition")
def repartition(
    uri: UriArgument,
    target: TargetArgument,
    *,
    key_groups: Annotated[int | None, typer.Option(help="Number of key groups; default: unchanged.")] = None,
    prepared: PreparedOption = None,
    engine: EngineOption = Where.auto,
    master: MasterOption = None,
    spark_above: AboveOption = None,
    spark_conf: SparkConfOption = None,
    checkpoint: CheckpointOption = None,
    json: JsonOption = False,
) -> None:
    """Rewrite a snapshot with a different number of key groups.

    The result is a compacted savepoint. No cluster is needed.
    """
    from penstock.snapshots.rewrite.prepared import RewritePlan
    from penstock.snapshots.rewrite.repartition import repartition as rewrite
    from penstock.snapshots.rewrite.repartition import state_bytes

    snapshot = opened(uri, checkpoint)
    choice = _EngineChoice(engine, master, spark_above, spark_settings(spark_conf), quiet=json)
    if prepared is not None:
        written = choice.finish(RewritePlan.of(snapshot, prepared, key_groups=key_groups), target)
    else:
        with choice.run(state_bytes(snapshot)) as run:
            written = rewrite(snapshot, target, key_groups=key_groups, run=run)
    _print_savepoint(written, json=json)


@commands.command("rekey")
def rekey(
    uri: UriArgument,
    target: TargetArgument,
    *,
    uid: Annotated[str, typer.Option(help="Operator whose state gets another key.")],
    key: Annotated[list[str], typer.Option(help="Column of the new key: NAME or 'NAME=SQL'; repeat in order.")],
    prepared: PreparedOption = None,
    engine: EngineOption = Where.auto,
    master: MasterOption = None,
    spark_above: AboveOption = None,
    spark_conf: SparkConfOption = None,
    checkpoint: CheckpointOption = None,
    json: JsonOption = False,
) -> None:
    """Rewrite a snapshot with another key for an operator's state.

    The result is a savepoint. No cluster is needed.
    """
    from penstock.snapshots.rewrite.prepared import RewritePlan, key_change
    from penstock.snapshots.rewrite.rekey import Engine, InMemory
    from penstock.snapshots.rewrite.rekey import rekey as rewrite
    from penstock.snapshots.rewrite.repartition import state_bytes

    snapshot = opened(uri, checkpoint)
    choice = _EngineChoice(engine, master, spark_above, spark_settings(spark_conf), quiet=json)
    if prepared is not None:
        plan = RewritePlan.of(snapshot, prepared, change=key_change(snapshot, uid, key))
        _print_savepoint(choice.finish(plan, target), json=json)
        return
    with choice.spark(state_bytes(snapshot), local_fallback=False) as spark:
        worker: Engine = InMemory()
        if spark is not None:
            from penstock.snapshots.on_spark.spark_rewrite import SparkRekey

            worker = SparkRekey(spark)
        written = rewrite(snapshot, target, uid=uid, key=key, engine=worker)
    _print_savepoint(written, json=json)


@dataclass(frozen=True, slots=True)
class _EngineChoice:
    """The engine options of the command line."""

    engine: Where
    master: str | None
    #: State size limit in bytes.
    above: int | None
    settings: dict[str, str]
    #: Whether only JSON is printed.
    quiet: bool

    @contextlib.contextmanager
    def run(self, size: int) -> Iterator[Run]:
        """Yield the function that does independent tasks: as jobs of Spark, or in this process.

        `size` is the bytes of the files that they read.

        Raises:
            UsageError: Spark was requested, and it or Java is missing, or it does not start.
        """
        from penstock.snapshots.rewrite.repartition import run_sequentially

        with self.spark(size, local_fallback=True) as spark:
            if spark is None:
                yield run_sequentially
                return
            from penstock.snapshots.on_spark.spark_rewrite import on_spark

            yield on_spark(spark)

    def finish(self, plan: RewritePlan, target: str) -> str:
        """Write the rest of a prepared savepoint; return its URI."""
        if not self.quiet:
            total, missing = sum(len(runs) for _, runs in plan.states), len(plan.missing)
            say(f"{total - missing} of {total} parts are prepared; {plan.missing_bytes:,} bytes are left")
        with self.run(plan.missing_bytes) as run:
            return plan.write(target, run)

    @contextlib.contextmanager
    def spark(self, size: int, *, local_fallback: bool) -> Iterator[Any]:
        """Start Spark if Spark is used for that many bytes; and yield its context; otherwise yield None.

        With `local_fallback` this process can do the work for any size: it does so without Spark, unless Spark was
        requested explicitly.

        Raises:
            UsageError: Spark or Java is missing, or Spark does not start.
        """
        if not self._uses_spark(size) or not self._has_spark(local_fallback=local_fallback):
            yield None
            return
        from penstock.snapshots.on_spark.spark_context import open_context

        where = self._named_master or _MASTER
        if self.engine is Where.auto and not self.quiet:
            say(f"{size:,} bytes of state: using Spark on {where} (--engine local: this process)")
        with open_context(where, self.settings) as spark:
            yield spark

    @property
    def _named_master(self) -> str:
        return self.master or os.environ.get(_MASTER_VARIABLE, "")

    def _uses_spark(self, size: int) -> bool:
        """Return whether to use Spark: requested, or the files exceed the limit."""
        if self.engine is not Where.auto:
            return self.engine is Where.spark
        above, text = self.above, os.environ.get(_ABOVE_VARIABLE, "")
        if above is None and text:
            if not text.isdecimal():
                raise UsageError(f"{_ABOVE_VARIABLE}={text!r} is not a number of bytes", hint="for example 1073741824")
            above = int(text)
        return size > (SPARK_ABOVE if above is None else above)

    def _has_spark(self, *, local_fallback: bool) -> bool:
        try:
            with needs_spark("; --engine local works without it"):
                from penstock.snapshots.on_spark.spark_context import require_java
            require_java()
        except UsageError as error:
            if not local_fallback or self.engine is Where.spark or self._named_master:
                raise
            typer.echo(f"{error.message}: running in this process", err=True)
            return False
        return True


def _print_savepoint(written: str, *, json: bool) -> None:
    if json:
        print_json(summary_of(opened(written)))
    else:
        say(f"savepoint written: {written}")


def _listed(uri: str) -> list[dict[str, Any]]:
    from penstock.checkpoint.manifest_log import PREFIX, key_of
    from penstock.checkpoint.stores import join_uri, open_store
    from penstock.snapshots.access import opening

    store = open_store(uri.rstrip("/"))
    jobs = opening.jobs_of(store)
    if not jobs and not store.list(PREFIX):
        places = opening.savepoints_of(store, "") or (uri,)
        return [summary_of(opening.open_snapshot(place)) for place in places]
    found: list[dict[str, Any]] = []
    for folder in [join_uri(uri, job) for job in jobs] or [uri]:
        job_store = open_store(folder)
        for manifest in opening.read_log(job_store):
            if manifest.kind == "checkpoint":
                where = join_uri(job_store.uri, key_of(manifest.sequence))
                found.append(summary_of(opening.Snapshot(where, job_store, manifest)))
        found += [summary_of(opening.open_snapshot(savepoint)) for savepoint in opening.savepoints_of(job_store)]
    if not found:
        msg = f"{store.uri} has no completed checkpoint"
        raise NotFoundError(msg, hint="a job writes its first checkpoint one interval after its start")
    return found


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
        msg = f"--output {output} has an unknown format"
        raise UsageError(msg, hint="use a .parquet or .csv file")
    say(f"{rows.height:,} rows written to {output}")
