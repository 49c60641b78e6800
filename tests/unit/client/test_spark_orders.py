"""What TaskManagers on Spark are told, and which commands bring them: nothing here starts Spark."""

import pickle
import stat

import pytest

from penstock.cli.cluster import start
from penstock.cli.run import run
from penstock.cli.spark import spark_options
from penstock.client.spark_taskmanagers import order_for
from penstock.core.errors import UsageError

FILES = ("ca.pem", "cluster.pem", "cluster.key")


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "certs"
    place.mkdir()
    for name in (*FILES, "ca.key", "admin.token"):
        (place / name).write_text(name)
    return place


def test_a_task_brings_the_clusters_files_and_no_others(folder, tmp_path):
    order = pickle.loads(pickle.dumps(order_for("10.0.0.4:6123", 3, "s3cr3t-" * 5, str(folder), insecure=False)))
    environment = order._env(tmp_path)
    assert environment["PENSTOCK_CLUSTER_SECRET"] == "s3cr3t-" * 5
    place = tmp_path / "security"
    assert environment["PENSTOCK_SECURITY"] == str(place)
    assert {path.name: path.read_text() for path in place.iterdir()} == {name: name for name in FILES}
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_the_secret_is_in_no_argument_and_no_text(folder, tmp_path):
    order = order_for("10.0.0.4:6123", 3, "s3cr3t-" * 5, str(folder), insecure=True)
    arguments = order._arguments(1, "10.0.0.5", tmp_path)
    given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    assert given["--data-host"] == "10.0.0.5"
    assert given["--slots"] == "3"
    assert given["--insecure"] == "true"
    assert "s3cr3t" not in " ".join(arguments) + repr(order)


def test_a_task_that_is_run_again_is_another_taskmanager(tmp_path):
    order = order_for("127.0.0.1:6123", 1, "s", "", insecure=False)
    first, second = (order._arguments(0, "127.0.0.1", tmp_path) for _ in range(2))
    assert first != second
    assert "PENSTOCK_SECURITY" not in order._env(tmp_path)


def test_a_folder_without_certificates_is_named(folder):
    (folder / "cluster.key").unlink()
    with pytest.raises(UsageError, match=r"cluster\.key cannot be read"):
        order_for("10.0.0.4:6123", 1, "s", str(folder), insecure=False)


def test_settings_of_spark(tmp_path):
    options = spark_options("yarn", ["spark.executor.memory=4g", "a=b=c"], taskmanagers=3, slots=2)
    assert options.settings == {"spark.executor.memory": "4g", "a": "b=c"}
    with pytest.raises(UsageError, match="has no value"):
        spark_options("yarn", ["spark.executor.memory"], taskmanagers=3, slots=2)


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
    with pytest.raises(UsageError, match="brings a cluster of its own"):
        run(job, engine="spark", master="yarn", cluster="http://127.0.0.1:1")


@pytest.mark.parametrize("options", [{"provider": "spark"}, {"master": "yarn"}, {"provider": "yarn", "master": "yarn"}])
def test_a_provider_and_a_master_go_together(options):
    with pytest.raises(UsageError, match="--master"):
        start(**options)
