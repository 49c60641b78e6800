"""A cluster and an Airflow that several tests share: no test is blamed for their processes."""

import contextlib

from tests.cluster.proc_tree import descendants
from tests.support import leaks

from penstock.client.local_cluster import LocalCluster


@contextlib.contextmanager
def shared_cluster(config):
    cluster = LocalCluster(config)
    with cluster, leaks.held(lambda: [child.pid for child in (cluster.jobmanager, *cluster.taskmanagers)]):
        yield cluster


@contextlib.contextmanager
def shared_airflow(airflow):
    """All below its components: some of these change their title, and with it what tells whose they are."""
    with airflow, leaks.held(lambda: [p for pid in airflow.pids().values() for p in (pid, *descendants(pid))]):
        yield airflow
