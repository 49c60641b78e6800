"""A job that writes JSON lines to files, and whose worker is killed on the way; for tests of remote state."""

import json
import os
import signal

from tests.support.waiting import wait_until

from penstock.client.executors import ClusterExecutor
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig


def rows_behind_a_kill(graph, folder, *, checkpoints, limit_s, end_s):
    """Run `graph`, which writes to `folder`/out, kill a worker behind so many checkpoints, and return all rows."""
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=2, directory=folder / "cluster")
    with LocalCluster(config) as cluster:
        handle = ClusterExecutor(url=cluster.rest_url).submit(graph)
        summary = handle.client.summary
        wait_until(
            lambda: summary(handle.job_id).get("checkpoints-completed", 0) >= checkpoints,
            "the checkpoints",
            seconds=limit_s,
        )
        os.kill(handle.client.workers(handle.job_id)[0]["pid"], signal.SIGKILL)
        handle.wait(timeout_ms=end_s * 1000)
        assert any("restart" in entry["text"].lower() for entry in handle.client.story(handle.job_id))
    paths = (folder / "out").rglob("*.jsonl")
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
