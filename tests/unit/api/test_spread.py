"""`key_by(..., spread=N)`: the two stages in the graph, their uids and options, and what is refused."""

import polars as pl
import pytest

import penstock as ps


class Amount(ps.Schema):
    amount: int


class Total(ps.Aggregator[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator


class Merged(Total):
    def merge(self, left: int, right: int) -> int:
        return left + right


class Whole(Merged):
    def add(self, value, accumulator: int) -> int:
        return accumulator + value.amount


class Lists(Merged):
    def create_accumulator(self) -> list[int]:
        return []


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


@pytest.mark.parametrize("env", [ps.Environment(checkpoint_interval="5s", checkpoint_mode="at-least-once")])
def test_rows_of_a_spread_key_are_never_processed_again(env, orders, sink):
    spread_window(orders).aggregate(n=ps.count()).uid("totals").sink_to(sink(), uid="out")
    with pytest.raises(ps.GraphError, match="needs exactly-once checkpoints: rows that are read again could be lost"):
        env.job_graph()


def test_a_window_that_keeps_rows_has_two_stages(env, orders, sink):
    totals = spread_window(orders, ps.Sliding("10s", "4s")).aggregate(
        n=ps.count(), median=ps.quantile("amount", 0.5), total=ps.aggregating(Merged(), "amount"), all=Whole()
    )
    whole = (
        orders.key_by("user_id")
        .window(ps.Sliding("10s", "4s"))
        .aggregate(
            n=ps.count(), median=ps.quantile("amount", 0.5), total=ps.aggregating(Merged(), "amount"), all=Whole()
        )
    )
    assert totals.flow.schema.equals(whole.flow.schema)
    totals.uid("totals").sink_to(sink(), uid="out")
    whole.uid("whole").sink_to(sink(), uid="whole-out")
    found = {v.operators[0].uid: v for v in env.job_graph().vertices}
    partial, merged = found["totals.partial"].operators[0], found["totals"].operators[0]
    assert {partial.kind, merged.kind} == {"window_rows"}
    assert merged.config["window"]["size_us"] == 4_000_000
    assert merged.config["window"]["ends_of"] == partial.config["window"]
    assert partial.config["window"] == found["whole"].operators[0].config["window"]
    assert merged.name == "Window(sliding 10s every 4s, keeps rows, merged)"


def test_accumulators_that_cannot_be_kept_are_refused(orders):
    with pytest.raises(ps.GraphError, match="Lists: value is a list, which a value cannot hold"):
        spread_window(orders).aggregate(total=ps.aggregating(Lists(), "amount"))
    orders.key_by("user_id").window(TUMBLING).aggregate(total=ps.aggregating(Lists(), "amount"))


def test_late_rows_leave_the_first_stage(env, orders, sink):
    totals = orders.key_by("user_id", spread=16).window(TUMBLING).late_to("late").aggregate(n=ps.count()).uid("totals")
    totals.sink_to(sink(), uid="out")
    late = totals.side_output("late")
    assert late.columns == orders.columns
    late.sink_to(sink(), uid="late")
    graph = env.job_graph()
    partial, merged = graph.vertices[1:3]
    (edge,) = (edge for edge in graph.edges if edge.side_output)
    assert (edge.source, partial.operators[0].uid) == (partial.id, "totals.partial")
    assert "late_to" not in merged.operators[0].config
    assert not graph.edges[0].combine  # late rows are emitted whole
    with pytest.raises(ps.GraphError, match="has no side output 'lat'"):
        totals.side_output("lat")


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
        (lambda keyed: keyed.window(TUMBLING).aggregate(ps.first("amount")), "first('amount'): it depends"),
        (lambda keyed: keyed.window(TUMBLING).aggregate(ps.collect("amount")), "collect('amount'): it depends"),
        (
            lambda keyed: keyed.window(TUMBLING).aggregate(total=ps.aggregating(Total(), "amount")),
            "Total: it has no merge(left, right)",
        ),
    ],
)
def test_what_may_differ_from_the_whole_key_is_refused(orders, build, words):
    refused(lambda: build(orders.key_by("user_id", spread=16)), words)


def test_windows_over_all_rows_do_not_regard_the_key(orders):
    assert orders.key_by("user_id", spread=16).window_all(TUMBLING).aggregate(n=ps.count()).columns[-1] == "n"
