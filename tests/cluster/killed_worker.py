"""A job that writes JSON lines to files, and whose worker is killed on the way; for tests of remote state."""

import json
import os
import signal

from tests.cluster.savepoints import rows_read
from tests.support.waiting import wait_until

from penstock.client.executors import ClusterExecutor
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig

LIMIT_S = 120.0


def rows_after_a_kill(graph, folder, *, checkpoints, drain=False):
    """Run `graph`, which reads `orders` without end and writes to `folder`/out; return all rows, and how many it read.

    A worker is killed after so many checkpoints, and the job stopped with a savepoint after some more.
    """
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=2, directory=folder / "cluster")
    with LocalCluster(config) as cluster:
        handle = ClusterExecutor(url=cluster.rest_url).submit(graph)
        summary = lambda: handle.client.summary(handle.job_id)
        completed = lambda: summary().get("checkpoints-completed", 0)
        story = lambda: f"{summary()}, {handle.client.story(handle.job_id)[-9:]}"
        wait_until(lambda: completed() >= checkpoints, story, seconds=LIMIT_S, step=0.1)
        os.kill(handle.client.workers(handle.job_id)[0]["pid"], signal.SIGKILL)
        wait_until(lambda: summary()["restarts"] >= 1, story, seconds=LIMIT_S, step=0.1)
        done = completed()
        wait_until(lambda: completed() >= done + 3, story, seconds=LIMIT_S, step=0.1)
        read = rows_read(handle.stop(drain=drain))
        told = summary()
        assert told["restarts"] == 1
    paths = (folder / "out").rglob("*.jsonl")
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    # rows that were read again after the kill count once
    assert told["rows-read"] == {"orders": read}
    assert sum(told["rows-written"].values()) == len(rows)
    return rows, read
