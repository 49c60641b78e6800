"""`penstock state repartition` and `rekey`: rewrites a snapshot, here or, for much state, with Spark."""

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


def repartition(
    uri: UriArgument,
    target: TargetArgument,
    *,
    key_groups: Annotated[int | None, typer.Option(help="Number of key groups; default: unchanged.")] = None,
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
    uid: Annotated[str, typer.Option(help="Operator whose state gets another key.")],
    key: Annotated[list[str], typer.Option(help="Column of the new key: NAME or 'NAME=SQL'; repeat in order.")],
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
    """The engine options of the command line."""

    engine: Where
    master: str | None
    #: State size limit in bytes.
    above: int | None
    settings: dict[str, str]
    #: Whether only JSON is printed.
    quiet: bool

    @contextlib.contextmanager
    def session(self, snapshot: Snapshot, *, or_here: bool) -> Iterator[Any]:
        """Open a Spark session if Spark is used; otherwise yield None.

        With `or_here` this process can do the work for any size: it does so without Spark, unless Spark was
        requested explicitly.

        Raises:
            UsageError: Spark or Java is missing, or Spark does not start.
        """
        if not self._is_much(snapshot) or not self._has_spark(or_here=or_here):
            yield None
            return
        from penstock.snapshots.on_spark.spark_session import open_session
        from penstock.snapshots.rewrite.recut import state_bytes

        where = self._named_master or _MASTER
        if self.engine is Where.auto and not self.quiet:
            size = f"{state_bytes(snapshot):,} bytes of state"
            say(f"{size}: using Spark on {where} (--engine local: this process)")
        with open_session(where, self.settings) as session:
            yield session

    @property
    def _named_master(self) -> str:
        return self.master or os.environ.get(_MASTER_VARIABLE, "")

    def _is_much(self, snapshot: Snapshot) -> bool:
        """Return whether to use Spark: requested, or the state files exceed the limit."""
        from penstock.snapshots.rewrite.recut import state_bytes

        if self.engine is not Where.auto:
            return self.engine is Where.spark
        above, text = self.above, os.environ.get(_ABOVE_VARIABLE, "")
        if above is None and text:
            if not text.isdecimal():
                raise UsageError(f"{_ABOVE_VARIABLE}={text!r} is not a number of bytes", hint="for example 1073741824")
            above = int(text)
        return state_bytes(snapshot) > (SPARK_ABOVE if above is None else above)

    def _has_spark(self, *, or_here: bool) -> bool:
        try:
            with needs_spark("; --engine local works without it"):
                from penstock.snapshots.on_spark.spark_session import require_java
            require_java()
        except UsageError as error:
            if not or_here or self.engine is Where.spark or self._named_master:
                raise
            typer.echo(f"{error.message}: running in this process", err=True)
            return False
        return True


def _tell(written: str, *, json: bool) -> None:
    if json:
        print_json(summary_of(opened(written)))
    else:
        say(f"savepoint written: {written}")
