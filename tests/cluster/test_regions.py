"""A worker of one of several unconnected regions is killed: the others go on, and the output of all is exact.

Each region reads one topic and writes to two. One output is exactly-once. The other is at-least-once: it does not wait
for checkpoints, and contains a row twice if the region has processed it twice.
"""

import contextlib
import json
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass

import pytest
from tests.cluster.arrivals import Arrivals
from tests.cluster.orders import Feed, Orders, create_topics, read_messages
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until

from penstock.api.job_file import planned
from penstock.client.executors import ClusterExecutor
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.core.errors import PenstockError

pytestmark = [pytest.mark.servers, pytest.mark.processes]

RATE, CHUNK = 400, 20
#: The first half, which goes out at the full rate, is more than a test needs.
ORDERS = 400_000
#: Holds the first worker that restores state.
HELD = "task.during_restore"
JOB = """
from collections.abc import Iterator
from datetime import datetime

import penstock as ps
from penstock_connectors.kafka import KafkaSink, KafkaSource


class Order(ps.Schema):
    user_id: int
    amount: int
    ts: datetime


class Counted(ps.Schema):
    user_id: int
    seq: int
    total: int


class Count(ps.KeyedProcessFunction):
    seen: ps.ValueState[tuple[int, int]] = ps.value_state()

    def process(self, row, ctx: ps.ProcessContext) -> Iterator[Counted]:
        seq, total = self.seen.value() or (0, 0)
        self.seen.update((seq + 1, total + row.amount))
        yield Counted(user_id=row.user_id, seq=seq + 1, total=total + row.amount)


restart = ps.RestartStrategy(kind="fixed-delay", attempts=100, delay_ms=500)
env = ps.Environment(parallelism=1, checkpoint_interval="200ms", checkpoint_root={root!r}, restart=restart)
for region, (source, exact, live) in enumerate({topics!r}):
    orders = env.from_source(
        KafkaSource({bootstrap!r}, topic=source, schema=Order, start="earliest"),
        watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("500ms", timestamp="ts"), uid=f"orders-{{region}}",
    ).slot_sharing_group(f"region-{{region}}")
    counted = orders.key_by("user_id").process(Count()).uid(f"count-{{region}}")
    counted.sink_to(KafkaSink({bootstrap!r}, topic=exact, delivery="exactly-once"), uid=f"exact-{{region}}")
    counted.sink_to(KafkaSink({bootstrap!r}, topic=live, delivery="at-least-once"), uid=f"live-{{region}}")
env.execute("regions")
"""


@dataclass(frozen=True)
class Region:
    """Input and topics of one region."""

    feed: Feed
    source: str
    exact: str
    live: str

    def expected(self):
        """The rows for the orders that were sent, computed without the engine."""
        counts, sums, rows = Counter(), Counter(), []
        users, amounts, _ = (column[: self.feed.sent].tolist() for column in self.feed.orders.columns())
        for user, amount in zip(users, amounts, strict=True):
            counts[user] += 1
            sums[user] += amount
            rows.append((user, counts[user], sums[user]))
        return rows


def regions_of(stage, count):
    """Create the topics of so many regions."""
    topics = [[stage.fresh(what) for what in ("orders", "exact", "live")] for _ in range(count)]
    create_topics(stage.bootstrap, **{topic: 1 for names in topics for topic in names})
    return [
        Region(Feed(stage.bootstrap, names[0], Orders(seed, ORDERS, partitions=1), RATE, CHUNK), *names)
        for seed, names in enumerate(topics)
    ]


class Job:
    """One job of several regions on a cluster."""

    def __init__(self, cluster, stage, regions):
        self.stage, self.regions = stage, regions
        topics = [(region.source, region.exact, region.live) for region in regions]
        file = stage.folder / "regions.py"
        root = stage.root(stage.fresh("regions"))
        file.write_text(JOB.format(root=root, topics=topics, bootstrap=stage.bootstrap), encoding="utf-8")
        self.handle = ClusterExecutor(url=cluster.rest_url).submit(planned(file, {}, ""))
        self.rest = self.handle.client
        outputs = [topic for region in regions for topic in (region.exact, region.live)]
        self.arrivals = Arrivals(stage.bootstrap, dict.fromkeys(outputs, 1))

    def __enter__(self):
        self.arrivals.start()
        for region in self.regions:
            region.feed.start()
        return self

    def __exit__(self, *_):
        for region in self.regions:
            region.feed.end()
        self.arrivals.end()

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

    def wait_for_output(self, which, topic_of):
        """Wait until each of these regions has written a row for each order that has been sent by now."""
        sent = {topic_of(self.regions[number]): self.regions[number].feed.sent for number in which}
        arrived = lambda: {topic: len(self.arrivals.seen[topic]) for topic in sent}
        done = lambda: all(count >= sent[topic] for topic, count in arrived().items())
        self.wait(done, lambda: f"output: {arrived()} of {sent}")

    def started(self):
        """When each region was deployed."""
        vertices = self.rest.job(self.handle.job_id)["vertices"]
        found = {vertex["name"]: vertex["start-time"] for vertex in vertices}
        return {number: found[f"Source: orders-{number}"] for number in range(len(self.regions))}

    def pids(self):
        return {worker["pid"] for worker in self.rest.workers(self.handle.job_id)}

    def kill(self, pid, held=None):
        """Kill a worker and wait until its region has restarted; return the region.

        `held`: a folder of failpoints. The region is held in its restart until the others have written a row for each
        order that was sent by then.
        """
        before, restarts, pids = self.started(), self.summary()["restarts"], self.pids()
        begun = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self.wait(lambda: self.summary()["region-restart"], "a region that restarts")
        if held is not None:
            self.wait((held / f"{HELD}.hit").exists, "a worker that restores")
            (killed,) = self.deployed_again(before)
            self.wait_for_output(set(range(len(self.regions))) - {killed}, lambda region: region.live)
            assert self.summary()["region-restart"], "the region was to be held"
            (held / f"{HELD}.release").touch()
        self.wait(lambda: not self.summary()["region-restart"], "a region that has restarted")
        self.wait_for_checkpoints()
        (killed,) = self.deployed_again(before)
        assert self.summary()["restarts"] == restarts + 1
        assert self.pids() > pids - {pid}
        self.tell_gaps(killed, begun, held)
        return killed

    def deployed_again(self, before):
        return [region for region, at_ms in self.started().items() if at_ms != before[region]]

    def tell_gaps(self, killed, begun, held):
        """Print the longest time without output since a kill."""
        until = time.monotonic()
        for what in ("live", "exact"):
            gaps = [round(self.arrivals.gap(getattr(region, what), begun, until), 2) for region in self.regions]
            held_s = " (held)" if held is not None else ""
            print(f"{what}: killed {gaps.pop(killed)} s{held_s}, others {sorted(gaps)} s")

    def stop(self):
        """End the input, wait for all its output, and stop the job."""
        for region in self.regions:
            region.feed.end()
        self.wait_for_output(range(len(self.regions)), lambda region: region.exact)
        self.handle.stop()
        timestamps = self.rest.job(self.handle.job_id)["timestamps"]
        assert timestamps["RESTARTING"] == 0, "it was RUNNING all the time"

    def judge(self, killed):
        """All output is exact; a region that was not killed has processed each row once."""
        for number, region in enumerate(self.regions):
            expected, (exact, live) = region.expected(), (self.rows(region.exact), self.rows(region.live))
            assert exact == expected
            assert live == expected or number in killed
            assert set(live) == set(expected)

    def rows(self, topic):
        found = (json.loads(message.value()) for message in read_messages(self.stage.bootstrap, topic))
        return [(row["user_id"], row["seq"], row["total"]) for row in found]


def cluster_of(stage, regions, environment):
    return LocalCluster(
        LocalClusterConfig(
            taskmanagers=1,
            slots_per_taskmanager=regions,
            directory=stage.folder / "cluster",
            environment=stage.environment | PATIENT | environment,
        )
    )


@pytest.mark.parametrize(
    ("count", "kills"), [(3, 1), pytest.param(8, 5, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])]
)
def test_the_regions_of_other_workers_go_on_and_all_output_is_exact(stage, count, kills):
    held = stage.folder / "held"
    failpoints = {"PENSTOCK_FAILPOINTS": f"{HELD}=hold", "PENSTOCK_FAILPOINT_DIR": str(held)}
    regions = regions_of(stage, count)
    with cluster_of(stage, count, failpoints) as cluster, Job(cluster, stage, regions) as job:
        job.wait_for_checkpoints()
        job.wait_for_output(range(count), lambda region: region.live)
        first = kept = job.pids()
        killed = set()
        for number in range(kills):
            (pid, *_) = sorted(job.pids() - first) or sorted(first)
            killed.add(job.kill(pid, held if number == 0 else None))
            kept &= job.pids()
        assert len(killed) == 1
        assert len(kept) == count - 1
        job.stop()
        job.judge(killed)
        sent = {f"orders-{number}": region.feed.sent for number, region in enumerate(regions)}
        assert job.summary()["rows-read"] == sent


@pytest.mark.nightly
def test_a_new_jobmanager_goes_on_with_a_region_that_has_restarted(stage):
    with cluster_of(stage, 3, {}) as cluster, Job(cluster, stage, regions_of(stage, 3)) as job:
        job.wait_for_checkpoints()
        killed = {job.kill(min(job.pids()))}
        pids = job.pids()
        cluster.jobmanager.process.kill()
        job.wait(lambda: "has adopted 3 running workers" in job.told(), "the adoption")
        job.wait_for_checkpoints()
        assert job.pids() == pids
        job.stop()
        job.judge(killed)
