"""Streams: what each method adds to the graph, what it refuses, and that the refusal says what to write instead."""

import polars as pl
import pyarrow as pa
import pytest

import penstock as ps
from penstock.connector.staging import DEAD_LETTER_SCHEMA
from penstock.core.schema import schema_from_text
from penstock.graph.job_graph import Broadcast, KeyGroup, Rebalance


def refused(call, *words):
    with pytest.raises(ps.GraphError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint


def only_edge(env):
    (edge,) = env.job_graph("j").edges
    return edge


# --- columns --------------------------------------------------------------------------------------------------------


def test_select_gives_the_columns_asked_for(orders):
    stream = orders.select("user_id", pl.col("amount") * 2, cents=pl.col("amount") * 100, kind=pl.lit("order"))
    assert stream.columns == ["user_id", "amount", "cents", "kind"]
    assert stream.schema.field("cents").type == pa.int64()
    assert stream.schema.field("kind").type == pa.string()
    assert not stream.schema.field("user_id").nullable


def test_with_columns_adds_and_replaces(orders):
    stream = orders.with_columns(amount=pl.col("amount") / 2, big=pl.col("amount") > 10)
    assert stream.columns == ["user_id", "amount", "product", "ts", "big"]
    assert stream.schema.field("amount").type == pa.float64()


def test_filter_keeps_the_schema(orders):
    assert orders.filter(pl.col("amount") > 10).schema == orders.schema


def test_event_time_survives_column_operations_unseen(env, orders, sink):
    stream = orders.select("user_id").with_columns(x=pl.lit(1)).filter(pl.col("x") > 0)
    assert stream.columns == ["user_id", "x"]
    stream.sink_to(sink(), uid="out")
    chain = env.job_graph("j").vertices[0].operators
    assert [schema_from_text(o.output_schema).names[-1] for o in chain[:-1]] == ["__ts"] * 4


def test_wildcards_and_selectors_work(orders):
    assert orders.select(pl.all().exclude("ts")).columns == ["user_id", "amount", "product"]


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.select("amuont"),
        lambda s: s.filter(pl.col("amuont") > 1),
        lambda s: s.with_columns(x=pl.col("amuont")),
        lambda s: s.key_by("amuont"),
    ],
)
def test_an_unknown_column_is_named_with_the_nearest(orders, call):
    refused(lambda: call(orders), "'amuont'", "did you mean 'amount'?")


@pytest.mark.parametrize(
    "expression",
    [
        pl.col("amount").sum(),
        pl.col("amount").cum_sum(),
        pl.col("amount").shift(1),
        pl.col("amount") - pl.col("amount").mean(),
        pl.col("amount").rank().over("user_id"),
    ],
    ids=str,
)
def test_an_expression_beyond_its_own_row_is_refused(orders, expression):
    refused(lambda: orders.with_columns(x=expression), "key_by(...).window(...)")


def test_expressions_that_look_odd_but_see_their_own_row_only_pass(orders):
    stream = orders.with_columns(
        a=pl.col("product").str.to_uppercase().fill_null("?"),
        b=pl.when(pl.col("amount") > 5).then(pl.lit("big")).otherwise(pl.lit("small")),
        c=pl.col("ts").dt.truncate("1h"),
        d=pl.col("amount").is_in([1, 2]),
        e=pl.lit(None, dtype=pl.Int64),
    )
    assert stream.columns[-5:] == ["a", "b", "c", "d", "e"]


def test_a_condition_must_be_boolean(orders):
    refused(lambda: orders.filter(pl.col("amount") + 1), "Boolean")


def test_selecting_nothing_is_refused(orders):
    refused(orders.select, "no column is given")


def test_what_is_not_a_column_is_refused(orders):
    refused(lambda: orders.select(1), "1 is not a column")


# --- how rows travel ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "partitioner"),
    [
        (lambda s: s.rebalance(), Rebalance()),
        (lambda s: s.broadcast(), Broadcast()),
        (lambda s: s.key_by("user_id", "product"), KeyGroup(("user_id", "product"))),
    ],
)
def test_the_partitioning_is_that_of_the_next_edge(env, orders, sink, call, partitioner):
    call(orders).sink_to(sink(), uid="out")
    assert only_edge(env).partitioner == partitioner


def test_the_last_partitioning_counts(env, orders, sink):
    orders.key_by("user_id").rebalance().sink_to(sink(), uid="out")
    assert only_edge(env).partitioner == Rebalance()


def test_union_merges_streams_of_one_schema(env, source, orders, watermarks, sink):
    others = env.from_source(source(bounded=True), watermarks=watermarks, uid="others")
    orders.union(others).sink_to(sink(), uid="out")
    graph = env.job_graph("j")
    assert [(e.input_index, graph.vertex(e.source).name) for e in graph.edges] == [
        (0, "Source: orders"),
        (1, "Source: others"),
    ]


def test_union_of_different_streams_is_refused(env, source, orders):
    refused(lambda: orders.union(orders.select("user_id")), "the other one lacks amount, product, ts")
    text = orders.with_columns(amount=pl.col("amount").cast(pl.String))
    refused(lambda: orders.union(text), "amount is int64 not null and string")
    timeless = env.from_source(source(), uid="timeless")
    refused(lambda: orders.union(timeless), "watermarks")


def test_union_across_environments_is_refused(orders, source, watermarks):
    other = ps.Environment().from_source(source(), watermarks=watermarks, uid="other")
    refused(lambda: orders.union(other), "different environments")


@pytest.mark.parametrize("bad", [(), ("user_id", "user_id"), (pl.col("user_id"),)])
def test_keys_are_column_names(orders, bad):
    refused(lambda: orders.key_by(*bad), "key_by")


# --- names and places -----------------------------------------------------------------------------------------------


def test_what_is_said_of_an_operator(env, orders, sink):
    filtered = orders.filter(pl.col("amount") > 1)
    filtered.uid("big").name("big ones").set_parallelism(5).slot_sharing_group("heavy").disable_chaining()
    filtered.sink_to(sink(), uid="out").name("the end")
    graph = env.job_graph("j")
    assert [(v.name, v.parallelism, v.slot_sharing_group) for v in graph.vertices] == [
        ("Source: orders", 2, "default"),
        ("big ones", 5, "heavy"),
        ("the end", 2, "heavy"),
    ]
    assert graph.vertices[1].operators[0].uid == "big"


@pytest.mark.parametrize("stream", ["key_by", "union", "rebalance"])
def test_what_is_no_operator_has_no_uid(orders, stream):
    made = {"key_by": lambda: orders.key_by("user_id"), "union": orders.union, "rebalance": orders.rebalance}[stream]()
    refused(lambda: made.uid("x"), ".uid(...) must directly follow the operator")


def test_parallelism_must_be_positive(orders):
    refused(lambda: orders.set_parallelism(0), "parallelism 0")


def test_a_missing_uid_names_the_line(env, source, sink):
    env.from_source(source()).sink_to(sink(), uid="out")
    refused(lambda: env.job_graph("j"), "the source", "test_streams.py:", "uid='...'")


def test_uids_are_checked_where_they_are_written(env, orders, source, sink):
    refused(lambda: orders.uid("a/b"), "uid 'a/b'")
    refused(lambda: orders.sink_to(sink(), uid="a b"), "uid 'a b'")
    refused(lambda: env.from_source(source(), uid="/"), "uid '/'")


# --- ends and side outputs ------------------------------------------------------------------------------------------


def test_what_is_no_connector_is_refused(env, orders):
    refused(lambda: env.from_source("topic"), "'topic' is not a source")
    refused(lambda: orders.sink_to("topic"), "'topic' is not a sink")


def test_dead_letters_are_a_side_output_of_the_source(env, source, sink):
    orders = env.from_source(source(bounded=True, on_bad_record="dead-letter"), uid="orders")
    letters = orders.side_output("dead-letter")
    assert letters.columns == DEAD_LETTER_SCHEMA.names
    orders.sink_to(sink(), uid="out")
    letters.sink_to(sink(), uid="letters")
    assert [e.side_output for e in env.job_graph("j").edges] == [None, "dead-letter"]


def test_dead_letters_must_be_read_unless_they_have_a_topic(env, source, sink):
    env.from_source(source(bounded=True, on_bad_record="dead-letter"), uid="in").sink_to(sink(), uid="out")
    refused(lambda: env.job_graph("j"), "'dead-letter'", "has no reader")
    other = ps.Environment()
    kept = source(bounded=True, on_bad_record="dead-letter", dead_letter_topic="letters")
    other.from_source(kept, uid="in").sink_to(sink(), uid="out")
    assert len(other.job_graph("j").vertices) == 1


def test_an_unknown_side_output_is_refused(orders):
    refused(lambda: orders.side_output("late"), "no side output 'late'", "on_bad_record='dead-letter'")
