"""Rows in flight from Kafka to Kafka, exactly once: workers are killed, at 1, 2 and 5 subtasks."""

import json
import os
import signal
from collections import Counter

import pytest
from tests.cluster.orders import Feed, Orders, create_topics, read_messages
from tests.cluster.slow_function import slow_function
from tests.support.jobs import end_jobs, run_job_file
from tests.support.leases import PATIENT
from tests.support.waiting import wait_until

from penstock.client.handle import JobHandle
from penstock.client.local_cluster import LocalCluster, LocalClusterConfig

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

#: Orders a second: many more than a subtask takes, which needs over a millisecond for each.
RATE = 40_000
JOB = """
from penstock_connectors.kafka import KafkaSink, KafkaSource

env = ps.Environment(
    parallelism=2, checkpoint_interval="300ms", checkpoint_root={root!r}, checkpoint_tolerated_failures=100,
    buffer_size="4KB", floating_buffers=0, unaligned_checkpoints=True,
)
source = KafkaSource({bootstrap!r}, topic={source!r}, schema=Order, start="earliest", bounded={stops!r})
stream = env.from_source(source, watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts"), uid="orders")
counted = stream.key_by("user_id").process(Slow()).uid("slow")
counted.sink_to(KafkaSink({bootstrap!r}, topic={sink!r}, delivery="exactly-once"), uid="out")
env.submit({name!r})
"""


@pytest.fixture
def rest(stage, tmp_path):
    environment = stage.environment | PATIENT
    config = LocalClusterConfig(
        taskmanagers=1, slots_per_taskmanager=5, directory=tmp_path / "cluster", environment=environment
    )
    with LocalCluster(config) as running, running.client() as client:
        yield client
        end_jobs(client)


@pytest.fixture(params=[1, 5], ids="{} subtasks".format)
def parallelism(request):
    return request.param


@pytest.fixture
def feed(stage, parallelism):
    """Orders, so many that rows wait also after the second kill."""
    orders = Orders(26, 6_000 + 4_000 * parallelism)
    feed = Feed(stage.bootstrap, stage.fresh("orders"), orders, RATE)
    create_topics(stage.bootstrap, **{feed.topic: orders.partitions})
    feed.start()
    yield feed
    feed.end()


def test_overtaken_rows_come_out_once_after_kills_and_a_rescale(stage, rest, feed, tmp_path, parallelism):
    name, sink = stage.fresh("job"), stage.fresh("counted")
    create_topics(stage.bootstrap, **{sink: 2})
    places = {"name": name, "root": stage.root(name), "source": feed.topic, "sink": sink}
    text = slow_function(0.001) + JOB.format(bootstrap=stage.bootstrap, stops=feed.orders.stops(feed.topic), **places)
    run_job_file(tmp_path, text, rest.url, os.environ | stage.environment)
    (found,) = rest.jobs()
    job = JobHandle(rest, found["jid"], name)
    story = lambda: rest.story(job.job_id)[-12:]

    def wait_overtaken():
        """Wait for two further checkpoints, the newest of which has rows in flight."""
        before = rest.checkpoints(job.job_id)["counts"]["completed"]

        def overtaken():
            told = rest.checkpoints(job.job_id)
            newest = told["latest"]["completed"]
            return told["counts"]["completed"] >= before + 2 and newest["persisted_data"] > 0

        wait_until(overtaken, story, step=0.1)

    for kills in (1, 2):
        wait_overtaken()
        os.kill(int(rest.workers(job.job_id)[0]["pid"]), signal.SIGKILL)
        wait_until(lambda: rest.summary(job.job_id)["restarts"] == kills, story, step=0.1)  # noqa: B023
        if kills == 1:
            wait_overtaken()
            job.rescale(parallelism)
    feed.join()
    job.wait()
    rows = [json.loads(message.value()) for message in read_messages(stage.bootstrap, sink)]
    users, amounts, _times = feed.orders.columns()
    assert Counter((row["user_id"], row["amount"]) for row in rows) == Counter(
        zip(users.tolist(), amounts.tolist(), strict=True)
    )
    counts = Counter(users.tolist())
    numbers = Counter((user, number) for user, count in counts.items() for number in range(1, count + 1))
    assert Counter((row["user_id"], row["number"]) for row in rows) == numbers
