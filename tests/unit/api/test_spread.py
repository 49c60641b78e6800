"""`key_by(..., spread=N)`: the two stages in the graph, their uids and options, and what is refused."""

import polars as pl
import pytest

import penstock as ps


class Amount(ps.Schema):
    amount: int


TUMBLING = ps.Tumbling("10s")


def spread_window(orders, window=TUMBLING):
    return orders.key_by("user_id", spread=16).window(window)


def refused(call, *words):
    with pytest.raises(ps.GraphError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert "spread=" in caught.value.hint


def test_a_window_of_a_spread_key_has_two_stages(env, orders, sink):
    totals = spread_window(orders).aggregate(n=ps.count(), mean=ps.mean("amount")).uid("totals").set_parallelism(3)
    totals.sink_to(sink(), uid="out")
    graph = env.job_graph()
    assert [[o.kind for o in v.operators] for v in graph.vertices] == [
        ["source", "spread_key"],
        ["partial_window"],
        ["merged_window"],
        ["sink"],
    ]
    partial, merged = graph.vertices[1:3]
    assert [(v.operators[0].uid, v.parallelism) for v in (partial, merged)] == [("totals.partial", 3), ("totals", 3)]
    assert [e.partitioner.columns for e in graph.edges[:2]] == [("user_id", "__salt"), ("user_id",)]
    assert graph.edges[0].combine
    shown = env.explain()
    assert "Window(tumbling 10s, partial) [totals.partial] x3" in shown
    assert "from 2, by key (user_id, __salt), combined where it pays" in shown
    assert "Window(tumbling 10s, merged) [totals] x3" in shown


def test_the_output_is_that_of_the_whole_key(orders):
    def made(spread):
        keyed = orders.key_by("user_id", spread=spread).window(TUMBLING)
        return keyed.aggregate(ps.sum("amount"), few=ps.count().where(pl.col("amount") > 5))

    assert made(16).flow.schema.equals(made(1).flow.schema)


def test_spread_is_a_number_of_parts(orders):
    for spread in (0, 257, "16", 2.0):
        with pytest.raises(ps.GraphError, match="is not a number of parts"):
            orders.key_by("user_id", spread=spread)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda keyed: keyed.map(lambda row: row, returns=Amount), "for aggregates of windows only"),
        (lambda keyed: keyed.aggregate(n=ps.count()), "Aggregate: key_by(spread=16)"),
        (lambda keyed: keyed.deduplicate(), "Deduplicate(keep first)"),
        (lambda keyed: keyed.reduce(lambda a, b: a), "aggregates of windows only"),
        (lambda keyed: keyed.union(keyed), "union: key_by(spread=16)"),
        (lambda keyed: keyed.print(), "aggregates of windows only"),
        (lambda keyed: keyed.interval_join(keyed, "-1s", "1s"), "aggregates of windows only"),
        (lambda keyed: keyed.window(TUMBLING).reduce(lambda a, b: a), "aggregates of windows only"),
        (lambda keyed: keyed.count_window(3).aggregate(n=ps.count()), "does not support windows of"),
        (lambda keyed: keyed.window(ps.Session("5s")).aggregate(n=ps.count()), "windows of session 5s"),
        (
            lambda keyed: keyed.window(ps.Tumbling("1d", time_zone="Europe/Berlin")).aggregate(n=ps.count()),
            "Europe/Berlin; it takes tumbling",
        ),
        (
            lambda keyed: keyed.window(ps.Tumbling("1s", time="processing")).aggregate(n=ps.count()),
            "of event time, in UTC",
        ),
        (
            lambda keyed: keyed.window(TUMBLING).trigger(ps.trigger.count(3)).aggregate(n=ps.count()),
            "does not support triggers and evictors",
        ),
        (
            lambda keyed: keyed.window(TUMBLING).allowed_lateness("1s").aggregate(n=ps.count()),
            "does not support allowed lateness",
        ),
        (
            lambda keyed: keyed.window(TUMBLING).late_to("late").aggregate(n=ps.count()),
            "side outputs of late rows",
        ),
        (lambda keyed: keyed.window(TUMBLING).aggregate(ps.first("amount")), "first('amount'): it depends"),
        (lambda keyed: keyed.window(TUMBLING).aggregate(ps.collect("amount")), "collect('amount'): it depends"),
        (lambda keyed: keyed.window(TUMBLING).aggregate(ps.quantile("amount", 0.5)), "it needs all values"),
    ],
)
def test_what_may_differ_from_the_whole_key_is_refused(orders, build, words):
    refused(lambda: build(orders.key_by("user_id", spread=16)), words)


def test_windows_over_all_rows_do_not_regard_the_key(orders):
    assert orders.key_by("user_id", spread=16).window_all(TUMBLING).aggregate(n=ps.count()).columns[-1] == "n"
