"""A broker that answers nobody for some seconds and then continues: jobs wait, say for what, and lose nothing."""

import contextlib
import os
import re
import signal

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.cluster.harness import Scene
from tests.cluster.orders import Orders, create_topics, produce_values, read_messages
from tests.cluster.stage import Stage
from tests.support.leases import PATIENT

from penstock_lab.servers.kafka_local import LocalKafka
from penstock_lab.servers.process import free_port

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

#: So many that the source has fetched some that are no letters yet when the broker stops.
BAD = 90_000


@pytest.fixture
def kafka(tmp_path, paused):
    broker = LocalKafka(tmp_path / "kafka", port=free_port())
    broker.start()
    paused.append(broker.pid)
    yield broker
    os.kill(broker.pid, signal.SIGCONT)
    broker.remove()


@pytest.fixture
def stage(kafka, minio_server, bucket, tmp_path):
    return Stage(kafka, minio_server, bucket, "frozen", tmp_path)


def slow_calls(scene):
    return [call["what"] for call in scene.summary().get("slow-calls", [])]


@contextlib.contextmanager
def frozen(kafka):
    os.kill(kafka.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(kafka.pid, signal.SIGCONT)


def waits_out(scene, what):
    """After the broker continues: the job has told of the call and of its end, without a restart."""
    told = lambda: [entry["text"] for entry in scene.story() if entry["kind"] == "slow"]
    ended = lambda: any(text.startswith("slow call ended after") and text.endswith(what) for text in told())
    scene.wait(ended, lambda: f"the end of {what} in {told()}")
    assert any(text.startswith("slow call, ") and text.endswith(f" so far: {what}") for text in told()), told()
    scene.feed.join()
    scene.wait_finished()
    assert scene.summary()["restarts"] == 0
    scene.check_exact()


def test_dead_letters_wait_for_their_broker(stage, kafka):
    aside = stage.fresh("aside")
    create_topics(stage.bootstrap, **{aside: 1})
    options = {"source_options": f"on_bad_record='dead-letter', dead_letter_topic={aside!r}"}
    with Scene(stage, Orders(51, 4_000), job=options, leases=PATIENT) as scene:
        scene.job.stops[scene.source, 0] += BAD
        produce_values(stage.bootstrap, scene.source, [b"{%d" % number for number in range(BAD)])
        admin, end = AdminClient({"bootstrap.servers": stage.bootstrap}), TopicPartition(aside, 0)
        written = lambda: admin.list_offsets({end: OffsetSpec.latest()})[end].result(30).offset
        scene.begin()
        scene.wait(written, "a dead letter", step=0)
        with frozen(kafka):
            letters = lambda: [what for what in slow_calls(scene) if "dead letters" in what]
            (what,) = scene.wait(letters, "a slow delivery")
            place = re.escape(f"topic '{aside}' at {stage.bootstrap}")
            assert re.fullmatch(rf"source 'orders' \(\d\): delivering dead letters to {place}", what)
            titles = lambda: [finding["title"] for finding in scene.rest.health(scene.job_id)["findings"]]
            scene.wait(lambda: titles()[0] == f"Slow call: {what}", lambda: f"the call as the first of {titles()}")
            assert not any("limit" in title for title in titles()), titles()
        waits_out(scene, what)
        values = [message.value() for message in read_messages(stage.bootstrap, aside)]
    assert len(values) == BAD
    assert set(values) == {b"{%d" % number for number in range(BAD)}


@pytest.mark.nightly
def test_a_job_whose_source_waits_for_its_broker_is_cancelled_at_once(stage, kafka):
    """The broker answers again only after the job is canceled and its workers are gone."""
    with Scene(stage, Orders(52, 4_000)) as scene:
        scene.job.stops[scene.source, 0] += BAD  # it does not finish by itself
        scene.begin()
        scene.wait_rows()
        assert scene.look_at_workers()
        with frozen(kafka):
            away = lambda: scene.summary()["sources-unreachable"]
            scene.wait(away, lambda: f"a source that waits: {away()}")
            earlier = scene.summary()["restarts"]
            scene.cancel()
            scene.wait(lambda: not scene.look_at_workers(), lambda: f"the end of {scene.look_at_workers()}")
            assert scene.summary()["restarts"] == earlier
            told = [entry["text"] for entry in scene.story() if entry["kind"] == "cancel"]
            assert told == ["requested by a user"], told
        scene.feed.join()
