"""`penstock backfill job.py`: turns a job's history into a savepoint to start from, on Spark or in this process.

The options about tables with the first part of a history are also those of `penstock check --backfill`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.api.job_file import planned
from penstock.cli.options import JsonOption, SettingsOption, print_json, say
from penstock.cli.start.run import parse_overrides
from penstock.cli.start.spark_options import SparkConfOption, needs_spark, refuse_settings, spark_settings
from penstock.core.clock import SystemClock
from penstock.core.errors import UsageError
from penstock.core.rand import SystemRand

if TYPE_CHECKING:
    from penstock.backfill.engine import Engine, Progress
    from penstock.backfill.histories import TableHistory
    from penstock.backfill.run import BackfillOptions, BackfillResult
    from penstock.backfill.stages import Stage
    from penstock.graph.job_graph import JobGraph

UNTIL = (
    "latest, a time such as 2026-01-31T00:00Z (of writing, not of events), SPLIT=POSITION,... (Kafka: orders-0=1200), "
    "or cut-over: nothing after the tables of --history"
)
_CUT_OVER = "SPLIT=POSITION,... or a time of writing, from which rows are read from the topic; default: the table's end"

UntilOption = Annotated[str, typer.Option(help=UNTIL)]
HistoryOption = Annotated[
    list[str] | None,
    typer.Option(metavar="UID=URI", help="Parquet file or folder with the first part of a source's history."),
]
OffsetsOption = Annotated[
    list[str] | None,
    typer.Option(metavar="UID=PARTITION,OFFSET", help="The table's columns for partition and offset (and ,TOPIC)."),
]
SparseOption = Annotated[
    list[str] | None,
    typer.Option(metavar="UID", help="The table may lack offsets (transactions, compaction)."),
]
CutOverOption = Annotated[str | None, typer.Option(help=_CUT_OVER)]


def parse_tables(
    history: list[str] | None, offsets: list[str] | None, sparse: list[str] | None
) -> tuple[TableHistory, ...]:
    """Return the tables of the options.

    Raises:
        UsageError: an option is malformed, or its source has no `--history`.
    """
    from penstock.backfill.histories import TableHistory
    from penstock.backfill.table_plan import Offsets

    uris: dict[str, list[str]] = {}
    for item in history or []:
        uid, uri = _pair("--history", item, "UID=URI")
        uris.setdefault(uid, []).append(uri)
    columns = {}
    for item in offsets or []:
        uid, text = _pair("--offsets", item, "UID=PARTITION,OFFSET")
        partition, offset, topic = [*text.split(","), "", ""][:3]
        if not partition or not offset or text.count(",") > 2:
            raise UsageError(f"--offsets {item!r} names no columns", hint="use UID=PARTITION,OFFSET or ...,TOPIC")
        columns[uid] = Offsets(partition=partition, offset=offset, topic=topic)
    for uid in [*columns, *(sparse or [])]:
        if uid not in uris:
            raise UsageError(f"{uid!r} has no table", hint=f"add --history {uid}=URI")
    for uid in sparse or []:
        if uid not in columns:
            raise UsageError(f"--sparse {uid} needs offsets", hint=f"add --offsets {uid}=PARTITION,OFFSET")
    return tuple(
        TableHistory(uid=uid, uris=tuple(found), offsets=columns.get(uid), sparse=uid in (sparse or []))
        for uid, found in uris.items()
    )


def parse_until(text: str) -> dict[str, Any]:
    """Parse `--until` into the argument of `connector.source.HistoryFactory`; raises UsageError."""
    if text in ("latest", "cut-over"):
        return {} if text == "latest" else {"begin": True}
    return _position(text, "--until", UNTIL)


def parse_cut_over(text: str | None) -> dict[str, Any]:
    """Parse `--cut-over` into the argument of `backfill.histories.HistoryBounds`; raises UsageError."""
    return {} if text is None else _position(text, "--cut-over", _CUT_OVER)


def _position(text: str, option: str, hint: str) -> dict[str, Any]:
    if "=" in text:
        positions = {}
        for item in text.split(","):
            split, _, position = item.rpartition("=")
            if not split or not position.isdecimal():
                raise UsageError(f"{option} {item!r} is not a position", hint="use SPLIT=POSITION, as in orders-0=1200")
            positions[split] = int(position)
        return {"positions": positions}
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is not a position", hint=hint) from error
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)
    return {"timestamp": int(moment.timestamp() * 1000)}


def _pair(option: str, item: str, form: str) -> tuple[str, str]:
    uid, _, value = item.partition("=")
    if not uid or not value:
        raise UsageError(f"{option} {item!r} is malformed", hint=f"use {form}")
    return uid, value


def backfill(
    job: Annotated[Path, typer.Argument(metavar="job.py", help="Python file that builds and executes a job.")],
    *,
    target: Annotated[str, typer.Option("--to", metavar="URI", help="Folder of the savepoint; must be empty.")] = "",
    until: UntilOption = "latest",
    history: HistoryOption = None,
    offsets: OffsetsOption = None,
    sparse: SparseOption = None,
    cut_over: CutOverOption = None,
    master: Annotated[str | None, typer.Option(help="Spark master: local[4], yarn, ...; default: in-process.")] = None,
    spark_conf: SparkConfOption = None,
    parts: Annotated[int, typer.Option(min=1, help="Key ranges; one task each.")] = 16,
    accept: Annotated[
        list[str] | None, typer.Option(metavar="UID", help="Accept this operator although it does not qualify.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the stages and how each operator runs; run nothing.")
    ] = False,
    settings: SettingsOption = None,
    json: JsonOption = False,
) -> None:
    """Run a job over its source's history.

    The result is a savepoint; `penstock run --from` continues from it.

    The output of the job's sinks is staged in the savepoint and published once, at that start. With --history the first
    part is read from Parquet files, and the topic continues where they end.
    """
    from penstock.backfill.run import Backfill, BackfillOptions

    options = BackfillOptions(
        target=target,
        until=parse_until(until),
        tables=parse_tables(history, offsets, sparse),
        cut_over=parse_cut_over(cut_over),
        parts=parts,
        accept=tuple(accept or ()),
    )
    if explain:
        _explain(planned(job, parse_overrides(settings or []), ""), options, master, as_json=json)
        return
    if not target:
        raise UsageError("a backfill needs a folder for its savepoint", hint="add --to URI, or --explain")
    if master is None:
        refuse_settings(spark_conf, way="add a master: --master local[4]")
    given = spark_settings(spark_conf)
    graph = planned(job, parse_overrides(settings or []), "")
    clock = SystemClock()
    began = clock.monotonic_ms()
    work = Backfill(graph, options, clock, SystemRand())  # refuses a wrong job, table or target before Spark starts
    if master is not None and not json:
        say(f"starting Spark on {master}")
    with _engine(master, given) as engine:
        result = work.run(engine, _progress(quiet=json))
    seconds = (clock.monotonic_ms() - began) / 1000
    if json:
        print_json(_as_json(graph.name, result, seconds))
        return
    say(f"{graph.name}: {result.rows_read:,} rows in {seconds:.1f} s, {result.rows_staged:,} rows of output staged")
    for uid, splits in result.tables.items():
        read = ", ".join(f"{split} {low} to {high - 1}" for split, (low, high) in splits.items())
        say(f"{uid}: offsets from the table: {read}")
    for uid, uris in result.histories.items():
        say(f"{uid}: read from {', '.join(uris)}")
    if result.rows_late:
        say(f"{result.rows_late:,} late rows were dropped, as in a live run")
    say(f"event time is at {_time(result.watermark)}; start the job with: penstock run {job} --from {result.uri}")


def _explain(graph: JobGraph, options: BackfillOptions, master: str | None, *, as_json: bool) -> None:
    from penstock.backfill.explain import explain, lines
    from penstock.backfill.qualify import require_qualified

    require_qualified(graph, options.accept)
    stages = explain(graph, parts=options.parts, piece_rows=options.piece_rows, master=master)
    if as_json:
        print_json({"job": graph.name, "stages": stages})
        return
    for line in lines(stages):
        say(line)


@contextlib.contextmanager
def _engine(master: str | None, settings: dict[str, str]) -> Iterator[Engine]:
    """Open the engine: Spark with these settings, or without a master this process."""
    with contextlib.ExitStack() as stack:
        engine: Engine
        if master is None:
            from penstock.backfill.engine import LocalEngine

            engine = LocalEngine()
        else:
            with needs_spark("; without --master it runs in this process"):
                from penstock.backfill.spark import SparkEngine
                from penstock.snapshots.on_spark.spark_context import open_context

            engine = SparkEngine(stack.enter_context(open_context(master, settings)))
        stack.callback(engine.close)
        yield engine


def _progress(*, quiet: bool) -> Progress:
    def tell(stage: Stage, done: int, tasks: int) -> None:
        if not quiet and done in (0, tasks):
            say(f"{stage.vertex.name}: {'done' if done else 'runs'}, {tasks} tasks")

    return tell


def _time(watermark: int | None) -> str:
    if watermark is None:
        return "no value yet"
    return f"{dt.datetime.fromtimestamp(watermark / 1e6, dt.UTC).isoformat(timespec='milliseconds')}"


def _as_json(name: str, result: BackfillResult, seconds: float) -> dict[str, Any]:
    return {
        "job": name,
        "savepoint": result.uri,
        "run": result.run_id,
        "rows": result.rows_read,
        "staged_rows": result.rows_staged,
        "late_rows": result.rows_late,
        "watermark": result.watermark,
        "positions": result.positions,
        "tables": result.tables,
        "histories": result.histories,
        "seconds": round(seconds, 3),
    }
