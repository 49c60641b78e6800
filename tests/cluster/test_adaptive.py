"""A job on real processes follows the slots that there are, without a command, and its output is exact."""

import os
import signal
from collections import Counter, defaultdict

import pyarrow.parquet as pq
import pytest
from tests.cluster.savepoints import rows_read
from tests.support.waiting import wait_until

from penstock.api.job_file import planned
from penstock.client.executors import ClusterExecutor, SubmitOptions
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock_connectors.datagen.source import OrderPattern, orders

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

USERS = 50
JOB = """
from collections.abc import Iterator

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Numbered(ps.Schema):
    user_id: int
    number: int


class Number(ps.KeyedProcessFunction):
    seen: ps.ValueState[int] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Numbered]:
        number = (self.seen.value() or 0) + 1
        self.seen.update(number)
        yield Numbered(user_id=row.user_id, number=number)


env = ps.Environment(
    parallelism=6, checkpoint_interval="500ms", checkpoint_root={root!r},
    adaptive_scheduler={{
        "enabled": True, "min_parallelism": 2, "resource_stabilization_timeout": "1s", "scaling_interval": "1s",
    }},
)
orders = env.from_source(DatagenSource(splits=1, users={users}, rows_per_second=1_000), uid="orders")
(orders.key_by("user_id").process(Number()).uid("number").sink_to(FileSink({root!r} + "/out"), uid="out"))
env.execute("numbered")
"""


def widths(job):
    return {vertex["parallelism"] for vertex in job.client.job(job.job_id)["vertices"]}


def follows(job, slots):
    """Wait until the job runs with that many slots, and has completed two more checkpoints there."""
    story = lambda: [(entry["kind"], entry["text"]) for entry in job.client.story(job.job_id)][-12:]
    there = lambda: widths(job) == {slots} and job.client.summary(job.job_id)["state"] == "RUNNING"
    wait_until(there, lambda: f"{slots} slots: {widths(job)} {story()}", seconds=90, step=0.2)
    completed = lambda: job.client.summary(job.job_id)["checkpoints-completed"]
    before = completed()
    wait_until(lambda: completed() > before + 1, lambda: f"checkpoints: {story()}", seconds=90, step=0.2)


def test_a_job_follows_four_two_and_six_slots_and_its_output_is_exact(tmp_path):
    config = LocalClusterConfig(
        taskmanagers=2, slots_per_taskmanager=2, directory=tmp_path / "cluster", restart_dead=False
    )
    path = tmp_path / "numbered.py"
    path.write_text(JOB.format(root=str(tmp_path / "root"), users=USERS), encoding="utf-8")
    with LocalCluster(config) as cluster:
        job = ClusterExecutor(url=cluster.rest_url, options=SubmitOptions()).submit(planned(path, {}, "numbered"))
        follows(job, 4)
        assert job.client.summary(job.job_id)["adaptive-slots"] == "4 of at most 6 slots"
        assert job.client.job(job.job_id)["schedulerType"] == "Adaptive"
        os.kill(cluster.taskmanagers[1].pid, signal.SIGKILL)
        follows(job, 2)
        for index in (2, 3):
            cluster.taskmanagers.append(cluster._child(f"taskmanager-{index}", cluster._taskmanager_arguments(index)))
            cluster.taskmanagers[-1].start()
        follows(job, 6)
        assert job.client.summary(job.job_id)["restarts"] == 1
        count = rows_read(job.stop())
    numbers = defaultdict(list)
    for part in (tmp_path / "root" / "out").glob("*.parquet"):
        for row in pq.read_table(part).to_pylist():
            numbers[row["user_id"]].append(row["number"])
    read = orders(OrderPattern(splits=1, users=USERS), 0, 0, count)["user_id"].to_pylist()
    assert Counter(read) == {user: len(found) for user, found in numbers.items()}
    for found in numbers.values():
        assert sorted(found) == list(range(1, len(found) + 1)), "no row twice, none lost, state went along"
