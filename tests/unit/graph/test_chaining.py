"""Which operators share a task, and what the edges between tasks are."""

import pytest

from penstock.config.settings import ResourceProfile
from penstock.core.errors import GraphError
from penstock.graph.chaining import vertex_id_of
from penstock.graph.job_graph import Broadcast, Forward, KeyGroup, Rebalance, decode_graph, encode_graph, required_slots
from penstock.graph.stream_graph import Upstream


def chains(graph):
    return [v.name for v in graph.vertices]


def partitioners(graph):
    return [type(e.partitioner) for e in graph.edges]


def test_forward_edges_of_equal_parallelism_are_fused(graphs):
    a = graphs.source("a")
    graphs.sink(graphs.operator("c", "map", graphs.operator("b", "map", a)), name="d")
    graph = graphs.job_graph()
    assert chains(graph) == ["a -> b -> c -> d"]
    assert graph.edges == ()


def test_a_key_edge_begins_a_chain_even_at_parallelism_one(graphs):
    graphs.set(parallelism=1)
    graphs.sink(graphs.window(graphs.source("a"), "w"), name="s")
    graph = graphs.job_graph()
    assert chains(graph) == ["a", "w -> s"]
    assert graph.edges[0].partitioner == KeyGroup(("user",))


def test_different_parallelism_is_rebalanced(graphs):
    graphs.sink(graphs.operator("b", "map", graphs.source("a"), parallelism=3), name="s", parallelism=3)
    graph = graphs.job_graph()
    assert chains(graph) == ["a", "b -> s"]
    assert [v.parallelism for v in graph.vertices] == [2, 3]
    assert partitioners(graph) == [Rebalance]


@pytest.mark.parametrize("where", ["source", "target"])
def test_disable_chaining_keeps_a_task_for_itself(graphs, where):
    a = graphs.source("a", chaining=where != "source")
    graphs.sink(a, name="s", chaining=where != "target")
    graph = graphs.job_graph()
    assert chains(graph) == ["a", "s"]
    assert partitioners(graph) == [Forward]


def test_another_slot_sharing_group_ends_a_chain_and_is_inherited(graphs):
    b = graphs.operator("b", "map", graphs.source("a"), slot_sharing_group="heavy")
    graphs.sink(b, name="s")
    graph = graphs.job_graph()
    assert chains(graph) == ["a", "b -> s"]
    assert [v.slot_sharing_group for v in graph.vertices] == ["default", "heavy"]


def test_a_union_is_one_task_with_an_input_for_each_stream(graphs):
    a, b = graphs.source("a"), graphs.source("b")
    graphs.sink(a, b, name="s")
    graph = graphs.job_graph()
    assert chains(graph) == ["a", "b", "s"]
    assert [(e.source, e.input_index) for e in graph.in_edges(vertex_id_of("s"))] == [
        (vertex_id_of("a"), 0),
        (vertex_id_of("b"), 1),
    ]


def test_an_operator_read_twice_ends_its_chain(graphs):
    b = graphs.operator("b", "map", graphs.source("a"))
    graphs.sink(b, name="s")
    graphs.sink(b, name="t")
    assert chains(graphs.job_graph()) == ["a -> b", "s", "t"]


def test_a_side_output_ends_its_chain(graphs):
    w = graphs.window(graphs.source("a"), "w", side_outputs={"late": ""})
    graphs.sink(w, name="s")
    graphs.sink(Upstream(node=w, side_output="late"), name="t")
    graph = graphs.job_graph()
    assert chains(graph) == ["a", "w", "s", "t"]
    assert [e.side_output for e in graph.edges] == [None, None, "late"]


def test_an_explicit_broadcast_is_kept(graphs):
    graphs.sink(Upstream(node=graphs.source("a"), partitioner=Broadcast()), name="s")
    assert partitioners(graphs.job_graph()) == [Broadcast]


def test_vertex_ids_are_those_of_the_first_uid(graphs):
    graphs.sink(graphs.source("a"), name="s")
    vertex = graphs.job_graph().vertices[0]
    assert vertex.id == vertex_id_of("a")
    assert len(vertex.id) == 32
    assert int(vertex.id, 16) > 0


def test_unconnected_pipelines_share_slots_unless_one_has_another_group(graphs):
    graphs.sink(graphs.source("a"), name="s")
    graphs.sink(graphs.window(graphs.source("b"), "w"), name="t")
    graphs.sink(graphs.source("c", slot_sharing_group="alone"), name="u")
    graph = graphs.job_graph()
    assert [(v.name, v.slot_sharing_group) for v in graph.vertices] == [
        ("a -> s", "default"),
        ("b", "default"),
        ("w -> t", "default"),
        ("c -> u", "alone"),
    ]
    assert required_slots(graph) == 2 + 2


def test_resources_of_a_group_that_no_operator_has_are_refused(graphs):
    graphs.sink(graphs.source("a", slot_sharing_group="heavy"), name="s")
    graphs.set(slot_resources=(ResourceProfile(group="heavy", cpu_cores=2.0),))
    assert graphs.job_graph().settings.slot_resources[0].cpu_cores == 2.0
    for groups, told in ((("havy",), r"group 'havy' \(there are: heavy"), (("heavy", "heavy"), "has 2 profiles")):
        graphs.set(slot_resources=tuple(ResourceProfile(group=group) for group in groups))
        with pytest.raises(GraphError, match=told):
            graphs.job_graph()


def test_inputs_of_two_groups_meet_in_the_default_one(graphs):
    a, b = graphs.source("a", slot_sharing_group="x"), graphs.source("b", slot_sharing_group="y")
    graphs.sink(a, b, name="s")
    assert [v.slot_sharing_group for v in graphs.job_graph().vertices] == ["x", "y", "default"]


def test_the_graph_survives_its_wire_form(graphs):
    w = graphs.window(graphs.source("a"), "w")
    graphs.sink(w, name="s")
    graph = graphs.job_graph()
    assert decode_graph(encode_graph(graph)) == graph


def test_only_what_leads_to_the_asked_ends_is_built(graphs):
    a = graphs.source("a")
    end = graphs.sink(a, name="s")
    graphs.sink(graphs.source("b"), name="t")
    assert chains(graphs.job_graph(only=[end])) == ["a -> s"]


def test_stateless_operators_get_a_uid_that_nobody_has_given(graphs):
    a = graphs.source("a")
    graphs.sink(graphs.operator("b", "map", a), name="map-2")
    uids = [o.uid for v in graphs.job_graph().vertices for o in v.operators]
    assert uids == ["a", "map-2_", "map-2"]


@pytest.mark.parametrize(("name", "uid"), [("paid", "paid-2"), ("paid in full", "print-2"), ("p" * 99, "print-2")])
def test_a_print_without_uid_has_its_name_in_it_where_a_uid_can_have_it(graphs, name, uid):
    graphs.operator(f"Print: {name}", "print", graphs.source("a"), config={"name": name})
    assert [o.uid for v in graphs.job_graph().vertices for o in v.operators] == ["a", uid]


def fingerprint(graphs, **window):
    graphs.sink(graphs.window(graphs.source("a"), "w", **window), name="s")
    return graphs.job_graph().fingerprint


def test_the_fingerprint_sees_state_and_nothing_else(graphs):
    first = fingerprint(graphs)
    same = type(graphs)()
    same.set(parallelism=7, key_groups=64)
    assert fingerprint(same, slot_sharing_group="x") == first
    other = type(graphs)()
    assert fingerprint(other, columns=("product",)) != first
