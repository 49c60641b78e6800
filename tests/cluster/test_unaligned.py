"""A job whose function is far too slow: few rows wait for it, or checkpoints overtake them; its output stays exact."""

import json
import os
import signal
from collections import Counter

import pytest
from tests.support.jobs import run_job_file
from tests.support.waiting import wait_until

import penstock as ps
from penstock.client.handle import JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.rest_client import RestClient
from penstock_connectors.datagen.source import OrderPattern, orders

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SPLITS = 2
#: A row takes over 0.5 ms, 50,000 a second would come.
JOB = f"""
import collections.abc, datetime, time
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

class Order(ps.Schema):
    user_id: int
    amount: int
    ts: datetime.datetime

class Counted(ps.Schema):
    user_id: int
    amount: int
    number: int

class Slow(ps.KeyedProcessFunction):
    orders: ps.ValueState[int] = ps.value_state()

    def process(self, order: Order, ctx: ps.ProcessContext) -> collections.abc.Iterator[Counted]:
        time.sleep(0.0005)
        number = (self.orders.value() or 0) + 1
        self.orders.update(number)
        yield Counted(user_id=order.user_id, amount=order.amount, number=number)

env = ps.Environment(
    parallelism=2, checkpoint_interval="300ms", checkpoint_root="checkpoints", checkpoint_tolerated_failures=100,
    {{settings}}
)
source = DatagenSource(splits={SPLITS}, rows_per_second=50_000, event_rate=1000, users=50)
stream = env.from_source(source, watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts"), uid="orders")
stream.key_by("user_id").process(Slow()).uid("slow").sink_to(FileSink("out", format="jsonl"), uid="out")
env.submit("slow")
"""

UNALIGNED = 'buffer_size="4KB", floating_buffers=0, unaligned_checkpoints=True,'
#: With full buffers, a barrier would wait for over a minute.
DEBLOATED = 'buffer_debloat_target="500ms",'


def expected(savepoint):
    """The rows that the sources had read at the savepoint, of each split."""
    items = ps.snapshots.read(str(savepoint), uid="orders", name="splits").collect()["item"]
    pattern = OrderPattern(splits=SPLITS, event_rate=1000, users=50)
    read = [orders(pattern, split["state"]["index"], 0, split["state"]["position"]) for split in map(json.loads, items)]
    return Counter((row["user_id"], row["amount"]) for rows in read for row in rows.to_pylist())


def test_overtaken_rows_are_restored_after_a_kill_and_at_other_parallelisms(tmp_path):
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=3, directory=tmp_path / "cluster")
    with LocalCluster(config) as cluster, RestClient(cluster.rest_url) as rest:
        run_job_file(tmp_path, JOB.replace("{settings}", UNALIGNED), cluster.rest_url)
        (job,) = rest.jobs()
        story = lambda: rest.story(job["jid"])[-12:]

        def wait_overtaken(count):
            """Wait for further checkpoints with rows in flight."""
            before = rest.checkpoints(job["jid"])["counts"]["completed"]
            wait_until(lambda: rest.checkpoints(job["jid"])["counts"]["completed"] >= before + count, story, step=0.1)
            newest = rest.checkpoints(job["jid"])["latest"]["completed"]
            assert newest["persisted_data"] > 0
            return newest

        newest = wait_overtaken(3)
        print("overtaking:", newest["end_to_end_duration"], "ms,", newest["persisted_data"], "bytes in flight")
        os.kill(int(rest.workers(job["jid"])[0]["pid"]), signal.SIGKILL)
        wait_until(lambda: rest.summary(job["jid"])["restarts"] == 1, story, step=0.1)
        wait_overtaken(2)
        handle = JobHandle(rest, job["jid"], "slow")
        for parallelism in (3, 1):
            handle.rescale(parallelism)
            wait_overtaken(2)
        savepoint = handle.stop()
        stop = rest.checkpoints(job["jid"])["history"][0]
        print("aligned:", stop["end_to_end_duration"], "ms")
    assert_exact(tmp_path / "out", savepoint)


def test_rows_in_flight_are_bounded_by_time_also_after_a_kill(tmp_path):
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=2, directory=tmp_path / "cluster")
    with LocalCluster(config) as cluster, RestClient(cluster.rest_url) as rest:
        run_job_file(tmp_path, JOB.replace("{settings}", DEBLOATED), cluster.rest_url)
        (job,) = rest.jobs()
        completed = lambda: rest.checkpoints(job["jid"])["counts"]["completed"]
        wait_until(lambda: completed() >= 3, completed, step=0.1)
        os.kill(int(rest.workers(job["jid"])[0]["pid"]), signal.SIGKILL)
        wait_until(lambda: rest.summary(job["jid"])["restarts"] == 1, completed, step=0.1)
        before = completed()
        wait_until(lambda: completed() >= before + 2, completed, step=0.1)
        newest = rest.checkpoints(job["jid"])["latest"]["completed"]
        print("aligned:", newest["end_to_end_duration"], "ms")
        savepoint = JobHandle(rest, job["jid"], "slow").stop()
    assert_exact(tmp_path / "out", savepoint)


def assert_exact(out, savepoint):
    """Each row that the sources had read at the savepoint is there once, with its number."""
    lines = [line for path in out.rglob("*.jsonl") for line in path.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    assert Counter((row["user_id"], row["amount"]) for row in rows) == expected(savepoint)
    numbers = Counter((row["user_id"], row["number"]) for row in rows)
    users = Counter(row["user_id"] for row in rows)
    assert numbers == Counter((user, n) for user, count in users.items() for n in range(1, count + 1))
