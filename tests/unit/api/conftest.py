"""A source and a sink that are values only, as connectors offer them, and an executor that remembers its graphs."""

from datetime import datetime

import pyarrow as pa
import pytest

import penstock as ps
from penstock.connector.sink import SinkSpec
from penstock.connector.source import SourceSpec
from penstock.core.schema import schema_to_text


class Order(ps.Schema):
    user_id: int
    amount: int
    product: str | None
    ts: datetime


class FakeSource:
    def __init__(self, row_schema=Order, *, bounded=False, **config):
        self.row_schema = row_schema
        self.bounded = bounded
        self.config = config

    def spec(self):
        schema = self.row_schema if isinstance(self.row_schema, pa.Schema) else self.row_schema.arrow_schema()
        return SourceSpec(
            factory="fake:Source", config=self.config, schema=schema_to_text(schema), bounded=self.bounded
        )


class FakeSink:
    def __init__(self, delivery="exactly-once"):
        self.delivery = delivery
        self.schema = None

    def spec(self, input_schema):
        self.schema = input_schema
        return SinkSpec(factory="fake:Sink", config={}, delivery=self.delivery, schema=schema_to_text(input_schema))


class FakeExecutor:
    def __init__(self, on_execute=None):
        self.graphs = []
        self.on_execute = on_execute

    def execute(self, graph, **limits):
        self.graphs.append(graph)
        if self.on_execute is not None:
            self.on_execute(graph)
        return ps.JobResult(job_id="j", name=graph.name, state="FINISHED", duration_ms=1.0)

    def submit(self, graph):
        self.graphs.append(graph)
        return "handle"


@pytest.fixture
def order():
    return Order


@pytest.fixture
def source():
    return FakeSource


@pytest.fixture
def sink():
    return FakeSink


@pytest.fixture
def executor():
    return FakeExecutor


@pytest.fixture
def env(tmp_path):
    return ps.Environment(parallelism=2, checkpoint_interval="5s", checkpoint_root=tmp_path)


@pytest.fixture
def watermarks():
    return ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts").with_idleness("30s")


@pytest.fixture
def orders(env, watermarks):
    """Bounded, so that a job without a checkpoint interval may end in an exactly-once sink too."""
    return env.from_source(FakeSource(bounded=True), watermarks=watermarks, uid="orders")
