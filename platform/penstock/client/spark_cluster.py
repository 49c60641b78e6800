"""A cluster with a local JobManager and TaskManagers on Spark's executors, and jobs that start such a cluster.

Used by `penstock cluster start --provider spark` and `penstock run --engine spark`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from penstock.client.executors import SubmitOptions, run_to_end, submit_graph
from penstock.client.handle import TERMINAL, JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.sizing import Bounds
from penstock.client.spark_taskmanagers import SparkOptions, SparkTaskManagers, order_for
from penstock.config.security import FOLDER_VARIABLE
from penstock.core.errors import PenstockError, UsageError
from penstock.graph.regions import endless_sources, required_slots

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.graph.executor import JobResult
    from penstock.graph.job_graph import JobGraph

#: Time limit for executors: a resource manager may have none free at once, and their JVMs start slowly.
START_TIMEOUT_MS = 900_000.0


class SparkCluster:
    """A context manager for one JobManager and TaskManagers on Spark."""

    def __init__(
        self, config: LocalClusterConfig, spark: SparkOptions, on_lost: Callable[[], None] = lambda: None
    ) -> None:
        """Create the cluster; executors must reach `config.rpc_host`. `on_lost` is called when Spark has ended."""
        self._config = config
        self._spark = spark
        self._on_lost = on_lost
        self.jobmanager = LocalCluster(replace(config, taskmanagers=0))
        self._taskmanagers: SparkTaskManagers | None = None

    @property
    def rest_url(self) -> str:
        """The JobManager's REST URL."""
        return self.jobmanager.rest_url

    def __enter__(self) -> Self:
        """Start the JobManager and Spark, and wait for the minimum number of TaskManagers.

        Raises:
            PenstockError: the JobManager, Spark or the TaskManagers did not start.
        """
        cluster, spark = self.jobmanager, self._spark
        cluster.start()
        try:
            folder = {**os.environ, **self._config.environment}.get(FOLDER_VARIABLE, "")
            slots, insecure = spark.bounds.slots, self._config.insecure
            order = order_for(cluster.rpc_address, slots, cluster.secret, folder, insecure=insecure)
            self._taskmanagers = SparkTaskManagers(spark, order, cluster.client, self._on_lost)
            self._taskmanagers.start()
            cluster.wait_registered(spark.bounds.least, self._taskmanagers.check, START_TIMEOUT_MS)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process."""
        self.close()

    def close(self) -> None:
        """End TaskManagers, Spark and the JobManager; idempotent."""
        try:
            if self._taskmanagers is not None:
                self._taskmanagers.close()
        finally:
            self.jobmanager.close()


@dataclass(kw_only=True)
class SparkExecutor:
    """Runs bounded jobs, each with separate TaskManagers on Spark for its duration."""

    spark: SparkOptions
    #: Address at which executors reach the JobManager on this machine.
    host: str = "127.0.0.1"
    insecure: bool = False
    options: SubmitOptions = field(default_factory=SubmitOptions)
    on_poll: Callable[[JobHandle, dict[str, Any]], None] | None = None

    def submit(self, graph: JobGraph) -> JobHandle:
        """Refuse: no process would remain to hold the executors.

        Raises:
            UsageError: always.
        """
        msg = f"--engine spark runs {graph.name} to its end, but env.submit does not wait"
        raise UsageError(msg, hint="use env.execute, or `penstock cluster start --provider spark`")

    def execute(self, graph: JobGraph, *, enough: Callable[[], bool] | None = None) -> JobResult:
        """Start the cluster, run the job to its end, end the cluster.

        Raises:
            UsageError: the job is unbounded, or Spark does not start.
            PenstockError: the job failed, or Spark has ended.
        """
        if endless := endless_sources(graph):
            msg = f"--engine spark needs a bounded job, but source {endless[0]} is unbounded"
            raise UsageError(msg, hint="set bounded=..., or use `penstock cluster start --provider spark`")
        slots = required_slots(graph)
        managers = max(1, min(self.spark.bounds.least, slots))
        spark = replace(self.spark, bounds=Bounds(least=managers, most=managers, slots=-(-slots // managers)))
        config = LocalClusterConfig(rest_host=self.host, rpc_host=self.host, insecure=self.insecure)
        lost = threading.Event()

        def look(handle: JobHandle, job: dict[str, Any]) -> None:
            if lost.is_set() and job["state"] not in TERMINAL:  # otherwise it would wait for slots forever
                msg = f"job {handle.name} was {job['state']} when Spark ended"
                raise PenstockError(msg, hint="run it again; see Spark's log for the cause")
            if self.on_poll is not None:
                self.on_poll(handle, job)

        with SparkCluster(config, spark, lost.set) as cluster:
            return run_to_end(submit_graph(cluster.jobmanager.client(), graph, self.options), look, enough)
