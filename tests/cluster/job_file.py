"""The main job as a file, with its parameters filled in: what the tests submit and what `penstock run` gets."""

from dataclasses import dataclass

from tests.cluster.orders import DISORDER_MS, WINDOW_MS

TEMPLATE = """
from datetime import datetime

import penstock as ps
from penstock_connectors.kafka import KafkaSink, KafkaSource


class Order(ps.Schema):
    user_id: int
    amount: int
    ts: datetime


env = ps.Environment(parallelism={parallelism}, checkpoint_interval={interval!r}, checkpoint_root={root!r}{environment})
orders = env.from_source(
    KafkaSource({bootstrap!r}, topic={source!r}, schema=Order, start="earliest"{source_options}),
    watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("{disorder_ms}ms", timestamp="ts"),
    uid="orders",
)
(orders.key_by("user_id")
       .window(ps.Tumbling("{window_ms}ms"))
       .aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")
       .sink_to(KafkaSink({sink_bootstrap!r}, topic={sink!r}, delivery={delivery!r}{sink_options}), uid="out"))
env.execute({name!r})
"""


@dataclass(frozen=True)
class Job:
    """Parameters of the nine lines."""

    name: str
    bootstrap: str
    source: str
    sink: str
    root: str
    interval: str = "400ms"
    parallelism: int = 2
    #: (topic, partition) -> where the source ends; None: it never does.
    stops: dict | None = None
    sink_bootstrap: str = ""
    delivery: str = "exactly-once"
    window_ms: int = WINDOW_MS
    environment: str = ""
    source_options: str = ""
    sink_options: str = ""

    def text(self):
        bounded = "" if self.stops is None else f", bounded={self.stops!r}"
        return TEMPLATE.format(
            parallelism=self.parallelism,
            interval=self.interval,
            root=self.root,
            environment=f", {self.environment}" if self.environment else "",
            bootstrap=self.bootstrap,
            source=self.source,
            source_options=bounded + (f", {self.source_options}" if self.source_options else ""),
            disorder_ms=DISORDER_MS,
            window_ms=self.window_ms,
            sink_bootstrap=self.sink_bootstrap or self.bootstrap,
            sink=self.sink,
            delivery=self.delivery,
            sink_options=f", {self.sink_options}" if self.sink_options else "",
            name=self.name,
        )

    def write(self, folder):
        path = folder / f"{self.name}.py"
        path.write_text(self.text(), encoding="utf-8")
        return path
