"""Columns of views: which calls hand them on, which get plain ones, and what is said where neither is so."""

from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from tests.unit.api.test_streams import refused

import penstock as ps
from penstock.api.building.executors import use_executor
from penstock.api.streams import unkeyed
from penstock.core.schema import schema_from_text

VIEWS = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        ("s", pa.string_view()),
        ("b", pa.binary_view()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)
PLAIN = {"s": pa.string(), "b": pa.binary()}


def length(row: Any) -> int:
    return row.n


def twice(row: Any) -> Iterator[int]:
    yield row.n


def positive(row: Any) -> bool:
    return row.n > 0


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


async def asked(row: Any) -> int:
    return row.n


class Longest(ps.ProcessFunction):
    def process(self, row: Any, ctx: Any) -> Iterator[int]:
        yield row.n


class ByKey(ps.KeyedProcessFunction):
    def process(self, row: Any, ctx: Any) -> Iterator[int]:
        yield row.n


@pytest.fixture
def rows(env, source, watermarks):
    return env.from_source(source(VIEWS, bounded=True), watermarks=watermarks, uid="in")


def types_of(schema):
    return {field.name: field.type for field in schema if field.name in PLAIN}


NUMBER = pa.schema([("n", pa.int64())])
REFUSED = {
    "map": lambda rows: rows.map(length, returns=NUMBER),
    "flat_map": lambda rows: rows.flat_map(twice, returns=NUMBER),
    "filter_rows": lambda rows: rows.filter(positive),
    "map_batches": lambda rows: rows.map_batches(same, returns=NUMBER),
    "map_async": lambda rows: rows.map_async(asked, returns=NUMBER).uid("asked"),
    "process": lambda rows: rows.process(Longest(), returns=NUMBER).uid("longest"),
    "key_by a function": lambda rows: rows.key_by(length, returns=int).aggregate(c=ps.count()).uid("counts"),
    "window_all": lambda rows: rows.window_all(ps.Tumbling("1s")).aggregate(c=ps.count()).uid("all"),
    "assign_timestamps_and_watermarks": lambda rows: rows.assign_timestamps_and_watermarks(
        ps.WatermarkStrategy.monotonic(timestamp="ts")
    ).uid("times"),
    "union": lambda rows: rows.union(rows.filter(pl.col("n") > 0)).map(length, returns=NUMBER),
    "window_all behind key_by": lambda rows: (
        rows.key_by("n").window_all(ps.Tumbling("1s")).aggregate(c=ps.count()).uid("all")
    ),
    "map behind a union of one": lambda rows: unkeyed(rows.rebalance().union().key_by("n")).map(length, returns=NUMBER),
}
CAST = (pl.col("s").cast(pl.String), pl.col("b").cast(pl.Binary))


@pytest.mark.parametrize("call", REFUSED)
def test_what_does_not_take_views_names_the_column_and_the_way_out_which_works(call, env, rows, sink):
    stream = REFUSED[call](rows)
    stream.sink_to(sink(), uid="out")
    refused(
        lambda: env.job_graph("j"),
        "column 's' is string_view, a type that this operator does not accept",
        ".with_columns(pl.col('s').cast(pl.String))",
        "test_views.py:",
    )


@pytest.mark.parametrize("call", REFUSED)
def test_behind_the_cast_it_is_taken(call, env, rows, sink):
    cast = rows.with_columns(*CAST)
    assert types_of(cast.schema) == PLAIN
    REFUSED[call](cast).sink_to(sink(), uid="out")
    assert env.job_graph("j").vertices


def test_a_binary_view_is_cast_to_binary(env, rows, sink):
    rows.select("n", "b").map(length, returns=NUMBER).sink_to(sink(), uid="out")
    refused(lambda: env.job_graph("j"), "column 'b' is binary_view", ".with_columns(pl.col('b').cast(pl.Binary))")


KEYED = {
    "key": lambda rows: rows.key_by("s").aggregate(last=ps.last("b")),
    "window": lambda rows: rows.key_by("s").window(ps.Tumbling("1s")).aggregate(most=ps.max("s"), c=ps.count()),
    "late": lambda rows: rows.key_by("n").window(ps.Tumbling("1s")).late_to("late").aggregate(c=ps.count()),
    "where": lambda rows: rows.key_by("n").aggregate(c=ps.count().where(pl.col("s") == "x")),
    "process": lambda rows: rows.key_by("n").process(ByKey(), returns=NUMBER),
    "deduplicate": lambda rows: rows.key_by("n").deduplicate(),
    "join": lambda rows: rows.join(rows).where("s").equal_to("s").window(ps.Tumbling("1s")),
    "sent": lambda rows: rows.rebalance().map_async(asked, returns=NUMBER),
}


@pytest.mark.parametrize("call", KEYED)
def test_behind_a_key_or_a_rebalance_columns_are_plain(call, env, rows, sink):
    stream = KEYED[call](rows).uid("op")
    stream.sink_to(sink(), uid="out")
    if call == "late":
        stream.side_output("late").sink_to(sink(), uid="late-out")
    graph = env.job_graph("j")
    assert not any(kind in (pa.string_view(), pa.binary_view()) for e in graph.edges for kind in texts(e))
    assert not any(kind in (pa.string_view(), pa.binary_view()) for kind in stream.schema.types)


def texts(edge):
    return schema_from_text(edge.schema).types


def test_a_stream_without_its_key_has_its_views_again(rows):
    assert types_of(rows.key_by("n").schema) == PLAIN
    assert types_of(unkeyed(rows.key_by("n").key_by("s")).schema) == types_of(VIEWS)
    assert types_of(rows.key_by("n").select(pl.col("s"), "b").schema) == PLAIN


def test_column_operations_hand_on_what_is_only_named(rows):
    taken = rows.filter(pl.col("s").is_not_null()).select("s", pl.col("b").alias("c"), u=pl.col("s").str.to_uppercase())
    assert taken.schema.field("s").type == pa.string_view()
    assert taken.schema.field("c").type == pa.binary_view()
    assert taken.schema.field("u").type == pa.string()
    assert types_of(rows.with_columns(m=pl.col("n") + 1).schema) == types_of(VIEWS)


def test_a_sink_is_given_plain_columns_unless_it_takes_views(env, rows, sink):
    plain, taking = sink(), sink("none")
    taking.takes_views = True
    rows.sink_to(plain, uid="plain")
    rows.sink_to(taking, uid="taking")
    assert types_of(plain.schema) == PLAIN
    assert types_of(taking.schema) == types_of(VIEWS)
    assert [types_of(schema_from_text(edge.schema)) for edge in env.job_graph("j").edges] == [PLAIN, PLAIN]


def test_views_inside_of_columns_are_refused(env, source, sink):
    schema = pa.schema([("parts", pa.list_(pa.string_view()))])
    env.from_source(source(schema), uid="in").sink_to(sink(), uid="out")
    refused(lambda: env.job_graph("j"), "column 'parts' is list<item: string_view>, which contains views")


def test_collected_rows_are_plain(rows, executor):
    mine = executor()
    with use_executor(mine):
        found = rows.execute_and_collect()
    assert found.schema["s"] == pl.String
    (collect,) = (o for v in mine.graphs[0].vertices for o in v.operators if o.kind == "collect")
    assert types_of(schema_from_text(collect.config["schema"])) == PLAIN
