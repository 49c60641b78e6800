"""The main job behind networks that swallow, reset, refuse, delay and half-open connections while it runs.

Kafka, MinIO and the JobManager are reached through proxies. The feed and the judge have ways of their own.
"""

import random
import re
import time
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.cluster.harness import Scene
from tests.cluster.orders import Orders, read_windows
from tests.cluster.stage import Stage, cli
from tests.support.depth import depth, first_seed
from tests.support.leases import PATIENT
from tests.support.proxy import FAULTS, Proxy
from tests.support.waiting import patience

from penstock.client.local_cluster import LocalCluster
from penstock_lab.servers.kafka_local import LocalKafka
from penstock_lab.servers.process import free_port

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(3600)]

#: Output must come again so soon after the end of a fault.
MOST_GAP_S = 30.0
#: So long a fault lasts.
LASTS_S = (0.5, 6.0)
RATE = 2_000
#: Of orders: a window closes every half second.
STEP_MS = 0.5
#: A call that takes longer is one that has no short time-out.
LONG_S = 9.0


@pytest.fixture
def proxies(minio_server):
    """Three proxies, by what is behind each."""
    ports = {"kafka": free_port(), "jobmanager": free_port()}
    targets = {
        "kafka": f"127.0.0.1:{ports['kafka']}",
        "minio": minio_server.url.partition("//")[2],
        "jobmanager": f"127.0.0.1:{ports['jobmanager']}",
    }
    with Proxy(targets["kafka"]) as kafka, Proxy(targets["minio"]) as minio, Proxy(targets["jobmanager"]) as manager:
        yield {"kafka": kafka, "minio": minio, "jobmanager": manager}


@pytest.fixture
def kafka(proxies, tmp_path):
    """A broker that is known under two addresses, the second one being the proxy's."""
    client, controller = free_port(), free_port()
    behind = int(proxies["kafka"].target.rpartition(":")[2])
    settings = {
        "listeners": f"CLIENT://127.0.0.1:{client},PROXIED://127.0.0.1:{behind},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"CLIENT://127.0.0.1:{client},PROXIED://{proxies['kafka'].address}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
    }
    broker = LocalKafka(tmp_path / "kafka", port=client, settings=settings)
    broker.start()
    yield broker
    broker.remove()


class ThroughProxies(Scene):
    """A scene whose job and cluster reach everything through the proxies."""

    def __init__(self, stage, orders, proxies, **options):
        super().__init__(stage, orders, rate=RATE, **options)
        self.proxies = proxies
        # so many faults so close together would make the pauses before restarts longer and longer
        restart = "restart=ps.RestartStrategy(max_delay_ms=500)"
        self.job = replace(self.job, bootstrap=proxies["kafka"].address, environment=restart)
        config = self._config(2, {}, watch=True, leases=options.get("leases"))
        endpoint = {"PENSTOCK_S3_ENDPOINT": f"http://{proxies['minio'].address}"}
        manager = proxies["jobmanager"]
        self.cluster = LocalCluster(
            replace(
                config,
                environment={**config.environment, **endpoint},
                rpc_port=int(manager.target.rpartition(":")[2]),
                rpc_dialled=manager.address,
            )
        )

    def rows(self, sink=None):
        return read_windows(self.stage.bootstrap, sink or self.sink)


def published(admin, topic):
    """Committed messages of a topic, by its ends."""
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(2)}
    return sum(future.result(30).offset for future in admin.list_offsets(asked).values())


def test_output_is_exact_and_comes_again_soon_after_every_fault(kafka, minio_server, bucket, proxies, tmp_path):
    rand, count = random.Random(first_seed()), 200 if depth() == "nightly" else 8
    stage = Stage(kafka, minio_server, bucket, "net", tmp_path)
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})
    plan = [(fault, name) for fault in FAULTS for name in proxies]
    rand.shuffle(plan)
    gaps = []
    with ThroughProxies(stage, Orders(rand.randrange(1000), RATE * 30 * count, step_ms=STEP_MS), proxies) as scene:
        scene.begin()
        scene.wait_checkpoints(1)
        scene.wait_rows()
        for number in range(count):
            fault, name = plan[number % len(plan)]
            proxies[name].begin(fault)
            time.sleep(rand.uniform(*LASTS_S))
            proxies[name].end()
            before, ended = published(admin, scene.sink), time.monotonic()
            scene.wait(lambda before=before: published(admin, scene.sink) > before, f"output after {fault} of {name}")
            gaps.append((time.monotonic() - ended, fault, name))
        assert max(gaps)[0] <= MOST_GAP_S * patience(), sorted(gaps)[-5:]
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()
        scene.check_whole()
    print(f"longest gaps of {count}: {sorted(gaps)[-5:]}")


def test_what_takes_long_is_told_with_what_it_waits_for(kafka, minio_server, bucket, proxies, tmp_path):
    stage = Stage(kafka, minio_server, bucket, "slow", tmp_path)
    with ThroughProxies(stage, Orders(7, 40_000), proxies) as scene:
        # orders go on coming in, so that there is output to publish
        scene.job = replace(scene.job, bootstrap=stage.bootstrap, sink_bootstrap=proxies["kafka"].address)
        scene.begin()
        scene.wait_rows()
        proxies["kafka"].begin("black-hole")
        calls = lambda: [call["what"] for call in scene.summary().get("slow-calls", [])]
        slow = scene.wait(calls, "a slow publication")
        assert re.fullmatch(r"sink 'out' \(\d\): publishing checkpoint \d+ to topic \S+ at \S+", slow[0]), slow
        proxies["kafka"].end()
        told = lambda: [e["text"] for e in scene.story() if e["kind"] == "slow"]
        scene.wait(lambda: any("slow call ended after" in text for text in told()), lambda: f"the end of {told()}")
        assert any(text.startswith("slow call, ") and text.endswith(f" so far: {slow[0]}") for text in told()), told()
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()


def test_an_open_transaction_waits_for_its_broker(kafka, minio_server, bucket, proxies, tmp_path):
    stage = Stage(kafka, minio_server, bucket, "open", tmp_path)
    with ThroughProxies(stage, Orders(9, 40_000), proxies, leases=PATIENT) as scene:
        # orders go on coming in, so that there is a transaction to flush
        scene.job = replace(
            scene.job, bootstrap=stage.bootstrap, sink_bootstrap=proxies["kafka"].address, delivery="exactly-once-2pc"
        )
        scene.begin()
        scene.wait_rows()
        proxies["kafka"].begin("freeze")
        # the writer waits in a flush, or for the producer of its next transaction
        call = re.compile(r"sink 'out' \(\d\): (flushing checkpoint \d+|writing) to topic \S+ at \S+")
        calls = lambda: [c for c in scene.summary().get("slow-calls", []) if call.fullmatch(c["what"])]
        scene.wait(lambda: any(time.time() - c["since"] / 1000 > LONG_S for c in calls()), "a call that takes long")
        proxies["kafka"].end()
        told = lambda: [e["text"] for e in scene.story() if e["kind"] == "slow"]
        ended = lambda: any("slow call ended after" in text and call.search(text) for text in told())
        scene.wait(ended, lambda: f"the end of {told()}")
        scene.feed.join()
        scene.wait_finished()
        assert scene.summary()["restarts"] == 0
        scene.check_exact()


def test_a_source_whose_brokers_do_not_answer_is_named_by_show_and_by_the_watermark(
    kafka, minio_server, bucket, proxies, tmp_path
):
    stage = Stage(kafka, minio_server, bucket, "silent", tmp_path)
    with ThroughProxies(stage, Orders(8, 40_000), proxies) as scene:
        scene.job = replace(scene.job, sink_bootstrap=stage.bootstrap)
        scene.begin()
        scene.wait_rows()
        place = f"topic {scene.source} at {proxies['kafka'].address}"
        proxies["kafka"].begin("black-hole")
        said = lambda *command: cli(*command, "--cluster", scene.cluster.rest_url, cwd=tmp_path).out
        show, explain = ("show", scene.job_id), ("explain", scene.job_id, "watermark")
        scene.wait(lambda: f"source orders: no answer from {place} since" in said(*show), "a source without an answer")
        why = said(*explain)
        silence = rf"its source has had no answer from {place} for \d+ s, since [^;]+; it resumes with the next one"
        assert re.search(silence, why), why
        assert "with_idleness" not in why
        proxies["kafka"].end()
        scene.wait(lambda: "no answer" not in said(*show), "an answer")
        scene.feed.join()
        scene.wait_finished()
        scene.check_exact()
