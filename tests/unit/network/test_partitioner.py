"""Partitioners: rows in = rows out, to the right channel, in order."""

import pyarrow as pa
import pytest

from penstock.core.errors import GraphError
from penstock.core.keygroup import key_group_of, subtask_of
from penstock.graph.job_graph import Broadcast, Forward, KeyGroup, Rebalance
from penstock.kernels.keys.hashing import hash_columns
from penstock.network.output import SplitKernels, compiled_kernels, splitter_for


def test_forward_passes_the_batch_itself(net):
    batch = net.rows(5)
    assert splitter_for(Forward(), channels=1, key_groups=16).split(batch) == [(0, batch)]


def test_forward_to_several_channels_is_refused():
    with pytest.raises(GraphError, match="forward"):
        splitter_for(Forward(), channels=2, key_groups=16)


@pytest.mark.parametrize("partitioner", [KeyGroup(("k",)), Rebalance(), Broadcast()])
def test_one_channel_needs_no_work(net, partitioner):
    batch = net.rows(5)
    ((channel, rows),) = splitter_for(partitioner, channels=1, key_groups=16).split(batch)
    assert channel == 0
    assert rows is batch


def test_rebalance_takes_turns_and_begins_at_its_subtask(net):
    splitter = splitter_for(Rebalance(), channels=3, key_groups=16, subtask=4)
    assert [splitter.split(net.rows(1))[0][0] for _ in range(4)] == [1, 2, 0, 1]


def test_broadcast_sends_all_to_all(net):
    slices = splitter_for(Broadcast(), channels=3, key_groups=16).split(net.rows(4))
    assert [(channel, rows.num_rows) for channel, rows in slices] == [(0, 4), (1, 4), (2, 4)]


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_go_to_the_owner_of_their_key_group_in_order(net, compiled):
    kernels = compiled_kernels() if compiled else net.TWINS
    batch = net.rows(1000)
    slices = splitter_for(KeyGroup(("k",)), channels=7, key_groups=64, kernels=kernels).split(batch)
    seen = []
    for channel, rows in slices:
        keys = rows.column("k").to_pylist()
        assert keys == sorted(keys)
        seen += keys
        hashes = (hash_columns if compiled else net.twin_hash)(rows, ("k",))
        assert {subtask_of(key_group_of(int(h), 64), 7, 64) for h in hashes} == {channel}
    assert sorted(seen) == list(range(1000))


def test_a_split_that_loses_rows_is_caught(net):
    def lossy(batch, order, offsets):
        return [batch.slice(0, batch.num_rows - 1), None]

    kernels = SplitKernels(net.TWINS.order_by_owner, lossy)
    splitter = splitter_for(KeyGroup(("k",)), channels=2, key_groups=16, kernels=kernels)
    with pytest.raises(RuntimeError, match="9 rows of 10"):
        splitter.split(net.rows(10))


def test_a_batch_without_rows_gives_no_slices(net):
    splitter = splitter_for(KeyGroup(("k",)), channels=2, key_groups=16, kernels=net.TWINS)
    assert splitter.split(pa.record_batch([[], []], schema=net.SCHEMA)) == []
