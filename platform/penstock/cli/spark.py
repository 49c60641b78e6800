"""What the commands share that run TaskManagers on Spark: options, and an error where Spark is not installed.

Used by `cli.cluster` (`--provider spark`) and `cli.run` (`--engine spark`); Spark is imported when it is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.core.errors import UsageError

if TYPE_CHECKING:
    from penstock.client.local_cluster import LocalClusterConfig
    from penstock.client.spark_cluster import SparkCluster, SparkExecutor
    from penstock.client.spark_taskmanagers import SparkOptions

MasterOption = Annotated[str, typer.Option(metavar="URL", help="With Spark: its master, e.g. spark://host:7077.")]
SparkConfOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="With Spark: a setting of it; may be given again.")
]


def spark_options(master: str, settings: list[str], *, taskmanagers: int, slots: int) -> SparkOptions:
    """Return what the options say.

    Raises:
        UsageError: a setting has no value, or Spark is not installed.
    """
    given = spark_settings(settings)
    with needs_spark():
        from penstock.client.spark_taskmanagers import SparkOptions
    return SparkOptions(master=master, taskmanagers=taskmanagers, slots=slots, settings=given)


def spark_settings(settings: list[str]) -> dict[str, str]:
    """Return settings of Spark's own, given as `KEY=VALUE`; raises UsageError."""
    given = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            msg = f"--spark-conf {setting!r} has no value"
            raise UsageError(msg, hint="write --spark-conf spark.executor.memory=4g")
        given[name] = value
    return given


def spark_cluster(config: LocalClusterConfig, spark: SparkOptions, on_lost: Callable[[], None]) -> SparkCluster:
    """Return a cluster whose TaskManagers will be on Spark."""
    from penstock.client.spark_cluster import SparkCluster

    return SparkCluster(config, spark, on_lost)


def spark_executor(master: str, settings: list[str], host: str, *, taskmanagers: int, insecure: bool) -> SparkExecutor:
    """Return what runs bounded jobs with TaskManagers on Spark; executors reach this machine as `host`.

    Raises:
        UsageError: as for `spark_options`.
    """
    spark = spark_options(master, settings, taskmanagers=taskmanagers, slots=1)
    from penstock.client.spark_cluster import SparkExecutor

    return SparkExecutor(spark=spark, host=host, insecure=insecure)


@contextlib.contextmanager
def needs_spark(otherwise: str = "") -> Iterator[None]:
    """Import what needs Spark; raises UsageError where it is not installed, with what may be done `otherwise`."""
    try:
        yield
    except ImportError as error:
        raise UsageError("Spark is not installed", hint=f"pip install 'penstock[spark]'{otherwise}") from error
