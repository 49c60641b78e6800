"""The stage of a process-level test: the session's servers, an empty bucket, names of its own."""

import pytest
from tests.cluster.stage import Stage


@pytest.fixture
def stage(kafka_server, minio_server, bucket, topic_prefix, tmp_path):
    return Stage(kafka_server, minio_server, bucket, topic_prefix, tmp_path)
