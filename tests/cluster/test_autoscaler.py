"""A slow job on real processes is made wider by the JobManager itself, or only said to be; its output is exact."""

import json
import urllib.request

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
    parallelism=1, checkpoint_interval="500ms", checkpoint_root={root!r}, buffer_size_bytes=8192,
    autoscaler={{
        "enabled": True, "dry_run": {dry_run}, "metrics_window_ms": 4000, "stabilization_interval_ms": 1000,
        "restart_time_ms": 3000,
    }},
)
orders = env.from_source(DatagenSource(splits=1, users={users}, rows_per_second=200_000), uid="orders")
(orders.name("orders").key_by("user_id").process(Number()).uid("number").name("number orders")
       .sink_to(FileSink({root!r} + "/out"), uid="out"))
env.execute("numbered")
"""


def asked(cluster, job_id):
    with urllib.request.urlopen(f"{cluster.rest_url}/v1/penstock/jobs/{job_id}/autoscaler", timeout=30) as answer:
        return json.load(answer)


def widths(job):
    return {vertex["name"]: vertex["parallelism"] for vertex in job.client.job(job.job_id)["vertices"]}


def started(cluster, folder, *, dry_run):
    path = folder / "numbered.py"
    path.write_text(
        BEGIN.format(work="sum(i * i for i in range(1000))")
        + JOB.format(root=str(folder / "root"), dry_run=dry_run, users=USERS),
        encoding="utf-8",
    )
    return ClusterExecutor(url=cluster.rest_url, options=SubmitOptions()).submit(planned(path, {}, "numbered"))


@pytest.fixture
def cluster(tmp_path):
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=3, directory=tmp_path / "cluster")
    with LocalCluster(config) as running:
        yield running


def test_a_slow_job_is_made_wider_and_its_output_is_exact(cluster, tmp_path):
    job = started(cluster, tmp_path, dry_run=False)
    done = lambda: [d for d in asked(cluster, job.job_id)["decisions"] if d["outcome"] == "done"]
    wait_until(done, lambda: f"a rescale by itself: {asked(cluster, job.job_id)}", seconds=120, step=0.5)
    (decision,) = done()
    assert decision["kind"] == "rescale"
    slow = next(v for v in decision["vertices"].values() if "number" in v["name"])
    assert (slow["parallelism"], slow["utilization"] > 0.9) == (1, True)
    assert max(widths(job).values()) == slow["wanted"] > 1
    story = [entry["text"] for entry in job.client.story(job.job_id) if entry["kind"] == "autoscaler"]
    assert story == [decision["text"]]
    completed = lambda: job.client.summary(job.job_id)["checkpoints-completed"]
    before = completed()
    wait_until(lambda: completed() > before, lambda: job.client.story(job.job_id)[-9:], seconds=120, step=0.2)
    measured = lambda: asked(cluster, job.job_id)["restarts-measured"]
    wait_until(measured, lambda: f"a measured restart: {asked(cluster, job.job_id)}", step=0.2)
    count = rows_read(job.stop())
    check_numbered(tmp_path / "root" / "out", count)


def test_a_dry_run_says_it_and_does_nothing(cluster, tmp_path):
    job = started(cluster, tmp_path, dry_run=True)
    would = lambda: [d for d in asked(cluster, job.job_id)["decisions"] if d["kind"] == "rescale"]
    wait_until(would, lambda: f"what it would do: {asked(cluster, job.job_id)}", seconds=120, step=0.5)
    first = would()[-1]["at"]
    wait_until(lambda: would()[0]["until"] > first, "another look that says the same", step=0.5)
    assert {decision["outcome"] for decision in would()} == {""}
    assert set(widths(job).values()) == {1}
    story = [entry["text"] for entry in job.client.story(job.job_id) if entry["kind"] == "autoscaler"]
    assert story[0].startswith("would do: ")
    job.cancel()
