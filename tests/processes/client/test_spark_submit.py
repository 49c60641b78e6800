"""Settings of Spark on their way to `spark-submit`: a script stands for it, and notes its arguments."""

import itertools

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.cli.start.spark_options import spark_options
from penstock.client.sizing import Bounds
from penstock.client.spark_cluster import SparkTaskManagers, launch_for
from penstock.core.errors import UsageError

PASSED = {
    "spark.kerberos.principal": "etl@EXAMPLE.COM",
    "spark.kerberos.keytab": "/etc/security/etl.keytab",
    "spark.kerberos.access.hadoopFileSystems": "hdfs://nn1:8020",
    "spark.yarn.queue": "streams",
    "spark.executor.failuresValidityInterval": "1h",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "8",
    "spark.submit.deployMode": "client",
    "spark.decommission.enabled": "false",
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # PySpark leaves the pipe of a `spark-submit` that has failed
def test_every_setting_reaches_spark_submit_and_goes_before_penstocks_own(tmp_path, monkeypatch):
    """The login by keytab happens there, before a driver runs."""
    said = tmp_path / "said"
    for path, text in {
        "java/bin/java": "",
        "spark/bin/spark-submit": f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}\nexit 1\n',
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    for owner, name in ((SparkContext, "_gateway"), (SparkContext, "_jvm"), (SparkContext, "_active_spark_context")):
        monkeypatch.setattr(owner, name, None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    options = spark_options("yarn", [f"{name}={value}" for name, value in PASSED.items()], Bounds())
    managers = SparkTaskManagers(options, launch_for("h:1", 1, "", "", insecure=False), lambda: None, lambda: None)
    with pytest.raises(UsageError, match="Spark does not start with --master yarn"):
        managers.start()
    words = said.read_text().splitlines()
    given = dict(word.split("=", 1) for flag, word in itertools.pairwise(words) if flag == "--conf")
    assert given.items() >= {**PASSED, "spark.master": "yarn", "spark.speculation": "false"}.items()
