"""The stage of a process-level test (servers, an empty bucket, names of its own), and a module's cluster."""

import pytest
from tests.cluster.stage import Stage, s3_environment

from penstock.client.local_cluster import LocalCluster, LocalClusterConfig


@pytest.fixture
def stage(kafka_server, minio_server, bucket, topic_prefix, tmp_path):
    return Stage(kafka_server, minio_server, bucket, topic_prefix, tmp_path)


@pytest.fixture(scope="module")
def shared(request, minio_server, tmp_path_factory):
    """One cluster for the tests of a module, which leave no job on it; its `TASKMANAGERS` have a slot each."""
    config = LocalClusterConfig(
        taskmanagers=request.module.TASKMANAGERS,
        slots_per_taskmanager=1,
        directory=tmp_path_factory.mktemp("shared"),
        environment=s3_environment(minio_server),
    )
    with LocalCluster(config) as cluster:
        yield cluster
