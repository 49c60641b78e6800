"""Class archives of Java programs that many tests start: a JVM that maps one starts in half of the time.

`tests/conftest.py` uses Spark's for every JVM, `tests/flink_tools/installation.py` that of Flink's command line. An
archive is written once per machine and Java; a JVM with other classes ignores it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock_lab.servers.provision import cache_root, java_program, locked

#: The second compiler of Java takes a third of the processor time of programs that run for seconds, its parallel
#: garbage collector a twentieth; both gain nothing there.
SHORT_RUNS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LIMIT_S = 300
#: Loads the classes of a session that plans, shuffles, sorts and writes.
SPARK_RUN = """
import sys
from pyspark.sql import SparkSession
session = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2").config("spark.sql.warehouse.dir", sys.argv[1] + "/warehouse")
    .config("spark.local.dir", sys.argv[1] + "/local").getOrCreate()
)
session.range(1000).groupBy("id").count().orderBy("id").write.parquet(sys.argv[1] + "/rows")
assert session.read.parquet(sys.argv[1] + "/rows").count() == 1000
session.stop()
"""


def use(archive: Path) -> str:
    """Return the options of a JVM that maps an archive, and says nothing if it cannot."""
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def place(program: str) -> Path:
    """Return where a program's archive lies; another Java has another one."""
    java = Path(java_program()).resolve()
    written = java.parent.parent.joinpath("lib", "modules").stat().st_mtime_ns
    return cache_root() / "classes" / f"{program}-{written}.jsa"


@contextlib.contextmanager
def written_to(archive: Path):
    """Yield the option that makes a JVM write an archive at its end; without an archive JVMs start slower."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f"{archive.name}.{os.getpid()}")
    yield f"-XX:ArchiveClassesAtExit={part} -Xlog:cds=off -Xlog:cds+dynamic=off"
    if part.exists():
        part.replace(archive)


def use_spark(tell) -> None:
    """Let every JVM from here on map Spark's classes; write the archive if this machine has none."""
    archive = place(f"spark-{importlib.metadata.version('pyspark')}")
    with locked("classes", tell):
        if not archive.exists():
            tell("writing the archive of Spark's classes, once")
            with written_to(archive) as option, tempfile.TemporaryDirectory() as folder:
                environment = {**os.environ, "JAVA_TOOL_OPTIONS": f"{SHORT_RUNS} {option}"}
                command = [sys.executable, "-c", SPARK_RUN, folder]
                done = subprocess.run(
                    command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S
                )
            if done.returncode:  # the tests of Spark will fail with the same words
                tell(f"Spark does not run: {done.stderr[-500:]}")
    if archive.exists():
        os.environ["JAVA_TOOL_OPTIONS"] = f"{SHORT_RUNS} {use(archive)}"
