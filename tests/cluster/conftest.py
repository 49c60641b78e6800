"""Fixtures of the cluster tests: servers, an empty bucket, unique names, and one cluster per module."""

import signal
import sys

import pytest
from tests.cluster import proc_tree
from tests.cluster.stage import Said, Stage, s3_environment
from tests.support.waiting import wait_until

from penstock.cli.main import app
from penstock.client.handle import TERMINAL
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig


@pytest.fixture
def stage(kafka_server, minio_server, bucket, topic_prefix, tmp_path):
    return Stage(kafka_server, minio_server, bucket, topic_prefix, tmp_path)


@pytest.fixture
def paused():
    """Processes that a test suspends: they resume at its end, so that none is left."""
    pids = []
    yield pids
    proc_tree.signal_all(pids, signal.SIGCONT)


@pytest.fixture(scope="module")
def cluster_of_the_module(request, minio_server, tmp_path_factory):
    config = LocalClusterConfig(
        taskmanagers=request.module.TASKMANAGERS,
        slots_per_taskmanager=1,
        directory=tmp_path_factory.mktemp("shared"),
        environment=s3_environment(minio_server),
    )
    with LocalCluster(config) as cluster:
        yield cluster


@pytest.fixture
def shared(cluster_of_the_module):
    """One cluster for all tests of a module, whose `TASKMANAGERS` have a slot each.

    After each test its jobs are canceled and gone, with their workers and the templates these came from.
    """
    cluster = cluster_of_the_module
    stay = _processes(cluster)
    yield cluster
    with cluster.client() as rest:
        running = lambda: {job["jid"]: job["state"] for job in rest.jobs() if job["state"] not in TERMINAL}
        for job_id in running():
            rest.cancel(job_id)
        wait_until(lambda: not running(), lambda: f"the end of all jobs: {running()}", step=0.1)
        workers = lambda: [worker for job in rest.jobs() for worker in rest.workers(job["jid"])]
        wait_until(lambda: not workers(), lambda: f"the end of all workers: {workers()}", step=0.1)
    proc_tree.signal_all(_processes(cluster) - stay, signal.SIGKILL)
    wait_until(lambda: _processes(cluster) <= stay, lambda: f"the end of {_processes(cluster) - stay}", step=0.1)


def _processes(cluster):
    return {pid for child in cluster.taskmanagers for pid in proc_tree.descendants(child.pid)}


@pytest.fixture
def here(stage, monkeypatch, capsys):
    """Run `penstock` commands in this process, as its entry point does."""
    for name, value in {**stage.environment, "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(stage.folder)

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app()
        said = Said(ended.value.code, *capsys.readouterr())
        assert said.code == code or code is None, said
        return said

    return run
