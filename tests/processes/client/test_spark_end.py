"""TaskManagers on Spark when Spark ends and when they are closed: a Spark of a few lines stands for the real one."""

import contextlib
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import pytest
from py4j.protocol import Py4JError
from tests.support.waiting import wait_until

from penstock.client import spark_cluster
from penstock.client import spark_cluster as spark_taskmanagers
from penstock.client.sizing import Bounds
from penstock.client.spark_cluster import SparkExecutor, SparkOptions, SparkTaskManagers, launch_for
from penstock.config.settings import JobSettings
from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import PenstockError
from penstock.graph.job_graph import JobGraph

LIMIT_S = 120


class Spark:
    """Its context; a job that has come to it ends when it is cancelled.

    `late`: one that was asked for comes behind the first cancellation.
    """

    def __init__(self, *, late=False):
        self._jsc = self
        self.stopped, self.asked, self.comes = False, 0, threading.Event()
        if not late:
            self.comes.set()
        self.jobs: list[threading.Event] = []
        self.by_group: dict[str, threading.Event] = {}
        self._here = threading.local()

    def setLogLevel(self, _level): ...

    def setJobGroup(self, group, _about, *, interruptOnCancel):
        self._here.group = group

    def sc(self):
        return SimpleNamespace(isStopped=lambda: self.stopped)

    def parallelize(self, _numbers, _parts):
        return self

    def mapPartitions(self, _task):
        return self

    def collect(self):
        self.asked += 1
        assert self.comes.wait(LIMIT_S)
        if self.stopped:
            raise Py4JError("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.")
        job = self.by_group[self._here.group] = threading.Event()
        self.jobs.append(job)
        job.wait(60)
        raise Py4JError("org.apache.spark.SparkException: Job cancelled")

    def cancelJobGroup(self, _group):
        for job in self.jobs:
            job.set()
        self.comes.set()


class JobManager(contextlib.AbstractContextManager):
    def __exit__(self, *_error): ...

    def taskmanagers(self):
        return []

    def overview(self):
        return {"slots-pending": 0}


@pytest.fixture
def started(monkeypatch):
    with contextlib.ExitStack() as stack:

        def start(spark, on_lost=lambda: None, jobmanager=JobManager):
            monkeypatch.setattr(spark_taskmanagers, "open_context", lambda *_: contextlib.nullcontext(spark))
            options = SparkOptions(master="spark://h:7077", bounds=Bounds(least=2, most=2))
            managers = SparkTaskManagers(options, launch_for("h:1", 2, "", "", insecure=False), jobmanager, on_lost)
            stack.callback(managers.close)
            managers.start()
            return managers

        yield start


def test_spark_that_its_master_ends_is_told_and_nothing_more_is_started(started):
    spark, lost = Spark(), []
    managers = started(spark, lambda: lost.append(spark.asked))
    wait_until(lambda: len(spark.jobs) == 2, "two jobs at Spark")
    spark.stopped = True  # its master has ended it; the driver's JVM lives
    spark.cancelJobGroup("")
    wait_until(lambda: lost, "word of the lost Spark")
    managers._reconciler.join(LIMIT_S)
    assert not managers._reconciler.is_alive(), "it would start more"
    assert lost[0] == spark.asked == 2


def test_a_job_that_comes_to_spark_behind_the_first_cancellation_is_cancelled_too(started):
    spark = Spark(late=True)
    managers = started(spark)
    wait_until(lambda: spark.asked == 2, "two requests to Spark")
    managers.close()
    assert len(spark.jobs) == 2
    assert managers._threads == {}, "both have ended"


def test_a_job_fails_when_spark_is_gone_instead_of_waiting_for_slots(monkeypatch):
    class Cluster(contextlib.AbstractContextManager):
        def __init__(self, _config, _spark, on_lost=lambda: None):
            self.jobmanager, self.lose, self.address = SimpleNamespace(client=lambda: None), on_lost, "http://h:1"
            clusters.append(self)

        def __exit__(self, *_error): ...

    @dataclass
    class Handle:
        name: str
        job_id: str
        cluster: str = ""
        clock: Clock = field(default_factory=SystemClock)

        def wait(self, on_poll):
            on_poll({"state": "RUNNING"})
            clusters[0].lose()
            on_poll({"state": "FINISHED"})
            on_poll({"state": "RESTARTING"})

    clusters = []
    monkeypatch.setattr(spark_cluster, "SparkCluster", Cluster)
    monkeypatch.setattr(spark_cluster, "submit_graph", lambda *_: Handle(name="totals", job_id="7"))
    graph = JobGraph(name="totals", vertices=(), edges=(), settings=JobSettings())
    states, addresses = [], []
    executor = SparkExecutor(
        spark=SparkOptions(master="spark://h:7077"),
        on_poll=lambda handle, job: states.append((handle.cluster, job["state"])),
        on_started=addresses.append,
    )
    with pytest.raises(PenstockError, match="job totals was RESTARTING when Spark ended"):
        executor.execute(graph)
    assert states == [("http://h:1", "RUNNING"), ("http://h:1", "FINISHED")]
    assert addresses == ["http://h:1"]


class Watch:
    """Stands for Spark's word on executors: those of these job groups are decommissioned."""

    leaving: ClassVar[set[str]] = set()

    def __init__(self, _context): ...

    def is_leaving(self, group):
        return group in self.leaving


def test_a_taskmanager_on_a_decommissioned_executor_is_drained_until_it_has_ended_and_another_replaces_it(
    started, monkeypatch
):
    drained, ids = [], ["spark-0-a", "spark-1-b"]

    class Cluster(JobManager):
        def taskmanagers(self):
            return [{"id": name, "freeSlots": 0} for name in ids]

        def release_taskmanager(self, name, *, drain):
            assert drain
            drained.append(name)
            if len(drained) == 2:
                ids.remove(name)
                spark.by_group["penstock-taskmanager-0"].set()

    spark = Spark()
    monkeypatch.setattr(spark_cluster, "DecommissionWatch", Watch)
    monkeypatch.setattr(Watch, "leaving", {"penstock-taskmanager-0"})
    managers = started(spark, jobmanager=Cluster)
    wait_until(lambda: 0 not in managers._threads and len(managers._threads) == 2, "another one instead of the first")
    assert drained == ["spark-0-a"] * 2
    assert sorted(managers._threads) == [1, 2]
    assert managers._ends == [], "it was no loss"
