"""Deployments: every channel has two ends that agree, every key hash one owner."""

import itertools

import msgspec
import pytest

from penstock.core.keygroup import HASH_MAX, HASH_MIN
from penstock.graph.execution_graph import PlanIds, peers_of, plan
from penstock.graph.job_graph import required_slots, slots_of
from penstock.graph.restore_plan import RestorePlan
from penstock.graph.stream_graph import Upstream
from penstock.graph.task_deployment import (
    OperatorRestore,
    decode_deployment,
    decode_peers,
    encode_deployment,
    encode_peers,
    with_channels,
)

IDS = PlanIds(job_id="j", run_id="r", generation=3, attempt=2, epoch=5)


def placed(graph, **options):
    slots = slots_of(graph)
    placement = {place: f"w{i}" for i, slot in enumerate(slots) for place in slot.subtasks}
    endpoints = {f"w{i}": f"unix:/w{i}" for i in range(len(slots))}
    tasks = plan(graph, ids=IDS, placement=placement, endpoints=endpoints, **options)
    peers = peers_of(graph, IDS.epoch, placement, endpoints)
    return [with_channels(task, peers) for task in tasks], placement


def main_job(graphs, sinks=3):
    window = graphs.window(graphs.source("a"), "w", parallelism=3)
    graphs.sink(window, name="s", parallelism=sinks)
    return graphs.job_graph()


def test_every_channel_has_two_ends_that_agree(graphs):
    graph = main_job(graphs, sinks=2)
    tasks, placement = placed(graph)
    sent = {
        c.id: (t.execution.vertex_id, t.execution.subtask, c.worker_id)
        for t in tasks
        for o in t.outputs
        for c in o.channels
    }
    received = {
        c.id: (t.execution.vertex_id, t.execution.subtask, c.worker_id)
        for t in tasks
        for i in t.inputs
        for c in i.channels
    }
    assert sent.keys() == received.keys()
    assert len(sent) == 2 * 3 + 3 * 2
    for channel, (vertex, subtask, to_worker) in sent.items():
        other_vertex, other_subtask, from_worker = received[channel]
        edge = graph.edges[channel.edge]
        assert (edge.source, edge.target) == (vertex, other_vertex)
        assert (channel.source_subtask, channel.target_subtask, channel.epoch) == (subtask, other_subtask, 5)
        assert placement[vertex, subtask] == from_worker
        assert placement[other_vertex, other_subtask] == to_worker


def test_both_ends_of_an_edge_know_its_width(graphs):
    tasks, _ = placed(main_job(graphs, sinks=7))
    widths = {c.id.edge: set() for t in tasks for o in t.outputs for c in o.channels}
    for task in tasks:
        for spec in (*task.inputs, *task.outputs):
            widths[spec.channels[0].id.edge].add(spec.width)
    assert widths == {0: {3}, 1: {7}}


def test_outputs_lead_to_subtasks_in_order(graphs):
    tasks, _ = placed(main_job(graphs))
    assert [c.id.target_subtask for c in tasks[0].outputs[0].channels] == [0, 1, 2]


def test_forward_is_one_channel_to_the_same_subtask(graphs):
    graphs.sink(graphs.source("a", chaining=False), name="s")
    tasks, _ = placed(graphs.job_graph())
    assert [(t.vertex_name, t.execution.subtask, [len(o.channels) for o in t.outputs]) for t in tasks] == [
        ("a", 0, [1]),
        ("a", 1, [1]),
        ("s", 0, []),
        ("s", 1, []),
    ]
    assert [c.id.source_subtask for t in tasks[2:] for i in t.inputs for c in i.channels] == [0, 1]


def test_hashes_are_owned_without_gap(graphs):
    tasks, _ = placed(main_job(graphs))
    owned = [(t.hash_low, t.hash_high) for t in tasks if t.vertex_name.startswith("w")]
    assert owned[0][0] == HASH_MIN
    assert owned[-1][1] == HASH_MAX
    assert all(left[1] + 1 == right[0] for left, right in itertools.pairwise(owned))


def test_an_unkeyed_vertex_may_be_wider_than_the_key_groups(graphs):
    graphs.set(key_groups=1)
    graphs.sink(graphs.source("a"), name="s")
    tasks, _ = placed(graphs.job_graph())
    assert {(t.hash_low, t.hash_high) for t in tasks} == {(HASH_MIN, HASH_MAX)}


def test_a_deployment_names_who_deploys_and_what_comes_back(graphs):
    graph = main_job(graphs)
    window = graph.vertices[1].id
    restored = (OperatorRestore(uid="w"),)
    tasks, _ = placed(graph, restore=RestorePlan(restores={(window, 1): restored}, checkpoint_id=9))
    by_subtask = {t.execution.subtask: t for t in tasks if t.execution.vertex_id == window}
    assert by_subtask[1].restore == restored
    assert by_subtask[0].restore == ()
    assert {t.restored_checkpoint for t in tasks} == {9}
    assert {(t.job_id, t.run_id, t.generation, t.execution.attempt) for t in tasks} == {("j", "r", 3, 2)}
    assert decode_deployment(encode_deployment(by_subtask[1])) == by_subtask[1]


def test_a_subtask_without_a_worker_is_a_fault_of_the_scheduler(graphs):
    with pytest.raises(KeyError):
        peers_of(main_job(graphs), 5, {}, {})


def test_slots_hold_one_subtask_of_each_vertex_of_a_group(graphs):
    graph = main_job(graphs)
    slots = slots_of(graph)
    assert required_slots(graph) == len(slots) == 3
    assert [[subtask for _, subtask in s.subtasks] for s in slots] == [[0, 0], [1, 1], [2]]
    assert sorted(p for s in slots for p in s.subtasks) == sorted(
        (v.id, i) for v in graph.vertices for i in range(v.parallelism)
    )


@pytest.mark.parametrize(("group", "slots"), [(None, 3), ("alone", 3 + 2)])
def test_slots_of_groups_are_added_up(graphs, group, slots):
    main_job(graphs)
    graphs.sink(graphs.source("b", slot_sharing_group=group), name="t")
    assert required_slots(graphs.job_graph()) == slots


def test_a_side_output_is_an_edge_of_its_own(graphs):
    window = graphs.window(graphs.source("a"), "w", side_outputs={"late": ""})
    graphs.sink(window, name="s")
    graphs.sink(Upstream(node=window, side_output="late"), name="t")
    tasks, _ = placed(graphs.job_graph())
    outputs = next(t.outputs for t in tasks if t.vertex_name == "w")
    assert [o.side_output for o in outputs] == [None, "late"]


@pytest.mark.parametrize("parallelism", [10, 100])
def test_set_up_grows_with_the_subtasks_only(graphs, parallelism):
    graphs.set(parallelism=parallelism)
    graph = main_job(graphs, sinks=parallelism)
    counting = Counting({(v.id, i): "w" for v in graph.vertices for i in range(v.parallelism)})
    tasks = plan(graph, ids=IDS, placement=counting, endpoints={"w": "unix:/w"})
    peers_of(graph, IDS.epoch, counting, {"w": "unix:/w"})
    assert counting.looked_up == len(tasks) == 2 * parallelism + 3
    assert not any(spec.channels for task in tasks for spec in (*task.inputs, *task.outputs))


def test_the_table_of_peers_survives_its_wire_form(graphs):
    graph = main_job(graphs)
    places = {(v.id, i): f"w{i % 2}" for v in graph.vertices for i in range(v.parallelism)}
    peers = peers_of(graph, 5, places, {"w0": "unix:/w0", "w1": "unix:/w1"})
    assert decode_peers(encode_peers(peers)) == peers
    assert peers.workers == (("w0", "unix:/w0"), ("w1", "unix:/w1"))
    assert peers.places[graph.vertices[1].id] == (0, 1, 0)


def test_a_job_of_forward_edges_has_no_table_of_peers(graphs):
    graphs.sink(graphs.source("a", chaining=False), name="s")
    assert peers_of(graphs.job_graph(), 5, {}, {}) is None


@pytest.mark.parametrize("epoch", [None, 4])
def test_channels_do_not_follow_from_the_table_of_another_deployment(graphs, epoch):
    graph = main_job(graphs)
    places = {(v.id, i): "w" for v in graph.vertices for i in range(v.parallelism)}
    task = plan(graph, ids=IDS, placement=places, endpoints={"w": "unix:/w"})[0]
    peers = None if epoch is None else peers_of(graph, epoch, places, {"w": "unix:/w"})
    with pytest.raises(ValueError, match="lacks the peer table of deployment 5"):
        with_channels(task, peers)


class Counting(dict):
    """Counts how often a place is looked up."""

    looked_up = 0

    def __getitem__(self, key):
        self.looked_up += 1
        return super().__getitem__(key)


def test_plan_ids_are_values():
    assert msgspec.structs.replace(IDS, epoch=6) != IDS
