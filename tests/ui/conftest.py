"""A browser for this folder, and a cluster with a slow job for tests that only look."""

import pytest
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until
from tests.ui import jobs
from tests.ui.browser import Visit, chromium

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig


@pytest.fixture(scope="package")
def browser():
    """Ended after the last test of this folder: it keeps an event loop, which tests of coroutines would trip over."""
    with chromium() as found:
        yield found


@pytest.fixture(scope="package")
def slow_job(tmp_path_factory):
    """The slow job on a cluster of its own, seen for some checkpoints."""
    folder = tmp_path_factory.mktemp("slow")
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=3, directory=folder / "cluster", environment=PATIENT
    )
    with LocalCluster(config) as cluster:
        job = jobs.submit(cluster.rest_url, folder)
        done = lambda: job.client.summary(job.job_id).get("checkpoints-completed", 0)
        wait_until(lambda: done() >= 2, lambda: f"two checkpoints of {job.client.job(job.job_id)}", seconds=180)
        yield job


@pytest.fixture
def visit(browser, slow_job):
    with Visit(browser, slow_job.client.url) as found:
        yield found
