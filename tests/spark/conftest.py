"""One session of Spark for all tests of this folder: two cores of this machine, nothing listens beyond loopback."""

import contextlib
import os
import sys

import pytest
from pyspark.sql import SparkSession
from tests.support import leaks


@pytest.fixture(scope="package")
def spark(tmp_path_factory):
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("penstock-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.task.maxFailures", "1")
        # of a machine that others keep busy: a pause is no failure
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.executor.heartbeatInterval", "60s")
        .config("spark.network.timeout", "600s")
    )
    with contextlib.chdir(folder):  # the JVM leaves a folder of artifacts where it is started
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    with leaks.held(lambda: [session.sparkContext._gateway.proc.pid]):
        yield session
        session.stop()


@pytest.fixture(scope="package")
def spark_context(spark):
    """Return the session's context, which rewrites of snapshots take."""
    return spark.sparkContext
