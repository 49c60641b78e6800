"""A worker of one of several unconnected regions is killed: the others go on, and the output of all is exact."""

import contextlib
import os
import signal
from collections import Counter
from itertools import pairwise

import polars as pl
import pytest
from tests.cluster.lifecycle import first_users, judge
from tests.cluster.savepoints import rows_read
from tests.support.files import files_below
from tests.support.waiting import wait_until

from penstock.api.job_file import planned
from penstock.client.executors import ClusterExecutor
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.core.errors import PenstockError

pytestmark = pytest.mark.processes

#: Each function also writes the rows that it processes into a file: those that it processes again are there twice.
JOB = """
import time
from collections.abc import Iterator

import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Counted(ps.Schema):
    user_id: int
    seq: int
    total: int


class Count(ps.KeyedProcessFunction):
    seen: ps.ValueState[tuple[int, int]] = ps.value_state()

    def __init__(self, path: str) -> None:
        self.path = path

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Counted]:
        seq, total = self.seen.value() or (0, 0)
        self.seen.update((seq + 1, total + row.amount))
        with open(self.path, "a") as processed:
            processed.write(f"{{time.time():.3f}} {{row.user_id}} {{seq + 1}}\\n")
        yield Counted(user_id=row.user_id, seq=seq + 1, total=total + row.amount)


restart = ps.RestartStrategy(kind="fixed-delay", attempts=100, delay_ms=500)
env = ps.Environment(
    parallelism=1, checkpoint_interval="200ms", checkpoint_root="{folder}/root", restart=restart
)
for region in range({regions}):
    orders = env.from_source(
        DatagenSource(splits=1, users=20, rows_per_second=400),
        watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts"), uid=f"orders-{{region}}",
    ).slot_sharing_group(f"region-{{region}}")
    counted = orders.key_by("user_id").process(Count(f"{folder}/processed-{{region}}")).uid(f"count-{{region}}")
    counted.sink_to(FileSink(f"{folder}/out-{{region}}"), uid=f"out-{{region}}")
env.execute("regions")
"""


class Job:
    """One job of several regions on a cluster."""

    def __init__(self, cluster, folder, regions):
        self.folder, self.regions = folder, range(regions)
        file = folder / "regions.py"
        file.write_text(JOB.format(folder=folder, regions=regions), encoding="utf-8")
        self.handle = ClusterExecutor(url=cluster.rest_url).submit(planned(file, {}, ""))
        self.rest = self.handle.client

    def summary(self):
        return self.rest.summary(self.handle.job_id)

    def told(self):
        """Return the newest entries of the story; empty while there is no JobManager."""
        with contextlib.suppress(PenstockError):
            return str(self.rest.story(self.handle.job_id)[-15:])
        return ""

    def wait(self, condition, what):
        wait_until(condition, lambda: f"{what}: {self.told()}", step=0.05)

    def wait_for_checkpoints(self, count=2):
        before = self.summary()["checkpoints-completed"]
        self.wait(lambda: self.summary()["checkpoints-completed"] >= before + count, f"{count} checkpoints")

    def started(self):
        """When each region was deployed."""
        found = {}
        for vertex in self.rest.job(self.handle.job_id)["vertices"]:
            region = next(region for region in self.regions if f"-{region}" in vertex["name"])
            found[region] = max(found.get(region, 0), vertex["start-time"])
        return found

    def processed(self, region):
        """The time, user and number of each row that a function has processed."""
        path = self.folder / f"processed-{region}"
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def gaps(self, region):
        """The largest time in s without a processed row, and without a published file."""
        processed = [float(at) for at, _, _ in self.processed(region)]
        published = sorted(path.stat().st_mtime for path in self.output(region))
        return tuple(round(max(b - a for a, b in pairwise(times)), 2) for times in (processed, published))

    def output(self, region):
        return files_below(self.folder / f"out-{region}", "[!.]*")

    def kill(self, pid):
        """Kill a worker and wait for the restart; return its region, and the workers that the others had and have."""
        before, restarts, pids = self.started(), self.summary()["restarts"], self.pids()
        os.kill(pid, signal.SIGKILL)
        self.wait(lambda: self.summary()["region-restart"], "a region that restarts")
        rows = {region: len(self.processed(region)) for region in self.regions}
        gone_on = lambda: sum(len(self.processed(region)) > rows[region] for region in self.regions)
        self.wait(lambda: gone_on() >= len(self.regions) - 1, "the other regions")
        self.wait(lambda: not self.summary()["region-restart"], "a region that has restarted")
        assert self.summary()["restarts"] == restarts + 1
        (killed,) = [region for region, at_ms in self.started().items() if at_ms != before[region]]
        assert self.pids() > pids - {pid}
        return killed

    def pids(self):
        return {worker["pid"] for worker in self.rest.workers(self.handle.job_id)}

    def stop(self):
        """Stop the job; return the rows in the savepoint by region."""
        uri = self.handle.stop()
        timestamps = self.rest.job(self.handle.job_id)["timestamps"]
        assert timestamps["RESTARTING"] == 0, "it was RUNNING all the time"
        return {region: rows_read(uri, f"orders-{region}") for region in self.regions}

    def judge(self, killed, read):
        """All output is exact; a region that was not killed has processed each row once."""
        for region, rows in read.items():
            written = pl.concat([pl.read_parquet(path) for path in self.output(region)])
            judge(written.rows())
            assert Counter(written["user_id"].to_list()) == Counter(first_users(rows))
            processed = [(user, number) for _, user, number in self.processed(region)]
            again = len(processed) - len(set(processed))
            assert again == 0 or region in killed


@pytest.mark.parametrize(
    ("regions", "kills"), [(3, 1), pytest.param(8, 5, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])]
)
def test_the_regions_of_other_workers_go_on_and_all_output_is_exact(tmp_path, regions, kills):
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=regions, directory=tmp_path / "cluster")
    with LocalCluster(config) as cluster:
        job = Job(cluster, tmp_path, regions)
        job.wait_for_checkpoints()
        first = kept = job.pids()
        killed = set()
        for _ in range(kills):
            (pid, *_) = sorted(job.pids() - first) or sorted(first)
            killed.add(job.kill(pid))
            kept &= job.pids()
            job.wait_for_checkpoints()
        assert len(killed) == 1
        assert len(kept) == regions - 1
        job.judge(killed, read := job.stop())
        assert job.summary()["rows-read"] == {f"orders-{region}": rows for region, rows in read.items()}
        for region in job.regions:
            print(f"region {region}{' (killed)' * (region in killed)}: largest gaps {job.gaps(region)} s")


@pytest.mark.nightly
def test_a_new_jobmanager_goes_on_with_a_region_that_has_restarted(tmp_path):
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=3, directory=tmp_path / "cluster")
    with LocalCluster(config) as cluster:
        job = Job(cluster, tmp_path, 3)
        job.wait_for_checkpoints()
        killed = {job.kill(min(job.pids()))}
        job.wait_for_checkpoints()
        pids = job.pids()
        cluster.jobmanager.process.kill()
        job.wait(lambda: "has adopted 3 running workers" in job.told(), "the adoption")
        job.wait_for_checkpoints()
        assert job.pids() == pids
        job.judge(killed, job.stop())
