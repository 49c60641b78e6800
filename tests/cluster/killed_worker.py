"""Jobs that write JSON lines to files, and whose worker is killed on the way."""

import json
import os
import signal
from collections import Counter

from tests.cluster.savepoints import rows_read
from tests.support.files import files_below
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until

import penstock as ps
from penstock.client.executors import ClusterExecutor
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.datagen.source import OrderPattern, orders
from penstock_connectors.files import FileSink

LIMIT_S = 120.0
USERS = 40_000


def counting_orders(folder, *, root, rate, **settings):
    """A job that counts the orders of each user, a row for each order."""
    env = ps.Environment(checkpoint_interval="300ms", checkpoint_root=root, **settings)
    stream = env.from_source(
        DatagenSource(users=USERS, rows_per_second=rate, splits=1),
        watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts"),
        uid="orders",
    ).key_by("user_id")
    stream.aggregate(n=ps.count()).uid("running").sink_to(FileSink(str(folder / "out"), format="jsonl"), uid="out")
    return env


def require_each_order_once(rows, count):
    """Check the rows of `counting_orders` that has read `count` orders."""
    counts = {}
    for row in rows:
        counts.setdefault(row["user_id"], []).append(row["n"])
    read = orders(OrderPattern(splits=1, users=USERS), 0, 0, count)["user_id"].to_pylist()
    assert Counter(read) == Counter(row["user_id"] for row in rows), "a row for each order that was read"
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())


def rows_after_a_kill(graph, folder, *, checkpoints, drain=False, look=lambda _handle: None):
    """Run `graph`, which reads `orders` without end and writes to `folder`/out; return all rows, and how many it read.

    A worker is killed after so many checkpoints, and the job stopped with a savepoint after some more, and after `look`
    at the job. No copy of a checkpoint's files is left then.
    """
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=2, directory=folder / "cluster", environment=PATIENT
    )
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
        look(handle)
        read = rows_read(handle.stop(drain=drain))
        copies = lambda: files_below(config.directory, "*.pack")
        wait_until(lambda: not copies(), lambda: f"the end of {copies()}", step=0.1)
        told = summary()
        assert told["restarts"] == 1
    paths = (folder / "out").rglob("*.jsonl")
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    # rows that were read again after the kill count once
    assert told["rows-read"] == {"orders": read}
    assert sum(told["rows-written"].values()) == len(rows)
    return rows, read
