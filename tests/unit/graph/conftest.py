"""Stream graphs made by hand: operators as one-letter names, so that a test shows the shape it is about."""

import msgspec
import pytest

from penstock.config.settings import JobSettings
from penstock.graph.job_graph import KeyGroup, OperatorSpec
from penstock.graph.stream_graph import StreamGraphBuilder, StreamNode, Upstream


class Graphs:
    """A builder with shorthands; ids are what `add` returned."""

    def __init__(self):
        self.builder = StreamGraphBuilder()
        self.settings = JobSettings(parallelism=2, checkpoint_interval_ms=1000)

    def operator(self, name, kind="map", *inputs, stateful=False, config=None, **node):
        spec = OperatorSpec(uid=name if stateful else "", name=name, kind=kind, stateful=stateful, config=config or {})
        edges = [(i if isinstance(i, Upstream) else Upstream(node=i), "") for i in inputs]
        return self.builder.add(StreamNode(id=0, operator=spec, **node), edges)

    def source(self, name="in", **node):
        config = {"source": {"factory": "f:S", "bounded": True}}
        return self.operator(name, "source", stateful=True, config=config, **node)

    def sink(self, *inputs, name="out", delivery="none", **node):
        config = {"sink": {"factory": "f:S", "delivery": delivery}}
        return self.operator(name, "sink", *inputs, stateful=True, config=config, **node)

    def window(self, source, name="window", columns=("user",), **node):
        keyed = Upstream(node=source, partitioner=KeyGroup(columns))
        config = {"key": list(columns), "window": {"size_us": 1}, "aggregates": []}
        return self.operator(name, "window_aggregate", keyed, stateful=True, config=config, **node)

    def set(self, **changes):
        self.settings = msgspec.structs.replace(self.settings, **changes)

    def stream_graph(self, name="job", **options):
        return self.builder.build(name, self.settings, **options)

    def job_graph(self, name="job", **options):
        from penstock.graph.chaining import build_job_graph

        return build_job_graph(self.stream_graph(name, **options))


@pytest.fixture
def graphs():
    return Graphs()
