"""An asynchronous function while its worker is killed: it may be asked twice for a row, its result counts once."""

import base64
import json
import os
import signal

import polars as pl
import pyarrow as pa
import pytest
from tests.cluster.savepoints import rows_read
from tests.support.jobs import run_job_file
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until

import penstock as ps
from penstock.client.handle import JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.rest_client import RestClient
from penstock.core.errors import NotFoundError
from penstock_connectors.datagen.source import OrderPattern, orders

RATE = 500
pytestmark = pytest.mark.timeout(600)

JOB = f"""
import asyncio, dataclasses, datetime as dt
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

@dataclasses.dataclass
class Priced:
    user_id: int
    ts: dt.datetime
    price: int

async def price(row) -> Priced:
    await asyncio.sleep(row.user_id % 5 * 0.02)
    return Priced(row.user_id, row.ts, 3 * row.amount)

env = ps.Environment(parallelism=1, checkpoint_interval="300ms", checkpoint_root="checkpoints")
source = DatagenSource(splits=1, rows_per_second={RATE}, event_rate=100)
orders = env.from_source(source, watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts"), uid="orders")
priced = orders.map_async(price, capacity=40, timeout="30s").uid("price")
priced.sink_to(FileSink("out"), uid="out")
env.submit("prices")
"""


def under_way(uri):
    """Times of the rows whose calls had not ended at the cut; without any there is no such state."""
    try:
        items = ps.snapshots.read(uri, uid="price", name="in-flight").collect()["item"]
    except NotFoundError:
        return []
    streams = [pa.ipc.open_stream(base64.b64decode(json.loads(item))) for item in items]
    return [time for stream in streams for time in stream.read_all()["ts"].to_pylist()]


def test_every_row_comes_out_once_though_its_worker_is_killed(tmp_path):
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=1, directory=tmp_path / "cluster", environment=PATIENT
    )
    with LocalCluster(config) as cluster, RestClient(cluster.rest_url) as rest:
        run_job_file(tmp_path, JOB, cluster.rest_url)
        (job,) = rest.jobs()
        cuts = lambda: rest.checkpoints(job["jid"])["counts"]["completed"]
        story = lambda: rest.story(job["jid"])
        wait_until(lambda: cuts() >= 3, story, step=0.1)
        os.kill(int(rest.workers(job["jid"])[0]["pid"]), signal.SIGKILL)
        wait_until(lambda: rest.summary(job["jid"])["restarts"] == 1, story, step=0.1)
        done = cuts()
        wait_until(lambda: cuts() >= done + 2, story, step=0.1)
        savepoint = JobHandle(rest, job["jid"], "prices").stop()
    parts = sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file() and not path.name.startswith("."))
    rows = pl.concat([pl.read_parquet(path) for path in parts])
    read = pl.from_arrow(orders(OrderPattern(splits=1, event_rate=100), 0, 0, rows_read(savepoint)))
    times = [*rows["ts"], *under_way(savepoint)]
    assert sorted(times) == read["ts"].to_list(), "one for each row that was read, or it is asked for after the stop"
