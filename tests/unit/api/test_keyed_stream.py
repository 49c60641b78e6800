"""Running aggregates, deduplication and conditional aggregates: what they tell the operator, and what is refused."""

import polars as pl
import pytest

import penstock as ps
from penstock.graph.job_graph import KeyGroup


def refused(call, *words):
    with pytest.raises(ps.GraphError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint


def operator_of(env, stream):
    return env.builder.node(stream.flow.upstreams[0].node).operator


def test_a_running_aggregate_gives_keys_aggregates_and_event_time(env, orders):
    stream = orders.key_by("user_id").aggregate(ps.sum("amount").alias("total"), n=ps.count(), most=ps.max("ts"))
    assert stream.columns == ["user_id", "total", "n", "most"]
    assert stream.flow.has_event_time
    operator = operator_of(env, stream)
    assert (operator.kind, operator.stateful, operator.config["key"]) == ("running_aggregate", True, ["user_id"])


def test_a_running_aggregate_needs_no_event_time(env, source):
    stream = env.from_source(source(), uid="in").key_by("user_id").aggregate(n=ps.count(), newest=ps.last("amount"))
    assert stream.columns == ["user_id", "n", "newest"]
    assert not stream.flow.has_event_time


def test_what_cannot_be_aggregated_is_refused(orders):
    keyed = orders.key_by("user_id")
    refused(keyed.aggregate, "no aggregate is given")
    refused(lambda: keyed.aggregate(n=ps.sum("amuont")), "did you mean 'amount'?")
    refused(lambda: keyed.aggregate(n="amount"), "'amount' is not an aggregate")
    refused(lambda: keyed.aggregate(ps.count(), ps.count()), "'count' occurs twice")
    refused(lambda: keyed.aggregate(user_id=ps.count()), "'user_id' occurs twice")
    refused(lambda: keyed.aggregate(n=ps.sum("product")), "type string is not supported")


def test_a_condition_becomes_a_hidden_column_before_the_shuffle(env, orders):
    cheap = pl.col("amount") < 10
    stream = orders.key_by("user_id").aggregate(
        n=ps.count(), cheap=ps.count().where(cheap), total=ps.sum("amount").where(cheap)
    )
    assert stream.columns == ["user_id", "n", "cheap", "total"]
    config = operator_of(env, stream).config
    assert [(a["fn"], a["column"]) for a in config["aggregates"]] == [
        ("count", None),
        ("count", "__where_cheap"),
        ("sum", "__where_total"),
    ]
    graph = env.builder.build("job", env.settings, require_uids=False)
    project = next(n for n in graph.nodes if n.operator.kind == "project")
    (into,), (out,) = graph.in_edges(project.id), graph.out_edges(project.id)
    assert (into.partitioner, out.partitioner) == (None, KeyGroup(("user_id",)))


def test_windows_take_conditions_too(env, orders):
    stream = orders.key_by("user_id").window(ps.Tumbling("1s")).aggregate(n=ps.count().where(pl.col("amount") > 1))
    assert stream.columns == ["user_id", "window_start", "window_end", "n"]
    assert operator_of(env, stream).config["aggregates"] == [{"fn": "count", "column": "__where_n", "alias": "n"}]


def test_what_is_no_condition_is_refused(orders):
    keyed = orders.key_by("user_id")
    refused(lambda: keyed.aggregate(n=ps.count().where(7)), "where(7) is not a condition")
    refused(lambda: keyed.aggregate(n=ps.count().where("nothing")), "unknown column 'nothing'")
    refused(lambda: keyed.aggregate(n=ps.count().where(pl.col("amount"))), "with_columns")
    refused(
        lambda: keyed.aggregate(n=ps.count().where(pl.col("amount") > pl.col("amount").mean())),
        "depends on the rows around it",
    )


def test_deduplication_keeps_the_rows_as_they_are(env, orders):
    stream = orders.key_by("user_id", "product").deduplicate(keep="last", by="ts")
    assert stream.flow.schema == orders.flow.schema
    operator = operator_of(env, stream)
    assert operator.kind == "deduplicate"
    assert operator.config == {"key": ["user_id", "product"], "keep": "last", "by": "ts"}


def test_what_cannot_order_rows_is_refused(env, source, orders):
    keyed = orders.key_by("user_id")
    refused(lambda: keyed.deduplicate(keep="newest"), "keep='newest'")
    refused(lambda: keyed.deduplicate(by="product"), "type string is not supported")
    refused(lambda: keyed.deduplicate(by="when"), "unknown column 'when'")
    timeless = env.from_source(source(), uid="timeless").key_by("user_id")
    refused(lambda: timeless.deduplicate(keep="last"), "no event time", "every row is the last")
    assert timeless.deduplicate().columns == timeless.columns
