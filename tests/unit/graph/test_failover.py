"""Which parts of a job restart by themselves."""

import pytest

from penstock.graph.failover import failover_regions, part_of
from penstock.graph.job_graph import regions, slots_of


@pytest.fixture
def graph(graphs):
    """Three unconnected pipelines of two vertices, in slots of their own."""
    for number in range(3):
        source = graphs.source(f"in{number}", slot_sharing_group=f"group-{number}")
        graphs.sink(graphs.window(source, f"w{number}", parallelism=3), name=f"out{number}")
    return graphs.job_graph()


def placed(graph):
    return {where: f"w{number}" for number, slot in enumerate(slots_of(graph)) for where in slot.subtasks}


def test_each_pipelined_region_restarts_by_itself(graph):
    assert len(regions(graph)) == 3
    assert failover_regions(graph, placed(graph)) == regions(graph)


def test_regions_that_share_a_worker_restart_together(graph):
    first, second, third = regions(graph)
    placement = placed(graph)
    placement[second[0], 0] = placement[first[0], 0]
    assert failover_regions(graph, placement) == ((*first, *second), third)


def test_pipelines_that_share_slots_restart_together(graphs):
    for number in range(2):
        graphs.sink(graphs.source(f"in{number}"), name=f"out{number}")
    graph = graphs.job_graph()
    assert failover_regions(graph, placed(graph)) == (tuple(vertex.id for vertex in graph.vertices),)


def test_the_parts_of_a_job_have_its_vertices_edges_and_settings(graph):
    parts = [part_of(graph, region) for region in regions(graph)]
    assert [vertex for part in parts for vertex in part.vertices] == list(graph.vertices)
    assert [edge for part in parts for edge in part.edges] == list(graph.edges)
    assert all(part.settings == graph.settings and part.name == graph.name for part in parts)
