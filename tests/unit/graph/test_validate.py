"""What is refused before anything runs, and that every refusal says what to write instead."""

import pyarrow as pa
import pytest

from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import KeyGroup, OperatorSpec
from penstock.graph.stream_graph import StreamNode, Upstream
from penstock.graph.validation import (
    is_key_type,
    require_columns,
    require_key_types,
    require_name,
    require_no_window_columns,
    require_unique,
)


def refused(call, *words):
    with pytest.raises(GraphError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_an_unknown_column_is_named_with_the_nearest():
    refused(
        lambda: require_columns(["user_id", "amuont"], ["user_id", "amount", "ts"], "sum"),
        "sum: unknown column 'amuont'",
        "did you mean 'amount'?",
        "user_id, amount, ts",
    )


def test_a_column_twice_is_refused():
    refused(lambda: require_unique(["a", "b", "a"], "select"), "'a' occurs twice")


@pytest.mark.parametrize("data_type", [pa.list_(pa.int64()), pa.float16(), pa.uint64(), pa.struct([]), pa.time64("us")])
def test_key_types_are_a_closed_list(data_type):
    schema = pa.schema([("k", data_type)])
    refused(lambda: require_key_types(["k"], schema, "key_by"), "cannot be a key", "int8-int64", "decimal128")


KEY_TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.bool_()),
    *(
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.decimal128(38, 9),
    ),
]


@pytest.mark.parametrize("data_type", KEY_TYPES, ids=str)
def test_what_may_be_a_key_can_be_hashed(data_type):
    from penstock.kernels.keys.key_columns import is_key_type as can_be_hashed

    assert is_key_type(data_type)
    assert can_be_hashed(data_type)


def test_event_time_itself_cannot_be_a_key():
    refused(lambda: require_key_types(["__ts"], pa.schema([("__ts", pa.int64())]), "key_by"), "unknown column '__ts'")


def test_window_columns_must_be_free():
    refused(lambda: require_no_window_columns(["a", "window_end"], "window"), "'window_end'", "alias")


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a b", "ä", "x" * 101])
def test_names_must_fit_paths(name):
    refused(lambda: require_name(name, "uid"), "uid")


def test_a_stateful_operator_needs_a_uid(graphs):
    w = graphs.window(graphs.source("a"), "", where="job.py:14")
    graphs.sink(w)
    refused(graphs.job_graph, "job.py:14", "has no uid", ".uid('...')")


@pytest.mark.parametrize("kind", ["source", "sink"])
def test_sources_and_sinks_need_a_uid(graphs, kind):
    graphs.sink(graphs.source("" if kind == "source" else "a"), name="" if kind == "sink" else "s")
    refused(graphs.job_graph, f"the {kind}", "uid='...'")


def test_uids_may_be_left_out_on_purpose(graphs):
    graphs.sink(graphs.window(graphs.source(""), ""), name="")
    uids = [o.uid for v in graphs.job_graph(require_uids=False).vertices for o in v.operators]
    assert uids == ["source-1", "window_aggregate-2", "sink-3"]


def test_a_uid_twice_names_both_places(graphs):
    graphs.sink(graphs.source("x", where="job.py:1"), name="x", where="job.py:2")
    refused(graphs.job_graph, "'x' is given twice", "job.py:1", "job.py:2")


def test_output_that_goes_nowhere_is_refused(graphs):
    a = graphs.source("a")
    graphs.sink(a, name="s")
    graphs.operator("lost", "map", a)
    refused(graphs.job_graph, "lost", "has no reader", ".sink_to(...)")


def test_rows_put_aside_must_be_read(graphs):
    graphs.sink(graphs.window(graphs.source("a"), "w", side_outputs={"late": ""}), name="s")
    refused(graphs.job_graph, "'late'", ".side_output('late')")


def test_an_empty_job_is_refused(graphs):
    refused(graphs.job_graph, "no operator", "from_source")


def test_more_subtasks_than_key_groups_are_refused(graphs):
    graphs.set(key_groups=4)
    graphs.sink(graphs.window(graphs.source("a"), "w", parallelism=5), name="s", parallelism=5)
    refused(graphs.job_graph, "parallelism 5", "4 key groups")


def test_parallelism_must_be_positive(graphs):
    graphs.set(parallelism=-1)
    graphs.sink(graphs.source("a"))
    refused(graphs.job_graph, "parallelism -1")


def endless(graphs, delivery):
    source = graphs.operator("a", "source", stateful=True, config={"source": {"bounded": False}})
    graphs.sink(source, delivery=delivery)
    graphs.set(checkpoint_interval_ms=None)
    return graphs.job_graph


def test_exactly_once_without_checkpoints_would_never_publish(graphs):
    refused(endless(graphs, "exactly-once"), "'out'", "checkpoint_interval")


def test_at_least_once_needs_no_checkpoints(graphs):
    assert endless(graphs, "at-least-once")().vertices


def test_a_job_name_must_fit_paths(graphs):
    graphs.sink(graphs.source("a"))
    refused(lambda: graphs.job_graph("a/b"), "job name 'a/b'")


VALUES = pa.schema([("user", pa.int64()), ("name", pa.string()), ("cents", pa.decimal128(38, 2)), ("n", pa.float64())])


def aggregated(graphs, **config):
    """A running aggregate over columns of fixed and of any width."""
    source = Upstream(node=graphs.source("a"), partitioner=KeyGroup(("user",)))
    spec = OperatorSpec(uid="mine", name="mine", kind="running_aggregate", stateful=True, config=config)
    graphs.set(state_backend="remote")
    node = StreamNode(id=0, operator=spec, where="job.py:3")
    graphs.sink(graphs.builder.add(node, [(source, schema_to_text(VALUES))]))
    return graphs


def test_values_of_any_type_can_be_remote(graphs):
    functions = [("max", "name"), ("first", "cents"), ("approx_count_distinct", "name"), ("min", "n"), ("last", "user")]
    assert aggregated(graphs, aggregates=[{"fn": fn, "column": c} for fn, c in functions]).job_graph().vertices


def test_state_with_a_time_to_live_can_be_remote(graphs):
    mine = aggregated(graphs, aggregates=[{"fn": "count", "column": None}], ttl={"duration_us": 1000})
    assert mine.job_graph().vertices
