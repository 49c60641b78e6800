"""`penstock state repartition` and `rekey`: a snapshot written anew, here or, where its state is much, by Spark."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import JsonOption, print_json, say
from penstock.cli.snapshot_options import CheckpointOption, UriArgument, opened, summary_of
from penstock.cli.spark import SparkConfOption, needs_spark, spark_settings
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from penstock.snapshots.opening import Snapshot

#: Bytes of state's files above which Spark does the work, unless told otherwise.
SPARK_ABOVE = 1 << 30
_ABOVE_VARIABLE = "PENSTOCK_SPARK_ABOVE"
_MASTER_VARIABLE = "PENSTOCK_SPARK_MASTER"
#: All cores of this machine, and its disk for what does not fit in memory.
_MASTER = "local[*]"


class Where(enum.StrEnum):
    """Where the work is done."""

    auto = enum.auto()
    local = enum.auto()
    spark = enum.auto()


TargetArgument = Annotated[str, typer.Argument(metavar="TARGET", help="A new folder for the savepoint.")]
EngineOption = Annotated[Where, typer.Option(help="Who does the work; auto: Spark where the state is much.")]
MasterOption = Annotated[
    str | None, typer.Option(metavar="URL", help=f"Spark's master; default: ${_MASTER_VARIABLE}, else {_MASTER}.")
]
AboveOption = Annotated[
    int | None,
    typer.Option(help=f"Bytes of state that are much; default: ${_ABOVE_VARIABLE}, else 1 GiB.", min=0),
]


def repartition(
    uri: UriArgument,
    target: TargetArgument,
    *,
    key_groups: Annotated[int | None, typer.Option(help="Number of key groups; default: as many as it has.")] = None,
    engine: EngineOption = Where.auto,
    master: MasterOption = None,
    spark_above: AboveOption = None,
    spark_conf: SparkConfOption = None,
    checkpoint: CheckpointOption = None,
    json: JsonOption = False,
) -> None:
    """Write a snapshot anew as a savepoint, merged, with another number of key groups; nothing has to run."""
    from penstock.snapshots.repartition import Run, in_turn
    from penstock.snapshots.repartition import repartition as write_anew

    snapshot = opened(uri, checkpoint)
    run: Run = in_turn
    with contextlib.ExitStack() as stack:
        if uses_spark(engine, snapshot, spark_above):
            why = None if json or engine is Where.spark else snapshot
            session = stack.enter_context(_session(master, spark_conf, why))
            from penstock.snapshots.spark_repartition import on_spark

            run = on_spark(session)
        written = write_anew(snapshot, target, key_groups=key_groups, run=run)
    _tell(written, json=json)


def rekey(
    uri: UriArgument,
    target: TargetArgument,
    *,
    uid: Annotated[str, typer.Option(help="The operator whose state gets another key.")],
    key: Annotated[
        list[str], typer.Option(help="A column of the new key: NAME, or 'NAME=SQL'; once for each, in order.")
    ],
    engine: EngineOption = Where.auto,
    master: MasterOption = None,
    spark_above: AboveOption = None,
    spark_conf: SparkConfOption = None,
    checkpoint: CheckpointOption = None,
    json: JsonOption = False,
) -> None:
    """Write a snapshot anew as a savepoint with another key for one operator's state; nothing has to run."""
    from penstock.snapshots.rekey import Engine, InMemory
    from penstock.snapshots.rekey import rekey as write_anew

    snapshot = opened(uri, checkpoint)
    worker: Engine = InMemory()
    with contextlib.ExitStack() as stack:
        if uses_spark(engine, snapshot, spark_above):
            why = None if json or engine is Where.spark else snapshot
            session = stack.enter_context(_session(master, spark_conf, why))
            from penstock.snapshots.spark_rekey import SparkRekey

            worker = SparkRekey(session)
        written = write_anew(snapshot, target, uid=uid, key=key, engine=worker)
    _tell(written, json=json)


def uses_spark(engine: Where, snapshot: Snapshot, above: int | None) -> bool:
    """Whether Spark does the work: asked for, or the state's files are more than `above` bytes.

    Raises:
        UsageError: the variable that has the bytes in place of the option is no number.
    """
    from penstock.snapshots.repartition import state_bytes

    if engine is not Where.auto:
        return engine is Where.spark
    text = os.environ.get(_ABOVE_VARIABLE, "")
    if above is None and text:
        if not text.isdecimal():
            raise UsageError(f"{_ABOVE_VARIABLE}={text!r} is no number of bytes", hint="e.g. 1073741824")
        above = int(text)
    return state_bytes(snapshot) > (SPARK_ABOVE if above is None else above)


@contextlib.contextmanager
def _session(master: str | None, settings: list[str] | None, why: Snapshot | None) -> Iterator[Any]:
    """Open a session of Spark; where the size of a snapshot is why, say so."""
    where = master or os.environ.get(_MASTER_VARIABLE) or _MASTER
    given = spark_settings(settings or [])
    if why is not None:
        from penstock.snapshots.repartition import state_bytes

        say(f"{state_bytes(why):,} bytes of state: Spark does the work on {where} (--engine local: this process)")
    with needs_spark("; --engine local does without"):
        from penstock.snapshots.spark_session import open_session
    with open_session(where, given) as session:
        yield session


def _tell(written: str, *, json: bool) -> None:
    if json:
        print_json(summary_of(opened(written)))
    else:
        say(f"savepoint written: {written}")
