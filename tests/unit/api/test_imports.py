"""Imports stay lazy: what a job file needs is loaded, nothing more."""

import subprocess
import sys

JOB = """
import sys
import penstock as ps
from penstock_connectors.kafka import KafkaSink, KafkaSource

class Order(ps.Schema):
    user: int
    amount: int
    ts: int

env = ps.Environment(parallelism=2, checkpoint_interval="5s")
rows = env.from_source(
    KafkaSource("localhost:1", topic="orders", schema=Order),
    watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts"),
    uid="in",
)
totals = rows.key_by("user").window(ps.Tumbling("10s")).aggregate(n=ps.count()).uid("totals")
totals.sink_to(KafkaSink("localhost:1", topic="totals"), uid="out")
env.job_graph("orders")
print(*sys.modules)
"""


def test_building_a_job_loads_no_engine():
    done = subprocess.run([sys.executable, "-c", JOB], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"polars", "numba", "confluent_kafka", "grpc", "fastapi"}
