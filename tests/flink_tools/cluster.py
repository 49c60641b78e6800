"""A cluster of one TaskManager with jobs that never end, for Flink's own tools."""

import runpy
from urllib.parse import urlsplit

from tests.support.waiting import wait_until

from penstock.api.environment import use_executor
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.graph.executor import JobResult
from penstock.graph.job_graph import encode_graph

JOB = """
import penstock as ps
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

env = ps.Environment(parallelism=1, checkpoint_interval="300ms", checkpoint_root={root!r})
orders = env.from_source(
    DatagenSource(rows_per_second=2000, splits=2, disorder_ms=100, event_rate=2000),
    watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="ts"), uid="orders")
(orders.key_by("user_id").window(ps.Tumbling("1s")).aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")
       .sink_to(FileSink({output!r}), uid="out"))
env.execute({name!r})
"""


class Place:
    """A cluster of one TaskManager, and jobs that never end."""

    def __init__(self, folder, slots=2, tokens=None, jobmanagers=1):
        """`tokens`: what has the `environment` of a protected cluster's processes."""
        self.folder, self.tokens = folder, tokens
        environment = {} if tokens is None else tokens.environment
        config = LocalClusterConfig(
            taskmanagers=1,
            slots_per_taskmanager=slots,
            jobmanagers=jobmanagers,
            directory=folder / "cluster",
            environment=environment,
        )
        self.cluster = LocalCluster(config)

    @property
    def address(self):
        return urlsplit(self.cluster.rest_url).netloc

    @property
    def standby(self):
        """The address of the last JobManager, once the leader knows it."""
        with self.cluster.client() as client:
            wait_until(client.standbys, "the standby", step=0.1)
        return urlsplit(self.cluster.address.rpartition(",")[2]).netloc

    def submit(self, name, **options):
        """Start a job and return its id once it has a checkpoint."""
        path = self.folder / f"{name}.py"
        text = JOB.format(root=str(self.folder / "checkpoints"), output=str(self.folder / f"{name}-out"), name=name)
        path.write_text(text, encoding="utf-8")
        with self.cluster.client() as client:
            job_id = client.submit(encode_graph(_graph(path)), **options)
        self.wait(job_id, "RUNNING")
        wait_until(
            lambda: self.checkpoints(job_id) >= 2, lambda: f"two checkpoints of {name}: {self.told(job_id)}", step=0.1
        )
        return job_id

    def checkpoints(self, job_id):
        with self.cluster.client() as client:
            return client.checkpoints(job_id)["counts"]["completed"]

    def told(self, job_id):
        """Describe a job, for a wait that fails."""
        with self.cluster.client() as client:
            return client.job(job_id)["state"], client.exceptions(job_id), client.checkpoints(job_id)["counts"]

    def state(self, job_id):
        with self.cluster.client() as client:
            return client.job(job_id)["state"]

    def cancel(self, job_id):
        """Cancel a job and wait for its end."""
        with self.cluster.client() as client:
            client.cancel(job_id)
        self.wait(job_id, "CANCELED")

    def wait(self, job_id, state):
        wait_until(
            lambda: self.state(job_id) == state, lambda: f"{job_id} to be {state}: {self.told(job_id)}", step=0.1
        )


class _Capture:
    """An executor that keeps the graph instead of running it."""

    def execute(self, graph):
        self.graph = graph
        return JobResult(job_id="", name=graph.name, state="", duration_ms=0.0)


def _graph(path):
    capture = _Capture()
    with use_executor(capture, {}):
        runpy.run_path(str(path), run_name="__main__")
    return capture.graph
