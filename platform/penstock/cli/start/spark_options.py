"""What the commands share that use Spark: options, settings of its own, and an error where it is not installed.

Used by `cli.start.cluster` (`--provider spark`) and `cli.start.run` (`--engine spark`), which run TaskManagers on it,
by `cli.start.backfill` (`--master`) and `cli.snapshots.recut_commands`; Spark is imported when it is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.client.sizing import Bounds
from penstock.config.settings import parse_duration_ms
from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from penstock.client.local_cluster import LocalClusterConfig
    from penstock.client.spark_cluster import SparkCluster, SparkExecutor
    from penstock.client.spark_taskmanagers import SparkOptions

MasterOption = Annotated[str, typer.Option(metavar="URL", help="With Spark: its master, e.g. spark://host:7077.")]
_EXAMPLE = "write --spark-conf spark.executor.memory=4g"
SparkConfOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="With Spark: a setting of it; may be given again.")
]


def taskmanager_bounds(taskmanagers: str, slots: int, timeout: str, *, on_spark: bool) -> Bounds:
    """Return what `--taskmanagers N` or `MIN..MAX` and `--taskmanager-timeout` say; an empty time-out is the default.

    Raises:
        UsageError: no cluster can have that, or not one whose TaskManagers are on this machine.
    """
    least, dots, most = taskmanagers.partition("..")
    if not least.isdecimal() or (dots and (not most.isdecimal() or int(most) < max(1, int(least)))):
        msg = f"--taskmanagers {taskmanagers!r} is no number of TaskManagers"
        raise UsageError(msg, hint="write 4 for always four; on Spark also 1..8, for as many as jobs need")
    if slots < 1:
        raise UsageError(f"--slots {slots}: such a TaskManager runs nothing", hint="write 1 or more")
    if dots and not on_spark:
        msg = f"--taskmanagers {taskmanagers} with --provider local"
        raise UsageError(msg, hint="say one number; TaskManagers follow what jobs need with --provider spark")
    if timeout and not dots:
        msg = f"--taskmanager-timeout {timeout} with --taskmanagers {taskmanagers}, of which none is ever released"
        raise UsageError(msg, hint="let their number follow the jobs: --provider spark --taskmanagers 1..8")
    bounds = Bounds(least=int(least), most=int(most or least), slots=slots)
    return replace(bounds, timeout_ms=parse_duration_ms(timeout, "--taskmanager-timeout")) if timeout else bounds


def spark_options(master: str, settings: list[str] | None, bounds: Bounds) -> SparkOptions:
    """Return what the options say.

    Raises:
        UsageError: a setting makes no sense, or Spark is not installed.
    """
    given = spark_settings(settings)
    with needs_spark():
        from penstock.client.spark_taskmanagers import SparkOptions
    return SparkOptions(master=master, bounds=bounds, settings=given)


def spark_settings(settings: list[str] | None) -> dict[str, str]:
    """Return settings of Spark's own, given as `KEY=VALUE`.

    Raises:
        UsageError: one has no value, or a name that Spark would pass over, or is the master.
    """
    given: dict[str, str] = {}
    for setting in settings or []:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise UsageError(f"--spark-conf {setting!r} has no value", hint=_EXAMPLE)
        if not name.removeprefix("spark.") or not name.startswith("spark."):
            raise UsageError(f"--spark-conf {setting!r}: names of Spark's settings begin with 'spark.'", hint=_EXAMPLE)
        if name == "spark.master":
            raise UsageError(f"--spark-conf {setting!r}: that is another option", hint=f"write --master {value}")
        if given.setdefault(name, value) != value:
            raise UsageError(f"--spark-conf has {name} as {given[name]!r} and as {value!r}", hint="give it once")
    return given


def refuse_settings(settings: list[str] | None, *, way: str) -> None:
    """Refuse settings of Spark where Spark does nothing; raises UsageError with the way to have it do something."""
    if settings:
        raise UsageError(f"--spark-conf {settings[0]!r}, and Spark is not asked for", hint=way)


def spark_cluster(config: LocalClusterConfig, spark: SparkOptions, on_lost: Callable[[], None]) -> SparkCluster:
    """Return a cluster whose TaskManagers will be on Spark."""
    from penstock.client.spark_cluster import SparkCluster

    return SparkCluster(config, spark, on_lost)


def spark_executor(
    master: str, settings: list[str] | None, host: str, *, taskmanagers: int, insecure: bool
) -> SparkExecutor:
    """Return what runs bounded jobs with TaskManagers on Spark; executors reach this machine as `host`.

    Raises:
        UsageError: as for `spark_options`.
    """
    spark = spark_options(master, settings, Bounds(least=taskmanagers, most=taskmanagers, slots=1))
    from penstock.client.spark_cluster import SparkExecutor

    return SparkExecutor(spark=spark, host=host, insecure=insecure)


@contextlib.contextmanager
def needs_spark(otherwise: str = "") -> Iterator[None]:
    """Import what needs Spark; raises UsageError where it is not installed, with what may be done `otherwise`."""
    try:
        yield
    except ImportError as error:
        raise UsageError("Spark is not installed", hint=f"pip install 'penstock[spark]'{otherwise}") from error
