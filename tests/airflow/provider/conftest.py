"""Tests of the provider under the real Airflow's libraries, against a real cluster.

They run in Airflow's own environment: `tests/airflow/test_provider.py` starts them there.
"""

import importlib.util
import os
import runpy
import secrets
import shutil
import tempfile
from pathlib import Path

import pytest
from tests.airflow.job_file import write_job
from tests.support.jobs import end_jobs
from tests.support.waiting import wait_until

if importlib.util.find_spec("airflow") is None:
    collect_ignore_glob = ["test_*.py"]


HOME = Path(tempfile.mkdtemp(prefix="airflow-home-"))
# before anything imports Airflow
os.environ |= {"AIRFLOW_HOME": str(HOME), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}


def pytest_unconfigure():
    """Remove Airflow's home."""
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """One for all tests: jobs have names of their own."""
    from tests.airflow.held import shared_cluster

    from penstock.client.local_cluster import LocalClusterConfig

    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=4, directory=tmp_path_factory.mktemp("cluster"))
    with shared_cluster(config) as found:
        host, _, port = found.rest_url.removeprefix("http://").rpartition(":")
        os.environ["AIRFLOW_CONN_PENSTOCK_DEFAULT"] = f"penstock://{host}:{port}"
        yield found
        os.environ.pop("AIRFLOW_CONN_PENSTOCK_DEFAULT", None)


@pytest.fixture
def client(cluster):
    """A client of the cluster; jobs that a test leaves running are cancelled."""
    with cluster.client() as found:
        before = {job["jid"] for job in found.jobs()}
        yield found
        end_jobs(found, besides=before)


@pytest.fixture
def running(cluster, client, tmp_path, name):
    """The id of a job that runs, has a checkpoint and was not submitted by Airflow."""
    from penstock.api.building.executors import use_executor
    from penstock.client.executors import ClusterExecutor

    with use_executor(ClusterExecutor(url=cluster.rest_url, detached=True), {}) as results:
        runpy.run_path(str(write_job(tmp_path, name)), run_name="__main__")
    job_id = results[0].job_id
    wait_until(lambda: client.checkpoints(job_id)["counts"]["completed"], "a checkpoint", step=0.1)
    return job_id


@pytest.fixture
def name():
    """A job name of this test alone."""
    return f"job-{secrets.token_hex(3)}"
