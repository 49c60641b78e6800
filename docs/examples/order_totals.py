"""Orders from Kafka, totals per user and ten seconds back to Kafka, exactly once.

    penstock run docs/examples/order_totals.py

Change what you like. The settings below can also come from the environment: KAFKA, ORDERS, TOTALS, CHECKPOINTS. A
second run resumes from the first one's newest checkpoint; `--fresh` starts over. Orders are JSON: {"user_id": 7,
"amount": 12, "ts": 1700000000000}.
"""

import os
from datetime import datetime

import penstock as ps
from penstock_connectors.kafka import KafkaSink, KafkaSource

KAFKA = os.environ.get("KAFKA", "localhost:9092")


class Order(ps.Schema):
    user_id: int
    amount: int
    ts: datetime


env = ps.Environment.from_args(
    parallelism=2,
    checkpoint_interval="5s",
    checkpoint_root=os.environ.get("CHECKPOINTS"),  # a folder, or s3://bucket/prefix; default .penstock/checkpoints
)
orders = env.from_source(
    KafkaSource(KAFKA, topic=os.environ.get("ORDERS", "orders"), schema=Order, start="earliest"),
    watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts").with_idleness("30s"),
    uid="orders",
)
(
    orders.key_by("user_id")
    .window(ps.Tumbling("10s"))
    .aggregate(n=ps.count(), total=ps.sum("amount"))
    .uid("totals")
    .sink_to(KafkaSink(KAFKA, topic=os.environ.get("TOTALS", "totals"), delivery="exactly-once"), uid="out")
)
env.execute("order-totals")
