"""Workers killed while a large state is loaded and rows are processed already: the output stays exact."""

import os
import signal

import polars as pl
import pytest
from tests.cluster.savepoints import rows_read
from tests.support.jobs import end_jobs
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until

import penstock as ps
from penstock.client.executors import ClusterExecutor
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.state.memory.limits import PRODUCTION
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.datagen.source import OrderPattern, orders
from penstock_connectors.files import FileSink

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

#: Of one subtask; its state is loaded in parts once the most of them have come.
USERS = 500_000
LIMIT_S = 180.0


@pytest.fixture
def cluster(tmp_path):
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=1, directory=tmp_path / "cluster", environment=PATIENT
    )
    with LocalCluster(config) as running:
        yield running
        with running.client() as rest:
            end_jobs(rest)


def counting(folder, settings):
    """A job that counts the orders of each user, a row for each order."""
    env = ps.Environment(parallelism=1, checkpoint_interval="500ms", checkpoint_root=str(folder / "root"), **settings)
    source = DatagenSource(users=USERS, rows_per_second=60_000, splits=1)
    strategy = ps.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="ts")
    stream = env.from_source(source, watermarks=strategy, uid="orders").key_by("user_id")
    stream.aggregate(n=ps.count()).uid("running").sink_to(FileSink(str(folder / "out"), format="parquet"), uid="out")
    return env.job_graph("large")


@pytest.mark.parametrize(
    "settings",
    [{"state_backend": "hashmap", "unaligned_checkpoints": True}, {"state_backend": "rocksdb"}],
    ids=["hashmap-unaligned", "rocksdb-aligned"],
)
def test_each_row_is_counted_once_when_workers_are_killed_during_a_restore(cluster, tmp_path, settings):
    handle = ClusterExecutor(url=cluster.rest_url).submit(counting(tmp_path, settings))
    rest, job_id = handle.client, handle.job_id
    counted = lambda: sum(task.get("numRecordsIn", 0) for task in rest.metrics(job_id).values())
    completed = lambda: rest.checkpoints(job_id)["counts"]["completed"]
    story = lambda: f"{counted()} rows, {rest.story(job_id)[-9:]}"
    wait_until(lambda: counted() >= 2 * USERS, story, seconds=LIMIT_S, step=0.2)
    for kills in (1, 2, 3):
        os.kill(int(rest.workers(job_id)[0]["pid"]), signal.SIGKILL)
        wait_until(lambda: rest.summary(job_id)["restarts"] == kills, story, seconds=LIMIT_S, step=0.02)  # noqa: B023
        running = lambda: all(vertex["status"] == "RUNNING" for vertex in rest.job(job_id)["vertices"])
        wait_until(running, story, seconds=LIMIT_S, step=0.02)
    before = completed()
    wait_until(lambda: completed() >= before + 2, story, seconds=LIMIT_S, step=0.2)
    read = rows_read(handle.stop())
    expected = orders(OrderPattern(splits=1, users=USERS), 0, 0, read)["user_id"].to_numpy()
    assert len(set(expected.tolist())) > PRODUCTION.restored_at_once_rows
    counts = pl.DataFrame({"user_id": expected}).group_by("user_id").len("rows")
    rows = pl.read_parquet(f"{tmp_path}/out/**/*.parquet")
    found = rows.group_by("user_id").agg(
        rows=pl.len().cast(pl.UInt32), last=pl.col("n").max(), different=pl.col("n").n_unique()
    )
    assert found.select("user_id", "rows").sort("user_id").equals(counts.sort("user_id"))
    assert found.filter((pl.col("last") != pl.col("rows")) | (pl.col("different") != pl.col("rows"))).is_empty()
