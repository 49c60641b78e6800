"""Spark started by penstock, for backfills, rewrites of snapshots and TaskManagers on executors.

A context without SQL: a session takes some seconds more to start.

Sets only required options; all others come from the user's Spark configuration.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home

from penstock.core.errors import UsageError

_OWN_SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOOPBACK = "127.0.0.1"
_LOCAL_SETTINGS = {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
_JVM_END_SECONDS = 20.0
_DESCRIPTION = "spark.job.description"
_NO_SETTINGS: Mapping[str, str] = {}


@contextlib.contextmanager
def open_context(master: str, settings: Mapping[str, str] = _NO_SETTINGS) -> Iterator[SparkContext]:
    """Start Spark, e.g. on `local[4]`, `spark://host:7077` or `yarn`, and stop it at the end.

    Raises:
        UsageError: Java is missing, or Spark does not start with that master.
    """
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setMaster(master).setAppName("penstock")
    local = _LOCAL_SETTINGS if master.startswith("local") else {}
    for name, value in {**_OWN_SETTINGS, **local, **settings}.items():
        conf.set(name, value)
    others = SparkContext._gateway is not None  # noqa: SLF001 - a JVM that this process uses besides
    with tempfile.TemporaryDirectory(prefix="penstock-spark-", ignore_cleanup_errors=True) as folder:
        with (
            _starting(master, settings),
            on_this_machine(master, Path(folder)),
            contextlib.chdir(folder),  # the JVM leaves a folder there
        ):
            context = SparkContext.getOrCreate(conf)
        try:
            yield context
        finally:
            with contextlib.suppress(Py4JError, OSError):  # its JVM may be gone, and the context with it
                context.stop()
            if not others:
                _end_jvm()


@contextlib.contextmanager
def _starting(master: str, settings: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except (PySparkException, Py4JError) as error:
        msg = f"Spark does not start with --master {master}: {reason_of(error)}"
        way = f"or one of its settings is wrong: {', '.join(settings)}" if settings else "e.g. local[2]"
        raise UsageError(msg, hint=way) from error


@contextlib.contextmanager
def described(context: SparkContext, text: str) -> Iterator[None]:
    """Show a text in Spark's web interface and event log for the jobs and stages that the block starts."""
    context.setJobDescription(text)
    try:
        yield
    finally:
        with contextlib.suppress(Py4JError, OSError):  # its JVM may be gone: the block says why
            context.setLocalProperty(_DESCRIPTION, None)  # type: ignore[arg-type]  # None removes it


def reason_of(error: BaseException) -> str:
    """Return the one line that says why Spark failed: a task's own error, else Spark's, else the JVM's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(("penstock.", "ModuleNotFoundError")) and "Error" in line]
    # the lines after the one that names the call
    raised = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    sparks = [line for line in (*raised, *lines) if line.startswith("org.apache.spark")]
    reason = [*said[-1:], *sparks, *raised, *lines, repr(error)][0]
    if not reason.startswith("ModuleNotFoundError"):
        return reason
    python = os.environ.get("PYSPARK_PYTHON", "python3")
    return f"{reason} in the executors' Python, {python}: install it there, or set PYSPARK_PYTHON to another one"


def require_java() -> None:
    """Raise UsageError if Spark's start script would find no Java, in JAVA_HOME or else in PATH."""
    home = os.environ.get("JAVA_HOME", "")
    if home and not (Path(home) / "bin" / "java").exists():
        raise UsageError(f"Spark needs Java, but JAVA_HOME={home} contains none", hint="unset it, or have it right")
    if not home and shutil.which("java") is None:
        raise UsageError("Spark needs Java, but none was found", hint="install 17 or newer, or set JAVA_HOME")


def _end_jvm() -> None:
    """End the JVM, which otherwise ends some seconds after this process."""
    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is None or gateway.proc is None:  # `spark-submit` has started this process, and ends the JVM after it
        return
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    with contextlib.suppress(Py4JError, OSError):
        gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends when its input is closed
    try:
        process.wait(_JVM_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def on_this_machine(master: str, folder: Path) -> Iterator[None]:
    """Bind the processes of `local-cluster[...]` to loopback, and keep their folders out of Spark's installation."""
    if not master.startswith("local-cluster"):
        yield
        return
    home = folder / "home"
    home.mkdir()
    installation: str = _find_spark_home()  # type: ignore[no-untyped-call]  # PySpark has no types for it
    for entry in Path(installation).iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    wanted = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": _LOOPBACK, "SPARK_LOCAL_HOSTNAME": _LOOPBACK}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
