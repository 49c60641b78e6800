"""Imports stay small; each test imports in a new process."""

import subprocess
import sys

import pytest

from penstock_connectors import kafka

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


def test_importing_penstock_loads_nothing_heavy():
    code = (
        "import sys, penstock; "
        "print([m for m in ('polars', 'pyarrow', 'msgspec', 'pydantic', 'numba', 'penstock.api', 'penstock.client') "
        "if m in sys.modules]); print(penstock.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[0] == "[]"


def test_control_plane_loads_no_arrow():
    code = (
        "import sys; import penstock_connectors.kafka; import penstock_connectors.kafka.read.kafka_enumerator; "
        "print([m for m in ('pyarrow', 'polars', 'numba', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    assert kafka.__all__ == ["KafkaSink", "KafkaSource"]


def test_no_compiler_is_loaded():
    code = "import sys, penstock.operators.aggregates.aggregate_schema; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_a_jobmanager_starts_without_fastapi():
    script = "import penstock.rest.server.http_server, sys; print({'fastapi', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    "modules", ["penstock.cli.start.processes, penstock.taskmanager.main", "penstock.rest.server.http_server"]
)
def test_control_processes_load_nothing_of_the_data_path(modules):
    script = f"import penstock.cli.main, {modules}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"pyarrow", "polars", "numba", "numpy", "confluent_kafka", "httpx"}
