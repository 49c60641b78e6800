"""Connected streams: what they tell the operator, and what is refused."""

from collections.abc import Iterator
from datetime import datetime

import pytest

import penstock as ps
from penstock.graph.job_graph import Broadcast, KeyGroup


class Rule(ps.Schema):
    user: int
    limit: int
    ts: datetime


class Alarm(ps.Schema):
    user_id: int
    amount: int


class Note(ps.Schema):
    text: str


class Limits(ps.KeyedCoProcessFunction):
    limit: ps.ValueState[int] = ps.value_state()

    def process1(self, row, ctx) -> Iterator[Alarm]:
        if row.amount > (self.limit.value() or 0):
            yield Alarm(user_id=ctx.key, amount=row.amount)

    def process2(self, row: Rule, ctx) -> None:
        self.limit.update(row.limit)
        ctx.side("notes", Note(text=str(row.limit)))


@pytest.fixture
def rules(env, source, watermarks):
    return env.from_source(source(Rule, bounded=True), watermarks=watermarks, uid="rules").key_by("user")


def refused(call, *words):
    with pytest.raises(ps.GraphError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
    assert caught.value.hint


def test_a_function_of_two_streams_is_one_operator_with_a_key_for_each(env, orders, rules, sink):
    stream = orders.key_by("user_id").connect(rules).process(Limits(), side_outputs={"notes": Note}).uid("limits")
    assert stream.columns == ["user_id", "amount"]
    assert stream.flow.has_event_time
    assert stream.side_output("notes").columns == ["text"]
    stream.sink_to(sink(), uid="out")
    stream.side_output("notes").sink_to(sink(), uid="noted")
    graph = env.job_graph("job")
    vertex = next(v for v in graph.vertices if v.operators[0].kind == "co_process")
    spec = vertex.operators[0]
    assert (spec.stateful, spec.python) == (True, True)
    assert (spec.config["key"], spec.config["second_key"]) == (["user_id"], ["user"])
    edges = graph.in_edges(vertex.id)
    assert [(e.input_index, e.partitioner) for e in edges] == [(0, KeyGroup(("user_id",))), (1, KeyGroup(("user",)))]


def test_what_cannot_be_connected_is_refused(env, orders, rules, source):
    keyed = orders.key_by("user_id")

    class Nothing(ps.KeyedCoProcessFunction):
        def process1(self, row, ctx) -> None: ...

    class Silent(Nothing):
        def process2(self, row, ctx) -> None: ...

    class Two(ps.KeyedCoProcessFunction):
        def process1(self, row, ctx) -> Iterator[Alarm]: ...

        def process2(self, row, ctx) -> Iterator[Note]: ...

    class One(ps.KeyedProcessFunction):
        def process(self, row, ctx) -> Iterator[Alarm]: ...

    refused(lambda: keyed.connect(orders), "the other stream has no key")
    refused(lambda: keyed.connect(7), "7 is not a stream")
    refused(lambda: keyed.connect(rules).process(Limits), "it is a class", "Limits()")
    refused(lambda: keyed.connect(rules).process(One()), "no function of these two streams")
    refused(lambda: keyed.connect(rules).process(Nothing()), "it has no process2 method")
    refused(lambda: keyed.connect(rules).process(Silent()), "its output type is not known")
    refused(lambda: keyed.connect(rules).process(Two()), "process1 yields Alarm and process2 Note")
    refused(lambda: orders.key_by("product").connect(rules).process(Limits()), "product string and user int64")
    timeless = env.from_source(source(Rule, bounded=True), uid="t").key_by("user")
    refused(lambda: keyed.connect(timeless).process(Limits()), "one stream has event time, the other has none")


class ByRule(ps.KeyedBroadcastProcessFunction):
    limits: ps.BroadcastState[int, int] = ps.broadcast_state()

    def process(self, row, ctx) -> Iterator[Alarm]:
        if row.amount > (self.limits.get(ctx.key) or 0):
            yield Alarm(user_id=ctx.key, amount=row.amount)

    def process_broadcast(self, row: Rule, ctx) -> None:
        self.limits.put(row.user, row.limit)


def test_a_broadcast_stream_goes_whole_to_every_subtask(env, orders, source, watermarks, sink):
    rules = env.from_source(source(Rule, bounded=True), watermarks=watermarks, uid="rules").broadcast()
    stream = orders.key_by("user_id").connect(rules).process(ByRule()).uid("by-rule")
    assert stream.columns == ["user_id", "amount"]
    stream.sink_to(sink(), uid="out")
    graph = env.job_graph("job")
    vertex = next(v for v in graph.vertices if v.operators[0].kind == "broadcast_process")
    assert vertex.operators[0].config["kinds"]["limits"]["kind"] == "broadcast"
    partitioners = [e.partitioner for e in graph.in_edges(vertex.id)]
    assert partitioners == [KeyGroup(("user_id",)), Broadcast()]


def test_what_cannot_be_broadcast_is_refused(orders, rules, env, source, watermarks):
    class Unfilled(ps.KeyedProcessFunction):
        limits: ps.BroadcastState[int, int] = ps.broadcast_state()

        def process(self, row, ctx) -> Iterator[Alarm]: ...

    keyed = orders.key_by("user_id")
    refused(lambda: keyed.process(Unfilled()), "state 'limits' is a broadcast state", "broadcast()")
    refused(
        lambda: keyed.connect(rules).process(ByRule()), "no function of these two streams", "KeyedCoProcessFunction"
    )
    spread = env.from_source(source(Rule, bounded=True), watermarks=watermarks, uid="r").broadcast()
    refused(lambda: keyed.connect(spread).process(Limits()), "no function of these two streams", "KeyedBroadcast")
