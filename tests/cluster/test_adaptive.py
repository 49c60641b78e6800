"""A job on real processes follows the slots that there are, without a command, and its output is exact."""

import os
import signal

import pytest
from tests.cluster.numbered import BEGIN, USERS, check_numbered
from tests.cluster.savepoints import rows_read
from tests.support.waiting import wait_until

from penstock.api.job_file import planned
from penstock.client.executors import ClusterExecutor, SubmitOptions
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

JOB = """
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
    path.write_text(BEGIN.format(work="pass") + JOB.format(root=str(tmp_path / "root"), users=USERS), encoding="utf-8")
    with LocalCluster(config) as cluster:
        job = ClusterExecutor(url=cluster.rest_url, options=SubmitOptions()).submit(planned(path, {}, "numbered"))
        follows(job, 4)
        adaptive = job.client.summary(job.job_id)["adaptive"]
        assert adaptive == {"slots": 4, "least": 2, "most": 6, "rescale-at": None}
        assert job.client.overview()["slots-pending"] == 2, "a cluster that can would grow"
        assert job.client.job(job.job_id)["schedulerType"] == "Adaptive"
        os.kill(cluster.taskmanagers[1].pid, signal.SIGKILL)
        follows(job, 2)
        for index in (2, 3):
            cluster.taskmanagers.append(cluster._child(f"taskmanager-{index}", cluster._taskmanager_arguments(index)))
            cluster.taskmanagers[-1].start()
        follows(job, 6)
        assert job.client.overview()["slots-pending"] == 0
        assert job.client.summary(job.job_id)["restarts"] == 1
        count = rows_read(job.stop())
    check_numbered(tmp_path / "root" / "out", count)
