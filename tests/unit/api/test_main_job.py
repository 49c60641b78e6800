"""The nine-line job: the graph it becomes, its wire form, its explanation."""

import penstock as ps
from penstock.core.schema import schema_from_text
from penstock.graph.job_graph import KeyGroup, decode_graph, encode_graph

EXPLAINED = """\
Stream graph of order-totals: 3 operators
  1: Source: orders [orders] x2
       gives user_id int64, amount int64, product string, ts timestamp[us, tz=UTC]
  2: Window(tumbling 10s) [totals] x2
       from 1, by key (user_id), combined where it pays
       gives user_id int64, window_start timestamp[us, tz=UTC], window_end timestamp[us, tz=UTC], n int64, total int64
  3: Sink: out [out] x2
       from 2, forward

Job graph of order-totals: 2 vertices, fingerprint {fingerprint}
  {source}: Source: orders x2, slots 'default'
  {window}: Window(tumbling 10s) -> Sink: out x2, slots 'default'
       from {source}, by key (user_id), combined where it pays

Execution graph of order-totals: 4 subtasks, 2 slots, 1 region, 4 channels
  slot default/0
       {source}_0
       {window}_0, key groups 0-511
  slot default/1
       {source}_1
       {window}_1, key groups 512-1023
"""


def nine_lines(env, source, sink):
    orders = env.from_source(
        source(),
        watermarks=ps.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts").with_idleness("30s"),
        uid="orders",
    )
    (
        orders.key_by("user_id")
        .window(ps.Tumbling("10s"))
        .aggregate(n=ps.count(), total=ps.sum("amount"))
        .uid("totals")
        .sink_to(sink, uid="out")
    )


def names(text):
    return schema_from_text(text).names


def test_it_becomes_two_chains_joined_by_the_key(env, source, sink):
    out = sink()
    nine_lines(env, source, out)
    graph = env.job_graph("order-totals")
    read, totals = graph.vertices
    assert [o.kind for o in read.operators] == ["source"]
    assert [o.kind for o in totals.operators] == ["window_aggregate", "sink"]
    assert [o.uid for v in graph.vertices for o in v.operators] == ["orders", "totals", "out"]
    assert [(e.source, e.target, e.partitioner) for e in graph.edges] == [(read.id, totals.id, KeyGroup(("user_id",)))]
    assert all(o.stateful and not o.python for v in graph.vertices for o in v.operators)
    assert graph.settings.parallelism == 2
    assert graph.settings.checkpoint_interval_ms == 5000


def test_operators_are_told_what_they_do(env, source, sink):
    nine_lines(env, source, sink())
    read, totals = env.job_graph("order-totals").vertices
    assert read.operators[0].config["source"]["factory"] == "fake:Source"
    assert read.operators[0].config["watermarks"]["timestamp"] == "ts"
    assert read.operators[0].config["watermarks"]["bound_ms"] == 5000
    assert read.operators[0].config["watermarks"]["idle_timeout_ms"] == 30_000
    assert totals.operators[0].config == {
        "key": ["user_id"],
        "window": {"kind": "tumbling", "size_us": 10_000_000, "slide_us": 10_000_000, "offset_us": 0},
        "aggregates": [
            {"fn": "count", "column": None, "alias": "n"},
            {"fn": "sum", "column": "amount", "alias": "total"},
        ],
        "allowed_lateness_us": 0,
    }
    assert totals.operators[1].config["sink"]["delivery"] == "exactly-once"


def test_event_time_travels_beside_the_rows_and_ends_at_the_sink(env, source, sink):
    out = sink()
    nine_lines(env, source, out)
    graph = env.job_graph("order-totals")
    assert names(graph.edges[0].schema) == ["user_id", "amount", "__ts"], "what the window looks at, and no more"
    window = graph.vertices[1].operators[0]
    assert names(window.output_schema) == ["user_id", "window_start", "window_end", "n", "total", "__ts"]
    assert out.schema.names == ["user_id", "window_start", "window_end", "n", "total"]


def test_the_graph_survives_its_wire_form(env, source, sink):
    nine_lines(env, source, sink())
    graph = env.job_graph("order-totals")
    assert decode_graph(encode_graph(graph)) == graph


def test_the_explanation(env, source, sink):
    nine_lines(env, source, sink())
    graph = env.job_graph("order-totals")
    read, totals = (v.id[:8] for v in graph.vertices)
    assert env.explain("order-totals") == EXPLAINED.format(fingerprint=graph.fingerprint, source=read, window=totals)


def test_wide_jobs_are_explained_in_short(env, source, sink):
    env.from_source(source(), uid="in").set_parallelism(20).sink_to(sink(), uid="out")
    text = env.explain()
    assert "slot default/7" in text
    assert "slot default/8" not in text
    assert "... and 12 slots more" in text
