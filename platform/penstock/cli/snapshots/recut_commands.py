"""`penstock state repartition` and `rekey`: a snapshot written anew, here or, where its state is much, by Spark."""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import JsonOption, print_json, say
from penstock.cli.snapshots.snapshot_options import CheckpointOption, UriArgument, opened, summary_of
from penstock.cli.start.spark_options import SparkConfOption, needs_spark, spark_settings
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from penstock.snapshots.access.opening import Snapshot

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
    """Rewrite a snapshot with a different number of key groups.

    It is written again as a savepoint, merged. No cluster is needed.
    """
    from penstock.snapshots.rewrite.recut import Run, in_turn
    from penstock.snapshots.rewrite.repartition import repartition as write_anew

    snapshot = opened(uri, checkpoint)
    choice = _Choice(engine, master, spark_above, spark_settings(spark_conf), quiet=json)
    with choice.session(snapshot, or_here=True) as session:
        run: Run = in_turn
        if session is not None:
            from penstock.snapshots.on_spark.spark_repartition import on_spark

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
    """Rewrite a snapshot with another key for an operator's state.

    The snapshot is written again as a savepoint. No cluster is needed.
    """
    from penstock.snapshots.rewrite.rekey import Engine, InMemory
    from penstock.snapshots.rewrite.rekey import rekey as write_anew

    snapshot = opened(uri, checkpoint)
    choice = _Choice(engine, master, spark_above, spark_settings(spark_conf), quiet=json)
    with choice.session(snapshot, or_here=False) as session:
        worker: Engine = InMemory()
        if session is not None:
            from penstock.snapshots.on_spark.spark_rekey import SparkRekey

            worker = SparkRekey(session)
        written = write_anew(snapshot, target, uid=uid, key=key, engine=worker)
    _tell(written, json=json)


@dataclass(frozen=True, slots=True)
class _Choice:
    """What the command line says of who does the work."""

    engine: Where
    master: str | None
    #: Bytes of state.
    above: int | None
    settings: dict[str, str]
    #: Whether nothing but JSON is printed.
    quiet: bool

    @contextlib.contextmanager
    def session(self, snapshot: Snapshot, *, or_here: bool) -> Iterator[Any]:
        """Open a session of Spark where it does the work, else give None.

        `or_here` says that this process can do it, too, however much it is: it does where there is no Spark, and nobody
        has asked for it by name.

        Raises:
            UsageError: there is no Spark, or no Java, or it does not start.
        """
        if not self._is_much(snapshot) or not self._has_spark(or_here=or_here):
            yield None
            return
        from penstock.snapshots.on_spark.spark_session import open_session
        from penstock.snapshots.rewrite.recut import state_bytes

        where = self._named_master or _MASTER
        if self.engine is Where.auto and not self.quiet:
            size = f"{state_bytes(snapshot):,} bytes of state"
            say(f"{size}: Spark does the work on {where} (--engine local: this process)")
        with open_session(where, self.settings) as session:
            yield session

    @property
    def _named_master(self) -> str:
        return self.master or os.environ.get(_MASTER_VARIABLE, "")

    def _is_much(self, snapshot: Snapshot) -> bool:
        """Whether Spark is to do the work: asked for, or the state's files are more than so many bytes."""
        from penstock.snapshots.rewrite.recut import state_bytes

        if self.engine is not Where.auto:
            return self.engine is Where.spark
        above, text = self.above, os.environ.get(_ABOVE_VARIABLE, "")
        if above is None and text:
            if not text.isdecimal():
                raise UsageError(f"{_ABOVE_VARIABLE}={text!r} is no number of bytes", hint="e.g. 1073741824")
            above = int(text)
        return state_bytes(snapshot) > (SPARK_ABOVE if above is None else above)

    def _has_spark(self, *, or_here: bool) -> bool:
        try:
            with needs_spark("; --engine local does without"):
                from penstock.snapshots.on_spark.spark_session import require_java
            require_java()
        except UsageError as error:
            if not or_here or self.engine is Where.spark or self._named_master:
                raise
            typer.echo(f"{error.message}: this process does the work", err=True)
            return False
        return True


def _tell(written: str, *, json: bool) -> None:
    if json:
        print_json(summary_of(opened(written)))
    else:
        say(f"savepoint written: {written}")
