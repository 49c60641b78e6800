"""A job whose function is far too slow: few rows wait for it, or checkpoints overtake them; its output stays exact.

Without alignment a row may count again after a failure.
"""

import json
import os
import signal
from collections import Counter

import pytest
from tests.cluster.slow_function import slow_function
from tests.support.jobs import end_jobs, overlapping, run_job_file
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until

import penstock as ps
from penstock.client.handle import TERMINAL, JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig
from penstock.client.rest_client import RestClient
from penstock_connectors.datagen.source import OrderPattern, orders

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

#: What each source reads, by uid.
ONE = {"orders": OrderPattern(splits=2, event_rate=1000, users=50)}
#: A row of `ahead` is a second later than the one before, one of `last` a millisecond.
TWO = {
    "ahead": OrderPattern(splits=2, event_rate=1, users=50),
    "last": OrderPattern(splits=2, event_rate=1000, users=50, seed=1),
}
ONE_STREAM = """
source = DatagenSource(splits=2, rows_per_second=50_000, event_rate=1000, users=50)
stream = env.from_source(source, watermarks=in_order, uid="orders")
"""
TWO_STREAMS = """
group = in_order.with_watermark_alignment("orders", "5s")
ahead = DatagenSource(splits=2, rows_per_second=1_000, event_rate=1, users=50)
last = DatagenSource(splits=2, rows_per_second=5_000, event_rate=1000, users=50, seed=1)
stream = env.from_source(ahead, watermarks=group, uid="ahead").union(
    env.from_source(last, watermarks=group, uid="last")
)
"""
#: A row takes over 0.5 ms, 50,000 a second would come.
JOB = f"""{slow_function(0.0005)}
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink

env = ps.Environment(
    parallelism=2, checkpoint_interval="300ms", checkpoint_root="checkpoints", checkpoint_tolerated_failures=100,
    {{settings}}
)
in_order = ps.WatermarkStrategy.monotonic(timestamp="ts")
{{stream}}
stream.key_by("user_id").process(Slow()).uid("slow").sink_to(FileSink("out", format="jsonl"), uid="out")
env.submit("slow")
"""

UNALIGNED = 'buffer_size="4KB", floating_buffers=0, unaligned_checkpoints=True,'
#: With full buffers, a barrier would wait for over a minute. It waits for longer than the interval.
DEBLOATED = 'buffer_debloat_target="500ms", max_concurrent_checkpoints=3,'
AT_LEAST_ONCE = 'buffer_debloat_target="100ms", checkpoint_mode="at-least-once",'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    config = LocalClusterConfig(taskmanagers=1, slots_per_taskmanager=3, directory=folder, environment=PATIENT)
    with LocalCluster(config) as running:
        yield running


@pytest.fixture
def rest(cluster):
    with RestClient(cluster.rest_url) as client:
        yield client
        end_jobs(client)


def submit(rest, folder, settings, stream=ONE_STREAM):
    """Run the job file as a user does; return the job."""
    run_job_file(folder, JOB.replace("{settings}", settings).replace("{stream}", stream), rest.url)
    (job,) = [job for job in rest.jobs() if job["state"] not in TERMINAL]
    return JobHandle(rest, job["jid"], "slow")


def kill_worker(rest, job):
    """Kill a worker, and wait until the job has restarted and completed two further checkpoints."""
    completed = lambda: rest.checkpoints(job.job_id)["counts"]["completed"]
    os.kill(int(rest.workers(job.job_id)[0]["pid"]), signal.SIGKILL)
    wait_until(lambda: rest.summary(job.job_id)["restarts"] == 1, completed, step=0.1)
    before = completed()
    wait_until(lambda: completed() >= before + 2, completed, step=0.1)


def expected(savepoint, sources=ONE):
    """The rows that the sources had read at the savepoint, of each split."""
    read = []
    for uid, pattern in sources.items():
        items = ps.snapshots.read(str(savepoint), uid=uid, name="splits").collect()["item"]
        splits = [json.loads(item)["state"] for item in items]
        read += [orders(pattern, split["index"], 0, split["position"]) for split in splits]
    return Counter((row["user_id"], row["amount"]) for rows in read for row in rows.to_pylist())


def test_overtaken_rows_are_restored_after_a_kill_and_at_other_parallelisms(rest, tmp_path):
    job = submit(rest, tmp_path, UNALIGNED)
    story = lambda: rest.story(job.job_id)[-12:]

    def wait_overtaken(count):
        """Wait for further checkpoints with rows in flight."""
        before = rest.checkpoints(job.job_id)["counts"]["completed"]
        wait_until(lambda: rest.checkpoints(job.job_id)["counts"]["completed"] >= before + count, story, step=0.1)
        newest = rest.checkpoints(job.job_id)["latest"]["completed"]
        assert newest["persisted_data"] > 0
        return newest

    newest = wait_overtaken(3)
    print("overtaking:", newest["end_to_end_duration"], "ms,", newest["persisted_data"], "bytes in flight")
    os.kill(int(rest.workers(job.job_id)[0]["pid"]), signal.SIGKILL)
    wait_until(lambda: rest.summary(job.job_id)["restarts"] == 1, story, step=0.1)
    wait_overtaken(2)
    for parallelism in (3, 1):
        job.rescale(parallelism)
        wait_overtaken(2)
    savepoint = job.stop()
    stop = rest.checkpoints(job.job_id)["history"][0]
    print("aligned:", stop["end_to_end_duration"], "ms")
    assert_exact(tmp_path / "out", savepoint)


def test_checkpoints_overtake_rows_while_a_source_waits_for_its_alignment_group(rest, tmp_path):
    job = submit(rest, tmp_path, UNALIGNED, TWO_STREAMS)
    completed = lambda: rest.checkpoints(job.job_id)["counts"]["completed"]

    def wait_paused():
        """Wait for checkpoints with rows in flight while `last` has rows processed, and `ahead` reads none."""
        progress = lambda: (rest.summary(job.job_id)["rows-read"], completed())
        (read, done), newest = progress(), {}

        def paused():
            nonlocal read, done, newest
            now, count = progress()
            if now["ahead"] != read["ahead"] or not now["ahead"]:
                read, done = now, count
            newest = rest.checkpoints(job.job_id)["latest"]["completed"]
            further = now["last"] >= read["last"] + 2_000 and count >= done + 3
            return further and newest["persisted_data"] > 0

        wait_until(paused, lambda: f"{read}, {done} checkpoints; then {progress()}, {newest}", step=0.1)
        print("paused at", read["ahead"], "rows:", newest["persisted_data"], "bytes in flight")

    wait_paused()
    kill_worker(rest, job)
    wait_paused()
    savepoint = job.stop()
    assert_exact(tmp_path / "out", savepoint, TWO)


def test_rows_in_flight_are_bounded_by_time_also_after_a_kill(rest, tmp_path):
    job = submit(rest, tmp_path, DEBLOATED)
    completed = lambda: rest.checkpoints(job.job_id)["counts"]["completed"]
    wait_until(lambda: completed() >= 3, completed, step=0.1)
    kill_worker(rest, job)
    history = rest.checkpoints(job.job_id)["history"]
    newest, *_ = (entry for entry in history if entry["status"] == "COMPLETED")
    print("aligned:", newest["end_to_end_duration"], "ms")
    assert overlapping(history), "no checkpoint began before the one before it was complete"
    savepoint = job.stop()
    assert_exact(tmp_path / "out", savepoint)


def test_without_alignment_no_row_is_lost_by_a_kill(rest, tmp_path):
    job = submit(rest, tmp_path, AT_LEAST_ONCE)
    completed = lambda: rest.checkpoints(job.job_id)["counts"]["completed"]
    wait_until(lambda: completed() >= 2, completed, step=0.1)
    kill_worker(rest, job)
    savepoint = job.stop()
    found = Counter((row["user_id"], row["amount"]) for row in rows_in(tmp_path / "out"))
    print("again:", sum((found - expected(savepoint)).values()), "of", sum(found.values()))
    assert not expected(savepoint) - found


def rows_in(out):
    return [json.loads(line) for path in out.rglob("*.jsonl") for line in path.read_text().splitlines()]


def assert_exact(out, savepoint, sources=ONE):
    """Each row that the sources had read at the savepoint is there once, with its number."""
    rows = rows_in(out)
    assert Counter((row["user_id"], row["amount"]) for row in rows) == expected(savepoint, sources)
    numbers = Counter((row["user_id"], row["number"]) for row in rows)
    users = Counter(row["user_id"] for row in rows)
    assert numbers == Counter((user, n) for user, count in users.items() for n in range(1, count + 1))
