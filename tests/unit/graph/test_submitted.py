"""Graphs from outside: what the API makes passes, everything else is one error that says what is wrong."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.api.building.executors import use_executor
from penstock.core.errors import UsageError
from penstock.graph.executor import JobResult
from penstock.graph.job_graph import encode_graph, read_submitted
from penstock_connectors.datagen import DatagenSource
from penstock_connectors.files import FileSink


class Capture:
    """Keeps the graph instead of running it."""

    def execute(self, graph):
        self.graph = graph
        return JobResult(job_id="", name=graph.name, state="", duration_ms=0.0)

    submit = execute


@pytest.fixture(scope="module")
def graph():
    """What an ordinary job is submitted as."""
    capture = Capture()
    with use_executor(capture, {}):
        env = ps.Environment(parallelism=2)
        orders = env.from_source(
            DatagenSource(rows=10), watermarks=ps.WatermarkStrategy.monotonic(timestamp="ts"), uid="orders"
        )
        counted = orders.key_by("user_id").window(ps.Tumbling("5s")).aggregate(n=ps.count()).uid("counts")
        counted.sink_to(FileSink("out"), uid="out")
        env.execute("job")
    return encode_graph(capture.graph)


def test_what_the_api_makes_passes(graph):
    assert encode_graph(read_submitted(graph)) == graph


def change(graph, path, value):
    document = json.loads(graph)
    *parents, leaf = path
    target = document
    for step in parents:
        target = target[step]
    target[leaf] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("name",), "../../etc", "cannot be the name of a folder"),
        (("name",), "", "cannot be the name of a folder"),
        (("name",), "..", "cannot be the name of a folder"),
        (("name",), "a\\..\\b", "cannot be the name of a folder"),
        (("name",), "a\x00b", "cannot be the name of a folder"),
        (("vertices",), [], "no vertices"),
        (("vertices", 0, "id"), "../x", "is not a vertex id"),
        (("vertices", 0, "operators"), [], "no operators"),
        (("vertices", 0, "operators", 0, "uid"), "a/../../b", "cannot be the name of an operator"),
        (("vertices", 1, "operators", 0, "states"), {"../s": "n: int64"}, "cannot be the name of an operator or state"),
        (("vertices", 0, "operators", 0, "config"), {}, "does not name its connector"),
        (("vertices", 0, "operators", 0, "config", "source"), 5, "does not name its connector"),
        (("vertices", 0, "parallelism"), 0, "parallelism 0"),
        (("vertices", 0, "parallelism"), 10**9, "parallelism 1000000000"),
        (("vertices", 1, "parallelism"), 2000, "more subtasks than there are key groups"),
        (("settings", "key_groups"), 0, "key_groups is 0, but has to be from 1 to 32768"),
        (
            ("settings", "autoscaler", "target_utilization"),
            0,
            "target_utilization is 0.0, but has to be from 0.01 to 1",
        ),
        (("edges", 0, "target"), "f" * 32, "not both vertices"),
        (("vertices", 0, "parallelism"), "2", "cannot be read"),
        (("settings",), None, "cannot be read"),
    ],
)
def test_what_is_malformed_is_named(graph, path, value, named):
    with pytest.raises(UsageError, match=named):
        read_submitted(change(graph, path, value))


def test_a_circle_is_named(graph):
    edges = json.loads(graph)["edges"]
    turned = [{**edge, "source": edge["target"], "target": edge["source"]} for edge in edges]
    with pytest.raises(UsageError, match="does not lead to a later vertex"):
        read_submitted(change(graph, ("edges",), turned))


def test_nothing_is_unpickled(graph):
    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('unpickled')",))

    import base64

    bomb = pickle.dumps(Bomb())
    with pytest.raises(UsageError):
        read_submitted(bomb)
    carried = change(graph, ("vertices", 0, "operators", 0, "payload"), base64.b64encode(bomb).decode())
    assert read_submitted(carried).vertices[0].operators[0].payload == bomb


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | st.just(b"[" * 100_000))
def test_noise_is_refused(data):
    with pytest.raises(UsageError):
        read_submitted(data)
