"""What TaskManagers on Spark are told, and which commands bring them: nothing here starts Spark."""

import pickle
import socket
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkContext

from penstock.cli.start.cluster import start
from penstock.cli.start.run import run
from penstock.cli.start.spark_options import own_address, spark_executor, spark_options, taskmanager_bounds
from penstock.client.sizing import Bounds
from penstock.client.spark_cluster import _number_of, launch_for
from penstock.core.errors import UsageError
from penstock.snapshots.on_spark.spark_context import _end_jvm, reason_of

FILES = ("ca.pem", "cluster.pem", "cluster.key")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "certs"
    place.mkdir()
    for name in (*FILES, "ca.key", "admin.token"):
        (place / name).write_text(name)
    return place


def test_a_task_brings_the_clusters_files_and_no_others(folder, tmp_path):
    order = pickle.loads(pickle.dumps(launch_for("10.0.0.4:6123", 3, "s3cr3t-" * 5, str(folder), insecure=False)))
    environment = order._env(tmp_path)
    assert environment["PENSTOCK_CLUSTER_SECRET"] == "s3cr3t-" * 5
    place = tmp_path / "security"
    assert environment["PENSTOCK_SECURITY"] == str(place)
    assert {path.name: path.read_text() for path in place.iterdir()} == {name: name for name in FILES}
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_the_secret_is_in_no_argument_and_no_text(folder, tmp_path):
    order = launch_for("10.0.0.4:6123", 3, "s3cr3t-" * 5, str(folder), insecure=True)
    arguments = order._arguments(1, "10.0.0.5", tmp_path)
    given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    assert given["--data-host"] == "10.0.0.5"
    assert given["--slots"] == "3"
    assert given["--insecure"] == "true"
    assert "s3cr3t" not in " ".join(arguments) + repr(order)


def test_a_task_that_is_run_again_is_another_taskmanager(tmp_path):
    order = launch_for("127.0.0.1:6123", 1, "s", "", insecure=False)
    first, second = (order._arguments(0, "127.0.0.1", tmp_path) for _ in range(2))
    assert first != second
    assert "PENSTOCK_SECURITY" not in order._env(tmp_path)


def test_a_folder_without_certificates_is_named(folder):
    (folder / "cluster.key").unlink()
    with pytest.raises(UsageError, match=r"cannot read .*cluster\.key"):
        launch_for("10.0.0.4:6123", 1, "s", str(folder), insecure=False)


def test_settings_of_spark(tmp_path):
    options = spark_options("yarn", ["spark.executor.memory=4g", "spark.app.name=b=c"], Bounds())
    assert options.settings == {"spark.executor.memory": "4g", "spark.app.name": "b=c"}
    with pytest.raises(UsageError, match="has no value"):
        spark_options("yarn", ["spark.executor.memory"], Bounds())


def test_a_driver_that_runs_is_not_moved_into_the_cluster():
    with pytest.raises(UsageError, match="cannot move into the cluster") as refused:
        spark_options("yarn", ["spark.submit.deployMode=cluster"], Bounds())
    assert "spark-submit --deploy-mode cluster" in refused.value.hint


def test_a_jvm_that_spark_submit_has_started_is_left_to_it(monkeypatch):
    theirs = SimpleNamespace(proc=None)
    monkeypatch.setattr(SparkContext, "_gateway", theirs)
    _end_jvm()
    assert SparkContext._gateway is theirs


def test_the_address_of_a_driver_whose_host_spark_chooses(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    executor = spark_executor("yarn", None, Bounds(), slots=0, host="auto", insecure=True)
    assert executor.host == "127.0.0.1"
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    with pytest.raises(UsageError, match=r"host name 'no-such-host\.invalid' has no address"):
        own_address()


@pytest.mark.parametrize(
    "options",
    [{"engine": "spark"}, {"master": "yarn"}, {"engine": "flink", "master": "yarn"}],
)
def test_an_engine_and_a_master_go_together(tmp_path, options):
    job = tmp_path / "job.py"
    job.touch()
    with pytest.raises(UsageError, match="--master"):
        run(job, **options)


def test_spark_brings_a_cluster_of_its_own(tmp_path):
    job = tmp_path / "job.py"
    job.touch()
    with pytest.raises(UsageError, match="starts its own cluster"):
        run(job, engine="spark", master="yarn", cluster="http://127.0.0.1:1")


@pytest.mark.parametrize("options", [{"provider": "spark"}, {"master": "yarn"}, {"provider": "yarn", "master": "yarn"}])
def test_a_provider_and_a_master_go_together(options):
    with pytest.raises(UsageError, match="--master"):
        start(**options)


def test_a_number_of_taskmanagers_or_two_bounds():
    assert taskmanager_bounds("3", 4, "", on_spark=False) == Bounds(least=3, most=3, slots=4)
    assert taskmanager_bounds("0..8", 1, "90s", on_spark=True) == Bounds(least=0, most=8, slots=1, timeout_ms=90_000)


@pytest.mark.parametrize("given", ["", "two", "-1", "1..", "..3", "3..1", "0..0", "1..2..3", "1.5"])
def test_what_is_no_number_of_taskmanagers(given):
    with pytest.raises(UsageError, match=r"use 4 for a fixed number"):
        taskmanager_bounds(given, 2, "", on_spark=True)


def test_on_this_machine_their_number_is_fixed_and_none_is_released():
    with pytest.raises(UsageError, match="--provider spark"):
        start(taskmanagers="1..2")
    with pytest.raises(UsageError, match="has no effect with a fixed"):
        start(taskmanagers="2", taskmanager_timeout="60s")


@pytest.mark.parametrize(("slots", "on_spark"), [(0, True), (-1, True), (0, False)])
def test_a_taskmanager_has_slots(slots, on_spark):
    with pytest.raises(UsageError, match=rf"--slots {slots}"):
        taskmanager_bounds("1", slots, "", on_spark=on_spark)


def test_the_number_in_an_id():
    (taskmanager,) = (
        a for a in launch_for("h:1", 1, "", "", insecure=False)._arguments(17, "h", Path()) if "-17-" in a
    )
    assert _number_of(taskmanager) == 17
    assert [_number_of(other) for other in ("tm-1", "spark-x-1", "spark", "")] == [-1] * 4


def test_executors_without_penstock_are_named_with_their_interpreter(monkeypatch):
    text = "org.apache.spark.api.python.PythonException: Traceback:\nModuleNotFoundError: No module named 'penstock'\n"
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/other/python")
    reason = reason_of(RuntimeError(text))
    assert "No module named 'penstock' in the executors' Python, /opt/other/python: install it there" in reason
