"""Local recovery on real processes: after a killed worker, the state is read from copies, and the output is exact."""

import pytest
from tests.cluster.killed_worker import counting_orders, require_each_order_once, rows_after_a_kill
from tests.cluster.stage import s3_environment
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

WAYS = ("Local", "Remote")


def test_a_killed_worker_restarts_from_local_copies(minio_server, bucket, tmp_path, monkeypatch):
    for name, value in s3_environment(minio_server).items():
        monkeypatch.setenv(name, value)
    # the changes of a checkpoint are too many for the manifest
    job = counting_orders(tmp_path, root=f"s3://{bucket}/jobs", rate=20_000, parallelism=1)
    read = {}

    def look(handle):
        def is_read():
            tasks = handle.client.metrics(handle.job_id).values()
            read.update({way: sum(task.get(f"numStateBytesRead{way}", 0) for task in tasks) for way in WAYS})
            return any(read.values())

        wait_until(is_read, "metrics of the restored state", step=0.1)

    require_each_order_once(*rows_after_a_kill(job.job_graph("local"), tmp_path, checkpoints=3, look=look))
    assert (read["Local"] > 0, read["Remote"]) == (True, 0), read
