"""Windows and aggregates: what they tell the operator, and what is refused."""

from collections.abc import Iterator
from datetime import datetime

import polars as pl
import pytest

import penstock as ps
from penstock.core.schema import schema_from_text


def refused(call, *words):
    with pytest.raises(ps.GraphError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint


def test_windows_are_microseconds_inside():
    assert ps.Tumbling("10s", offset="2s").to_config() == {
        "kind": "tumbling",
        "size_us": 10_000_000,
        "slide_us": 10_000_000,
        "offset_us": 2_000_000,
    }
    assert ps.Sliding("1m", "10s").to_config() == {
        "kind": "sliding",
        "size_us": 60_000_000,
        "slide_us": 10_000_000,
        "offset_us": 0,
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.Tumbling("0s"),
        lambda: ps.Sliding("10s", "0s"),
        lambda: ps.Tumbling("10s", offset="10s"),
        lambda: ps.Tumbling("10s", time="arrival"),
        lambda: ps.Tumbling("1d", time_zone="Europe/Bonn"),
        lambda: ps.Tumbling("1d", time_zone="Europe/Berlin", time="processing"),
        lambda: ps.Cumulative("7h", "1d"),
        lambda: ps.Cumulative("0s", "1d"),
        lambda: ps.Session("0s"),
        lambda: ps.Session("10s", time="arrival"),
    ],
)
def test_windows_that_cannot_be_are_refused(make):
    refused(make)


def test_a_duration_is_a_text_with_a_unit():
    with pytest.raises(ps.UsageError, match="'ten' is not a duration"):
        ps.Tumbling("ten")


def test_only_the_windows_there_are_can_be_used(orders):
    refused(lambda: orders.key_by("user_id").window("10s"), "'10s' is not a window", "ps.Tumbling", "ps.Sliding")
    with pytest.raises(AttributeError, match=r"no 'Cumulate'.*use ps.Cumulative\("):
        ps.Cumulate  # noqa: B018


def test_a_window_needs_event_time(env, source):
    stream = env.from_source(source(), uid="in").key_by("user_id")
    refused(lambda: stream.window(ps.Tumbling("10s")), "no event time", "watermarks=")


def test_windows_of_processing_time_need_no_event_time(env, source):
    stream = env.from_source(source(), uid="in").key_by("user_id").window(ps.Tumbling("10s", time="processing"))
    node = env.builder.node(stream.aggregate(ps.count()).flow.upstreams[0].node)
    assert node.operator.kind == "processing_window"
    assert node.operator.config["window"]["time"] == "processing"
    (edge,) = [e for e in env.builder._edges if e.target == node.id]
    assert schema_from_text(edge.schema).names == ["user_id"], "only what the window looks at travels to it"
    assert edge.combine, "rows of one key may become one on their way"
    refused(lambda: stream.allowed_lateness("1s"), "no row is late")


def test_windows_of_a_time_zone_have_an_operator_of_their_own(env, orders):
    stream = orders.key_by("user_id").window(ps.Cumulative("1h", "1d", time_zone="Europe/Berlin"))
    node = env.builder.node(stream.aggregate(ps.count()).flow.upstreams[0].node)
    assert (node.operator.kind, node.operator.name) == (
        "zoned_window",
        "Window(cumulative 1d every 1h, Europe/Berlin)",
    )
    assert node.operator.config["window"]["time_zone"] == "Europe/Berlin"
    (edge,) = [e for e in env.builder._edges if e.target == node.id]
    assert not edge.combine, "panes before the shuffle would be those of UTC"


def test_the_best_rows_of_a_window_are_chosen_in_one_subtask_behind_many(env, orders):
    best = orders.window_all(ps.Tumbling("10s")).max_by("amount")
    assert best.columns == orders.columns
    node = env.builder.node(best.flow.upstreams[0].node)
    assert (node.operator.kind, node.parallelism, node.operator.config["local"]) == ("window_top", 1, False)
    (edge,) = [e for e in env.builder._edges if e.target == node.id]
    first = env.builder.node(edge.source)
    assert (first.operator.kind, first.parallelism, first.operator.config["local"]) == ("window_top", None, True)


def test_windows_over_all_keys_that_cannot_be_are_refused(env, orders, source):
    for window in (
        ps.Session("10s"),
        ps.Tumbling("10s", time="processing"),
        ps.Cumulative("1s", "10s"),
        ps.Tumbling("1d", time_zone="Asia/Tokyo"),
    ):
        refused(lambda window=window: orders.window_all(window).max_by("amount"), "not supported here")
    refused(lambda: orders.window_all("10s"), "'10s' is not a window")
    refused(lambda: env.from_source(source(), uid="in").window_all(ps.Tumbling("1s")), "no event time")
    windowed = orders.window_all(ps.Sliding("10s", "2s"))
    refused(lambda: windowed.top(3, by="amont"), "unknown column 'amont'")
    refused(lambda: windowed.top(3, by="product"), "type string is not supported")
    refused(lambda: windowed.top(0, by="amount"), "keeps no row")
    refused(lambda: windowed.allowed_lateness("1s").max_by("amount"), "no triggers", ".apply(f)")
    refused(lambda: windowed.aggregate(n=ps.sum("amont")), "did you mean 'amount'?")
    refused(lambda: windowed.aggregate(), "no aggregate is given")
    refused(lambda: windowed.process(Whole), "no window function", "ps.ProcessAllWindowFunction")
    refused(lambda: windowed.apply(3), "pass a function of (window, rows)")
    refused(lambda: windowed.aggregate(n=ps.count()).set_parallelism(2), "one subtask", "remove .set_parallelism")
    refused(lambda: windowed.max_by("amount").set_parallelism(2), "one subtask")
    refused(lambda: orders.count_window_all(0), "count_window_all(0) is not a number of rows")
    columns = orders.with_columns(window_end=1)
    refused(lambda: columns.window_all(ps.Tumbling("1s")).aggregate(n=ps.count()), "already has a column 'window_end'")


class Order(ps.Schema):
    user_id: int
    amount: int
    product: str | None
    ts: datetime


class Whole(ps.ProcessAllWindowFunction):
    def process(self, ctx, rows) -> Iterator[Order]:
        yield from rows


def test_windows_over_all_keys_have_one_subtask_and_no_key(env, orders, sink):
    windowed = orders.window_all(ps.Tumbling("10s"))
    totals = windowed.aggregate(n=ps.count(), total=ps.sum("amount")).uid("totals")
    assert totals.columns == ["window_start", "window_end", "n", "total"]
    totals.sink_to(sink(), uid="out").set_parallelism(1)
    graph = env.job_graph("job")
    assert [[o.kind for o in v.operators] for v in graph.vertices] == [
        ["source", "constant_key"],
        ["window_aggregate", "project", "sink"],
    ]
    assert [v.parallelism for v in graph.vertices] == [2, 1]
    assert graph.vertices[1].operators[0].uid == "totals"
    (edge,) = graph.edges
    assert edge.combine["of_all"], "subtasks before it combine their rows"
    assert schema_from_text(edge.schema).names == ["amount", "__all", "__ts"]


def test_windows_over_all_keys_are_all_that_there_are(env, orders, source):
    kinds = {
        ps.Session("10s"): "session_aggregate",
        ps.Cumulative("1s", "10s"): "window_aggregate",
        ps.Tumbling("10s", time="processing"): "processing_window",
        ps.Session("10s", time="processing"): "window_rows",
        ps.Tumbling("1d", time_zone="Asia/Tokyo"): "zoned_window",
    }
    for window, kind in kinds.items():
        stream = orders.window_all(window).aggregate(n=ps.count())
        node = env.builder.node(stream._node)
        assert (node.operator.kind, node.parallelism) == (kind, 1)
        assert stream.columns == ["window_start", "window_end", "n"]
    late = orders.window_all(ps.Tumbling("1s")).allowed_lateness("1s").late_to("late").aggregate(n=ps.count())
    assert late.side_output("late").columns == orders.columns
    assert orders.window_all(ps.Tumbling("1s")).reduce(lambda a, b: a).columns == orders.columns
    assert orders.window_all(ps.Global()).trigger(ps.trigger.count(3)).aggregate(n=ps.count()).columns == ["n"]
    assert orders.window_all(ps.Session("1s")).process(Whole()).columns == orders.columns
    timeless = env.from_source(source(), uid="timeless")
    assert timeless.count_window_all(10, 5).aggregate(n=ps.count()).columns == ["n"]
    assert timeless.window_all(ps.Tumbling("1s", time="processing")).aggregate(ps.count()).columns[-1] == "count"
    assert (
        orders.key_by(lambda row: row.amount, returns=int).window_all(ps.Tumbling("1s")).reduce(lambda a, b: a).columns
        == orders.columns
    )


def test_window_columns_must_be_free(orders):
    stream = orders.with_columns(window_start=1).key_by("user_id")
    refused(lambda: stream.window(ps.Tumbling("10s")), "already has a column 'window_start'")


@pytest.fixture
def windowed(orders):
    return orders.key_by("user_id").window(ps.Sliding("1m", "10s"))


def aggregates_of(env, stream):
    node = env.builder.node(stream.flow.upstreams[0].node)
    return [(a["fn"], a["column"], a["alias"]) for a in node.operator.config["aggregates"]]


def test_aggregates_are_positional_or_named(env, windowed):
    stream = windowed.aggregate(ps.sum("amount").alias("total"), ps.max("amount"), n=ps.count())
    assert stream.columns == ["user_id", "window_start", "window_end", "total", "max_amount", "n"]
    assert aggregates_of(env, stream) == [
        ("sum", "amount", "total"),
        ("max", "amount", "max_amount"),
        ("count", None, "n"),
    ]


@pytest.mark.parametrize("fn", ["sum", "min", "max", "mean", "var", "std", "first", "last"])
def test_every_aggregate_names_its_function(env, windowed, fn):
    stream = windowed.aggregate(getattr(ps, fn)("amount"))
    assert aggregates_of(env, stream) == [(fn, "amount", f"{fn}_amount")]


def test_what_cannot_be_aggregated_is_refused(windowed):
    refused(windowed.aggregate, "no aggregate is given")
    refused(lambda: windowed.aggregate(n=ps.sum("amuont")), "did you mean 'amount'?")
    refused(lambda: windowed.aggregate(n="amount"), "'amount' is not an aggregate")
    refused(
        lambda: windowed.aggregate(n=ps.count),
        r"n: ps.count without parentheses is not an aggregate (write ps.count())",
    )
    refused(lambda: windowed.aggregate(n=ps.sum), "(write for example ps.sum('COLUMN'))")
    refused(lambda: windowed.aggregate(ps.count(), ps.count()), "'count' occurs twice")
    refused(lambda: windowed.aggregate(user_id=ps.count()), "'user_id' occurs twice")
    refused(lambda: windowed.aggregate(window_end=ps.count()), "'window_end' occurs twice")


def test_allowed_lateness_is_told_to_the_operator(env, windowed):
    stream = windowed.allowed_lateness("1m").aggregate(n=ps.count())
    assert env.builder.node(stream.flow.upstreams[0].node).operator.config["allowed_lateness_us"] == 60_000_000
    refused(lambda: windowed.allowed_lateness(-1), "allowed_lateness(-1)", "negative")


def test_late_rows_are_a_side_output_with_the_columns_of_the_input(env, orders, windowed, sink):
    totals = windowed.late_to("late").aggregate(n=ps.count().where(pl.col("amount") > 1)).uid("totals")
    late = totals.side_output("late")
    assert late.flow.schema.equals(orders.flow.schema)
    node = env.builder.node(totals.flow.upstreams[0].node)
    assert node.operator.config["late_to"] == {"tag": "late", "columns": orders.flow.schema.names}
    (edge,) = [e for e in env.builder._edges if e.target == node.id]
    assert set(schema_from_text(edge.schema).names) >= set(orders.flow.schema.names), "late rows come whole"
    assert not edge.combine
    totals.sink_to(sink(), uid="out")
    refused(lambda: env.job_graph("j"), "writes rows to side output 'late'", "has no reader")
    late.sink_to(sink(), uid="late-out")
    assert [e.side_output for e in env.job_graph("j").edges][-2:] == [None, "late"]


def test_late_rows_of_sessions_can_be_put_aside_and_of_processing_time_there_are_none(orders):
    keyed = orders.key_by("user_id")
    late = keyed.window(ps.Session("10s")).late_to("late").aggregate(ps.count()).side_output("late")
    assert late.columns == orders.columns
    refused(lambda: keyed.window(ps.Tumbling("10s", time="processing")).late_to("late"), "no row is late")
    refused(lambda: keyed.window(ps.Tumbling("10s")).late_to("no tag"), "'no tag' cannot be used")


def test_values_are_counted_apart_from_rows(windowed):
    stream = windowed.aggregate(ps.count(), ps.count("product"))
    assert stream.columns[-2:] == ["count", "count_product"]


def test_a_type_that_cannot_be_aggregated_is_refused(windowed):
    refused(lambda: windowed.aggregate(x=ps.sum("product")), "sum('product')", "string")


@pytest.mark.parametrize("column", ["amuont", "product"])
def test_event_time_must_be_a_time(env, source, column):
    strategy = ps.WatermarkStrategy.monotonic(timestamp=column)
    refused(lambda: env.from_source(source(), watermarks=strategy, uid="in"), f"{column!r}")
