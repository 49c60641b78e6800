"""State that stays in the object store, on real processes: a worker is killed, and every row is counted once."""

import json
import os
import signal

import pytest
from tests.cluster.proc_tree import wait_until

import penstock as ps
from penstock.client.executors import ClusterExecutor
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]

ROWS, USERS, RATE = 160_000, 40_000, 10_000
#: By then segments were merged, so that what is read is more than a file that is read at once.
CHECKPOINTS = 10


def job(folder):
    env = ps.Environment(
        parallelism=2,
        state_backend="remote",
        checkpoint_interval="500ms",
        checkpoint_root=str(folder / "checkpoints"),
        managed_memory="4MB",
    )
    orders = env.from_source(
        DatagenSource(rows=ROWS, users=USERS, rows_per_second=RATE),
        watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts"),
        uid="orders",
    ).key_by("user_id")
    orders.aggregate(n=ps.count()).uid("running").sink_to(FileSink(str(folder / "out"), format="jsonl"), uid="out")
    return env


def test_a_kill_counts_nothing_twice(tmp_path):
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=2, directory=tmp_path / "cluster")
    with LocalCluster(config) as cluster:
        handle = ClusterExecutor(url=cluster.rest_url).submit(job(tmp_path).job_graph("remote"))
        summary = handle.client.summary
        wait_until(
            lambda: summary(handle.job_id).get("checkpoints-completed", 0) >= CHECKPOINTS, 120, "the checkpoints"
        )
        os.kill(handle.client.workers(handle.job_id)[0]["pid"], signal.SIGKILL)
        handle.wait(timeout_ms=180_000)
        assert any("restart" in entry["text"].lower() for entry in handle.client.story(handle.job_id))

    paths = (tmp_path / "out").rglob("*.jsonl")
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    counts = {}
    for row in rows:
        counts.setdefault(row["user_id"], []).append(row["n"])
    assert len(rows) == ROWS
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())
