"""Joins: what they tell the operator, the columns of the result, and what is refused."""

from datetime import datetime

import polars as pl
import pytest

import penstock as ps
from penstock.graph.job_graph import KeyGroup


class Click(ps.Schema):
    amount: str
    user: int
    ts: datetime


class Listed(ps.Schema):
    user_id: int
    tags: list[str]


@pytest.fixture
def clicks(env, source, watermarks):
    return env.from_source(source(Click, bounded=True), watermarks=watermarks, uid="clicks")


def refused(call, *words):
    with pytest.raises(ps.GraphError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint


def operator_of(env, stream):
    return env.builder.node(stream.flow.upstreams[0].node).operator


def test_an_interval_join_gives_both_sides_columns_and_the_key_once(env, orders, clicks):
    stream = orders.key_by("user_id").interval_join(clicks.key_by("user"), "-5s", 1.5)
    assert stream.columns == ["user_id", "amount", "product", "ts", "amount_right", "ts_right"]
    assert stream.flow.has_event_time
    operator = operator_of(env, stream)
    assert (operator.kind, operator.stateful) == ("interval_join", True)
    assert operator.config == {
        "left_key": ["user_id"],
        "right_key": ["user"],
        "suffix": "_right",
        "lower_us": -5_000_000,
        "upper_us": 1_500_000,
    }
    other = orders.key_by("user_id").interval_join(clicks.key_by("user"), 0, 0, suffix="_2")
    assert other.columns[-2:] == ["amount_2", "ts_2"]


def test_an_outer_interval_join_makes_columns_of_the_other_side_nullable(env, orders, clicks):
    left, right = orders.key_by("user_id"), clicks.key_by("user")
    found = {how: left.interval_join(right, 0, "1s", how=how) for how in ("left", "right", "full")}
    nullable = {how: {field.name for field in stream.schema if field.nullable} for how, stream in found.items()}
    ours, theirs = {"amount", "product", "ts"}, {"product", "amount_right", "ts_right"}
    assert nullable == {"left": theirs, "right": ours, "full": ours | theirs}
    assert operator_of(env, found["full"]).config["how"] == "full"
    refused(lambda: left.interval_join(right, 0, 0, how="outer"), "interval_join(how='outer') is not known")


def test_late_rows_of_each_side_are_read_under_their_tag(env, orders, clicks):
    tags = {"left": "late-orders", "right": "late-clicks"}
    left, right = orders.key_by("user_id"), clicks.key_by("user")
    by_window = orders.join(clicks, late_to=tags).where("user_id").equal_to("user").window(ps.Cumulative("1s", "4s"))
    for joined in (left.interval_join(right, 0, 0, late_to=tags), by_window):
        assert joined.side_output("late-orders").schema == orders.schema
        assert joined.side_output("late-clicks").columns == clicks.columns
        columns = {side: made["columns"] for side, made in operator_of(env, joined).config["late_to"].items()}
        assert columns == {"left": [*orders.columns, "__ts"], "right": [*clicks.columns, "__ts"]}
    dated = left.temporal_join(right, late_to="late")
    assert dated.side_output("late").columns == orders.columns
    refused(lambda: left.interval_join(right, 0, 0, late_to="late"), "does not map sides to tags")
    refused(lambda: left.interval_join(right, 0, 0, late_to={"both": "late"}), "does not map sides to tags")
    refused(lambda: left.interval_join(right, 0, 0, late_to={"left": "x", "right": "x"}), "one tag for both sides")
    refused(lambda: left.temporal_join(right, late_to=""), "late_to: the tag")


def test_a_window_join_gives_both_sides_columns_and_the_window(env, orders, clicks):
    joined = orders.join(clicks, how="left").where("user_id").equal_to("user").window(ps.Sliding("10s", "2s"))
    columns = ["user_id", "amount", "product", "ts", "amount_right", "ts_right", "window_start", "window_end"]
    assert joined.columns == columns
    nullable = {field.name for field in joined.schema if field.nullable}
    assert nullable == {"product", "amount_right", "ts_right"}
    operator = operator_of(env, joined)
    assert (operator.kind, operator.config["how"], operator.stateful) == ("window_join", "left", True)
    assert operator.config["window"] == ps.Sliding("10s", "2s").to_config()


@pytest.mark.parametrize(
    ("how", "expected"),
    [("inner", {"product"}), ("right", {"product", "amount", "ts"}), ("full", {"product", "amount", "ts"})],
)
def test_columns_of_a_side_that_may_be_missing_may_be_null(orders, clicks, how, expected):
    joined = orders.join(clicks, how=how).where("user_id").equal_to("user").window(ps.Tumbling("1s"))
    nullable = {field.name for field in joined.schema if field.nullable}
    assert nullable == expected | ({"amount_right", "ts_right"} if how == "full" else set())


def test_a_temporal_join_gives_rows_with_what_held_at_their_time(env, orders, clicks):
    stream = orders.key_by("user_id").temporal_join(clicks.key_by("user"), how="left")
    assert stream.columns == ["user_id", "amount", "product", "ts", "amount_right", "ts_right"]
    assert {field.name for field in stream.schema if field.nullable} == {"product", "amount_right", "ts_right"}
    assert stream.flow.has_event_time
    operator = operator_of(env, stream)
    assert (operator.kind, operator.config["how"], operator.stateful) == ("temporal_join", "left", True)
    inner = orders.key_by("user_id").temporal_join(clicks.key_by("user"))
    assert {field.name for field in inner.schema if field.nullable} == {"product"}


def test_what_has_no_versions_is_refused(orders, clicks, env, source, watermarks):
    class Tagged(ps.Schema):
        user: int
        tags: list[str]
        ts: datetime

    left = orders.key_by("user_id")
    refused(lambda: left.temporal_join(clicks), "the other stream has no key")
    refused(lambda: left.temporal_join(clicks.key_by("user"), how="full"), "how='full' is not known")
    refused(lambda: left.temporal_join(clicks.key_by("amount")), "the keys differ")
    tagged = env.from_source(source(Tagged, bounded=True), watermarks=watermarks, uid="tagged").key_by("user")
    refused(
        lambda: left.temporal_join(tagged), "column 'tags' of the right side has the type list<item: string", "kept"
    )
    assert tagged.temporal_join(clicks.key_by("user")).columns[:2] == ["user", "tags"]


def test_sessions_and_windows_of_processing_time_are_joined_row_by_row(env, orders, clicks, source):
    joined = orders.join(clicks, how="full").where("user_id").equal_to("user")
    stream = joined.window(ps.Session("1s"))
    assert stream.columns == [*orders.columns, "amount_right", "ts_right", "window_start", "window_end"]
    assert operator_of(env, stream).kind == "window_rows_join"
    assert operator_of(env, joined.window(ps.Tumbling("1d", time_zone="Asia/Tokyo"))).kind == "window_rows_join"
    timeless = env.from_source(source(Click, bounded=True), uid="timeless")
    one = orders.join(timeless).where("user_id").equal_to("user").window(ps.Session("1s", time="processing"))
    assert one.flow.has_event_time


def test_what_cannot_be_joined_by_window_is_refused(env, orders, clicks, source, watermarks):
    def by(where, equal_to, window=None, **options):
        joined = orders.join(clicks, **options).where(*where).equal_to(*equal_to)
        return lambda: joined.window(window or ps.Tumbling("1s"))

    refused(lambda: orders.join(7), "7 is not a stream")
    refused(lambda: orders.join(clicks).where("usr_id"), "did you mean 'user_id'?")
    refused(by(["user_id"], ["amount"]), "the keys differ: user_id int64 and amount string")
    refused(by(["user_id"], ["user"], how="outer"), "join(how='outer') is not known", "full")
    refused(by(["user_id"], ["user"], ps.Global()), "it would never end", "interval_join")
    processing = ps.Tumbling("1s", time="processing")
    refused(by(["user_id"], ["user"], processing, late_to={"left": "late"}), "no row is late in processing time")
    listed = orders.map(lambda row: row, returns=Listed)
    of_lists = listed.join(clicks).where("user_id").equal_to("user")
    assert of_lists.window(ps.Tumbling("1s")).columns[1] == "tags"
    refused(lambda: of_lists.window(ps.Session("1s")), "column 'tags' of type list", "cannot be kept")
    timeless = env.from_source(source(Click, bounded=True), uid="timeless")
    joined = orders.join(timeless).where("user_id").equal_to("user")
    refused(lambda: joined.window(ps.Tumbling("1s")), "the right side has no event time")
    windowed = orders.with_columns(window_start=pl.col("ts")).join(clicks).where("user_id").equal_to("user")
    refused(lambda: windowed.window(ps.Tumbling("1s")), "already has a column 'window_start'")


def test_each_side_has_its_own_key_and_input(env, orders, clicks, sink):
    both = orders.union(orders.filter(pl.col("amount") > 3))
    both.key_by("user_id").interval_join(clicks.key_by("user"), 0, "1s").uid("j").sink_to(sink(), uid="out")
    graph = env.job_graph("job")
    join = next(v for v in graph.vertices if v.operators[0].kind == "interval_join")
    edges = graph.in_edges(join.id)
    assert [e.input_index for e in edges] == [0, 0, 1]
    assert [e.partitioner for e in edges] == [KeyGroup(("user_id",))] * 2 + [KeyGroup(("user",))]
    assert [o.kind for o in join.operators] == ["interval_join", "sink"]


def test_a_stream_can_be_joined_with_itself(env, orders, sink):
    keyed = orders.key_by("user_id")
    keyed.interval_join(keyed, 0, "1s").uid("j").sink_to(sink(), uid="out")
    graph = env.job_graph("job")
    assert [e.input_index for e in graph.edges] == [0, 1]


def test_another_key_is_another_fingerprint(orders, env, source, watermarks, sink):
    def fingerprint(key):
        made = ps.Environment(checkpoint_interval="5s", checkpoint_root="unused")
        left = made.from_source(source(Click, bounded=True), watermarks=watermarks, uid="a")
        right = made.from_source(source(Click, bounded=True), watermarks=watermarks, uid="b")
        left.key_by("user").interval_join(right.key_by(key), 0, 0).uid("j").sink_to(sink(), uid="out")
        return made.job_graph("job").fingerprint

    def interval(**options):
        made = ps.Environment(checkpoint_interval="5s", checkpoint_root="unused")
        left = made.from_source(source(Click, bounded=True), watermarks=watermarks, uid="a").key_by("user")
        left.interval_join(left, 0, 0, **options).uid("j").sink_to(sink(), uid="out")
        return made.job_graph("job").fingerprint

    assert fingerprint("user") == fingerprint("user")
    assert interval() == interval(how="inner") == interval(late_to={})
    assert interval() != interval(how="left")
    made = ps.Environment(checkpoint_interval="5s", checkpoint_root="unused")
    left = made.from_source(source(Click, bounded=True), watermarks=watermarks, uid="a")
    left.key_by("user", "ts").interval_join(left.key_by("user", "ts"), 0, 0).uid("j").sink_to(sink(), uid="out")
    assert made.job_graph("job").fingerprint != fingerprint("user")


def test_what_cannot_be_joined_is_refused(env, orders, clicks, source):
    left, right = orders.key_by("user_id"), clicks.key_by("user")
    refused(lambda: left.interval_join(clicks, 0, 0), "the other stream has no key")
    refused(lambda: left.interval_join("clicks", 0, 0), "'clicks' is not a stream")
    refused(lambda: left.interval_join(right, "1s", "-1s"), "the lower bound (1 s) is above the upper one (-1 s)")
    refused(
        lambda: left.interval_join(clicks.key_by("amount"), 0, 0),
        "the keys differ: user_id int64 and amount string",
        "same types",
    )
    refused(lambda: left.interval_join(clicks.key_by("user", "ts"), 0, 0), "user int64, ts timestamp")
    refused(lambda: left.interval_join(right, 0, 0, suffix=""), "two columns 'amount'")
    timeless = env.from_source(source(Click, bounded=True), uid="timeless").key_by("user")
    refused(lambda: left.interval_join(timeless, 0, 0), "the right side has no event time")
    elsewhere = ps.Environment().from_source(source(Click), uid="x").key_by("user")
    refused(lambda: left.interval_join(elsewhere, 0, 0), "different environments")
    with pytest.raises(ps.UsageError, match="'soon' is not a duration"):
        left.interval_join(right, "soon", 0)
