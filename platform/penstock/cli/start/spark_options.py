"""Shared parts of the commands that use Spark: options, Spark settings, and the error if it is not installed.

Used by `cli.start.cluster` (`--provider spark`) and `cli.start.run` (`--engine spark`), which run TaskManagers on
Spark, and by `cli.start.backfill` (`--master`) and `cli.running.state_commands`. Spark is imported on demand.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.client.sizing import Bounds
from penstock.config.settings import parse_duration_ms
from penstock.core.errors import UsageError, extra_hint

if TYPE_CHECKING:
    from penstock.client.local_cluster import LocalClusterConfig
    from penstock.client.spark_cluster import SparkCluster, SparkExecutor, SparkOptions

MasterOption = Annotated[str, typer.Option(metavar="URL", help="With Spark: master URL, such as spark://host:7077.")]
_EXAMPLE = "for example --spark-conf spark.executor.memory=4g"
SparkConfOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="With Spark: a Spark setting; repeatable.")
]

TimeoutOption = Annotated[
    str, typer.Option(metavar="TIME", help="With MIN..MAX: release a TaskManager unused for this time (60s).")
]


def taskmanager_bounds(taskmanagers: str, slots: int, timeout: str, *, on_spark: bool) -> Bounds:
    """Parse `--taskmanagers N` or `MIN..MAX`, and `--taskmanager-timeout` (empty: the default).

    Raises:
        UsageError: the values are invalid, or not possible with local TaskManagers.
    """
    least, dots, most = taskmanagers.partition("..")
    if not least.isdecimal() or (dots and (not most.isdecimal() or int(most) < max(1, int(least)))):
        msg = f"--taskmanagers {taskmanagers!r} is not a number of TaskManagers"
        raise UsageError(msg, hint="use 4 for a fixed number; on Spark also 1..8, for as many as jobs need")
    if slots < 1:
        raise UsageError(f"--slots {slots} is not allowed", hint="use 1 or more")
    if dots and not on_spark:
        msg = f"--taskmanagers {taskmanagers} with --provider local"
        raise UsageError(msg, hint="use a single number; only --provider spark scales TaskManagers")
    if timeout and not dots:
        msg = f"--taskmanager-timeout {timeout} has no effect with a fixed --taskmanagers {taskmanagers}"
        raise UsageError(msg, hint="use a range: --provider spark --taskmanagers 1..8")
    bounds = Bounds(least=int(least), most=int(most or least), slots=slots)
    return replace(bounds, timeout_ms=parse_duration_ms(timeout, "--taskmanager-timeout")) if timeout else bounds


def spark_options(master: str, settings: list[str] | None, bounds: Bounds) -> SparkOptions:
    """Return the Spark options of a cluster.

    Raises:
        UsageError: a setting is invalid, or Spark is not installed.
    """
    given = spark_settings(settings)
    with needs_spark():
        from penstock.client.spark_cluster import SparkOptions
    return SparkOptions(master=master, bounds=bounds, settings=given)


def spark_settings(settings: list[str] | None) -> dict[str, str]:
    """Parse Spark settings given as `KEY=VALUE`.

    Raises:
        UsageError: a setting has no value, a name that Spark would ignore, is the master or the deploy mode `cluster`.
    """
    given: dict[str, str] = {}
    for setting in settings or []:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise UsageError(f"--spark-conf {setting!r} has no value", hint=_EXAMPLE)
        if not name.removeprefix("spark.") or not name.startswith("spark."):
            raise UsageError(f"--spark-conf {setting!r}: names of Spark's settings begin with 'spark.'", hint=_EXAMPLE)
        if name == "spark.master":
            raise UsageError(f"--spark-conf {setting!r} is not allowed", hint=f"use --master {value}")
        if name == "spark.submit.deployMode" and value == "cluster":
            msg = f"--spark-conf {setting!r}: a driver that already runs cannot move into the cluster"
            raise UsageError(msg, hint="start it there with `spark-submit --deploy-mode cluster`")
        if given.setdefault(name, value) != value:
            raise UsageError(f"--spark-conf has {name} as {given[name]!r} and as {value!r}", hint="set it once")
    return given


def refuse_settings(settings: list[str] | None, *, way: str) -> None:
    """Raise UsageError if Spark settings were given without Spark; `way` is the hint."""
    if settings:
        raise UsageError(f"--spark-conf {settings[0]!r} has no effect without Spark", hint=way)


def spark_cluster(config: LocalClusterConfig, spark: SparkOptions, on_lost: Callable[[], None]) -> SparkCluster:
    """Return a cluster with TaskManagers on Spark."""
    from penstock.client.spark_cluster import SparkCluster

    return SparkCluster(config, spark, on_lost)


def spark_executor(
    master: str, settings: list[str] | None, bounds: Bounds, *, slots: int, host: str, insecure: bool
) -> SparkExecutor:
    """Return an executor of jobs on Spark; executors reach this machine as `host`. `slots`: see `SparkExecutor`.

    Raises:
        UsageError: as for `spark_options`.
    """
    spark = spark_options(master, settings, bounds)
    from penstock.client.spark_cluster import SparkExecutor

    return SparkExecutor(spark=spark, slots=slots, host=own_address() if host == "auto" else host, insecure=insecure)


def own_address() -> str:
    """Return the address of this machine's host name, for a driver whose host Spark chooses.

    Raises:
        UsageError: the host name has no address.
    """
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise UsageError(f"host name {name!r} has no address: {error}", hint="pass an address as --host") from error


@contextlib.contextmanager
def needs_spark(otherwise: str = "") -> Iterator[None]:
    """Wrap imports of Spark; raise UsageError if it is not installed, with the alternative `otherwise`."""
    try:
        yield
    except ImportError as error:
        raise UsageError("Spark is not installed", hint=f"{extra_hint('spark')}{otherwise}") from error
