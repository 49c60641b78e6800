"""The class archives of Java programs that many tests start, each written once per machine and Java.

`tests/conftest.py` uses Spark's for every JVM, `tests/flink_tools/installation.py` that of Flink's command line.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock_lab.servers import class_archive
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


def place(program: str, java: str) -> Path:
    """Return the path of a program's archive; another Java has another one."""
    written = Path(java).resolve().parent.parent.joinpath("lib", "modules").stat().st_mtime_ns
    return cache_root() / "classes" / f"{program}-{written}.jsa"


def use_spark(tell) -> None:
    """Let every JVM from here on map Spark's classes; write the archive if this machine has none."""
    archive = place(f"spark-{importlib.metadata.version('pyspark')}", java_program())
    with locked("classes", tell):
        if not archive.exists():
            tell("writing the archive of Spark's classes, once")
            with class_archive.writing(archive) as options, tempfile.TemporaryDirectory() as folder:
                environment = {**os.environ, "JAVA_TOOL_OPTIONS": " ".join([SHORT_RUNS, *options])}
                command = [sys.executable, "-c", SPARK_RUN, folder]
                done = subprocess.run(
                    command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S
                )
            if done.returncode:  # the tests of Spark will fail with the same words
                tell(f"Spark does not run: {done.stderr[-500:]}")
    if options := class_archive.mapping(archive):
        os.environ["JAVA_TOOL_OPTIONS"] = " ".join([SHORT_RUNS, *options])
