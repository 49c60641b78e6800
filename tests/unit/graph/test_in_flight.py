"""Rows in flight at a restore: every key has one receiver, and what the receiver had comes first."""

import pytest

from penstock.config.settings import JobSettings
from penstock.core.errors import StateMismatchError
from penstock.core.keygroup import hash_range_of
from penstock.core.snapshot import FileRef, InFlightRows, SubtaskSnapshot
from penstock.graph.in_flight import assign_rows, edge_id
from penstock.graph.job_graph import Broadcast, Forward, JobEdge, JobGraph, JobVertex, KeyGroup, OperatorSpec, Rebalance


def graph(parallelism, partitioner=KeyGroup(("k",)), key_groups=128):  # noqa: B008 - a frozen value
    vertices = tuple(
        JobVertex(id=n, name=n, operators=(OperatorSpec(uid=n, name=n, kind=n),), parallelism=parallelism)
        for n in ("source", "window")
    )
    edge = JobEdge(source="source", target="window", partitioner=partitioner, input_index=0, schema="columns")
    return JobGraph(name="j", vertices=vertices, edges=(edge,), settings=JobSettings(key_groups=key_groups))


def checkpoint(job, parallelism, key_groups=128):
    """Return snapshots with rows at each receiver, and rows for each receiver at each sender."""
    edge = edge_id(job.edges[0])

    def rows(receiver, name, *, at_sender):
        hashes = hash_range_of(receiver, parallelism, key_groups)
        file = FileRef(path=name)
        return InFlightRows(
            edge=edge, receiver=receiver, hash_low=hashes.low, hash_high=hashes.high, at_sender=at_sender, file=file
        )

    senders = [tuple(rows(r, f"sent-{s}-{r}", at_sender=True) for r in range(parallelism)) for s in range(parallelism)]
    return [
        *(SubtaskSnapshot(vertex_id="source", subtask=s, in_flight=parts) for s, parts in enumerate(senders)),
        *(
            SubtaskSnapshot(vertex_id="window", subtask=r, in_flight=(rows(r, f"got-{r}", at_sender=False),))
            for r in range(parallelism)
        ),
    ]


def files(assigned, subtask):
    return [(rows.part.file.path, rows.key) for rows in assigned.get(("window", subtask), ())]


def test_at_the_same_parallelism_rows_stay_and_those_of_the_receiver_come_first():
    job = graph(2)
    assigned = assign_rows(job, checkpoint(job, 2))
    assert files(assigned, 0) == [("got-0", ()), ("sent-0-0", ()), ("sent-1-0", ())]
    assert files(assigned, 1) == [("got-1", ()), ("sent-0-1", ()), ("sent-1-1", ())]


def test_at_another_parallelism_rows_are_split_where_their_keys_are():
    assigned = assign_rows(graph(3), checkpoint(graph(2), 2))
    assert files(assigned, 0)[0] == ("got-0", ("k",))
    assert [name for name, _ in files(assigned, 1)][:2] == ["got-0", "got-1"]
    assert {key for name, key in files(assigned, 1)} == {("k",)}
    assert files(assign_rows(graph(1), checkpoint(graph(2), 2)), 0)[:3] == [
        ("got-0", ()),
        ("got-1", ()),
        ("sent-0-0", ()),
    ]


def test_another_number_of_key_groups_moves_keys_too():
    assigned = assign_rows(graph(3, key_groups=7), checkpoint(graph(3), 3))
    assert ("got-1", ("k",)) in files(assigned, 0) + files(assigned, 2)


def test_rebalanced_rows_are_dealt_out_whole():
    job = graph(3, Rebalance())
    assigned = assign_rows(graph(2, Rebalance()), checkpoint(job, 3))
    got = [name for subtask in range(2) for name, _ in files(assigned, subtask) if name.startswith("got")]
    assert sorted(got) == ["got-0", "got-1", "got-2"]


@pytest.mark.parametrize("partitioner", [Forward(), Broadcast()])
def test_edges_that_keep_their_order_have_no_id(partitioner):
    assert edge_id(graph(2, partitioner).edges[0]) == ""


def test_an_edge_that_has_changed_is_refused_with_a_way_out():
    with pytest.raises(StateMismatchError, match=r"no longer connects in this way .*stop it with a savepoint"):
        assign_rows(graph(2, KeyGroup(("other",))), checkpoint(graph(2), 2))
