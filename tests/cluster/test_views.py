"""Views of text in front of Kafka: exact through a killed worker, and on from a savepoint with copies."""

import json
from collections import Counter
from dataclasses import dataclass

import pytest
from tests.cluster.harness import Scene
from tests.cluster.orders import Orders, read_messages

from penstock_lab.nexmark import NexmarkSource
from penstock_lab.nexmark.events import EventMaker

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

EVENTS, RATE, PRICE = 60_000, 5_000, 1_000
COLUMNS = ("auction", "price", "channel", "url", "dateTime")

JOB = """
import penstock as ps
import polars as pl
from penstock_connectors.kafka import KafkaSink
from penstock_lab.nexmark import NexmarkSource

env = ps.Environment(parallelism=2, checkpoint_interval="300ms", checkpoint_root={root!r})
source = NexmarkSource(events={events}, splits=2, events_per_second={rate}, columns={columns!r}, text={text!r})
bids = env.from_source(
    source, watermarks=ps.WatermarkStrategy.monotonic(timestamp="dateTime"), uid="bids"
)
(bids.filter(pl.col("price") > {price}).select("auction", "channel", "url")
     .sink_to(KafkaSink({bootstrap!r}, topic={topic!r}, delivery="exactly-once"), uid="out"))
env.execute({name!r})
"""


@dataclass(frozen=True)
class Bids:
    """A job file that `Scene.submit` takes."""

    scene: Scene
    text: str
    rate: int | None = RATE

    def write(self, folder):
        path = folder / f"{self.scene.name}-{self.text}.py"
        stage = self.scene.stage
        path.write_text(
            JOB.format(
                root=stage.root(self.scene.name), bootstrap=stage.bootstrap, topic=self.scene.sink,
                name=self.scene.name, text=self.text, rate=self.rate, events=EVENTS, columns=COLUMNS, price=PRICE,
            )
        )  # fmt: skip
        return path


def expected():
    """How often each row must come out, by the generator's copied text."""
    pattern = NexmarkSource(events=EVENTS, columns=COLUMNS, splits=1).pattern()
    rows = EventMaker(pattern).batch(0, 0, pattern.rows(EVENTS, 0)).to_pylist()
    return Counter((row["auction"], row["channel"], row["url"]) for row in rows if row["price"] > PRICE)


def published(scene):
    rows = [json.loads(message.value()) for message in read_messages(scene.stage.bootstrap, scene.sink)]
    return Counter((row["auction"], row["channel"], row["url"]) for row in rows)


def test_a_job_on_views_is_exact_through_a_kill_and_goes_on_with_copies(stage):
    with Scene(stage, Orders(61, 0)) as scene:
        scene.submit(job=Bids(scene, "views"))
        scene.wait_running()
        scene.wait_checkpoints(2)
        gone = {int(worker["pid"]) for worker in scene.look_at_workers()}
        scene.kill(min(gone))
        scene.wait_replaced(gone)
        done = scene.completed()
        scene.wait_checkpoints(done + 2)
        uri = scene.stop()
        before = published(scene)
        assert 0 < before.total() < expected().total(), "the savepoint lies in the middle"
        scene.submit(job=Bids(scene, "copied", rate=None), from_uri=uri)
        scene.wait_finished()
        assert published(scene) == expected(), scene.diagnosis()
