"""Sessions over links in memory: whole exchanges, frame by frame, and what happens when something is gone."""

import msgspec
import pytest

from penstock.core.elements import Barrier, Batch, EndOfInput, Watermark
from penstock.graph.job_graph import KeyGroup
from penstock.network.network_memory import GateShare
from penstock.network.simulated_network import WorkerPair
from penstock.network.subpartition import ConnectionLostError


def test_rows_events_and_the_end_arrive_in_order(net):
    memory = net.Memory()
    output = memory.job.outputs(0, "a", ["b"])
    gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    output.batch(Batch(net.rows(50)))
    output.watermark(Watermark(4))
    output.barrier(Barrier(1))
    output.batch(Batch(net.rows(50, first=50)))
    output.end()
    found = memory.exchange(gate)
    assert net.keys_of(found) == list(range(100))
    events = [e for _, e in found if not isinstance(e, Batch)]
    assert events == [Watermark(4), Barrier(1), EndOfInput()]
    assert memory.lost == []


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_either_worker_may_start_first(net, order):
    memory = net.Memory()
    output = memory.job.outputs(0, "a", ["b"])
    output.batch(Batch(net.rows(5)))
    gates = []
    for worker in order:
        if worker == "b":
            gates.append(memory.job.gate(0, "b", ["a"]))
        memory.job.start(worker)
        memory.transport.pump_all()
    assert net.keys_of(memory.exchange(gates[0])) == list(range(5))


def test_credit_that_arrives_before_the_sender_is_deployed_is_kept(net):
    memory = net.Memory()
    gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    memory.transport.pump_all()
    output = memory.job.outputs(0, "a", ["b"])
    memory.job.start("a")
    output.batch(Batch(net.rows(5)))
    assert net.keys_of(memory.exchange(gate)) == list(range(5))


def test_a_channel_within_one_worker_hands_over_the_batch_itself(net):
    memory = net.Memory("a")
    output = memory.job.outputs(0, "a", ["a"])
    wakes = []
    gate = memory.job.gate(0, "a", ["a"], lambda: wakes.append(1))
    memory.job.start()
    rows = net.rows(5)
    output.batch(Batch(rows))
    assert wakes == [1]
    ((_, batch),) = net.poll_all(gate)
    assert batch.data is rows


def test_a_channel_within_one_worker_is_bounded_too(net):
    memory = net.Memory("a")
    told = []
    output = memory.job.outputs(0, "a", ["a"], wake=lambda: told.append(1))
    gate = memory.job.gate(0, "a", ["a"])
    memory.job.start()
    sent = 0
    while output.available:
        output.batch(Batch(net.rows(10, first=sent)))
        sent += 10
    assert gate.bytes_queued <= 6000
    keys = net.keys_of(net.poll_all(gate))
    assert told
    assert output.available
    assert keys == list(range(sent))


def test_a_slow_channel_does_not_hold_up_the_others(net):
    memory = net.Memory()
    slow_out = memory.job.outputs(0, "a", ["b"])
    fast_out = memory.job.outputs(1, "a", ["a", "b"], partitioner=KeyGroup(("k",)))
    slow = memory.job.gate(0, "b", ["a"])
    memory.job.gate(0, "a", ["b", "a"])
    fast = memory.job.gate(1, "b", ["b", "a"])
    memory.job.start()
    sent = 0
    while slow_out.available:
        slow_out.batch(Batch(net.rows(20, first=sent)))
        sent += 20
        memory.transport.pump_all()
    for n in range(20):
        fast_out.channels[1].add_rows(net.rows(10, first=10 * n), 100, 0)
        memory.transport.pump_all()
        assert net.keys_of(net.poll_all(fast)) == list(range(10 * n, 10 * n + 10))
    assert slow.bytes_queued <= 6000
    assert net.keys_of(memory.exchange(slow)) == list(range(sent))


def test_a_row_larger_than_all_credit_arrives(net):
    memory = net.Memory()
    output = memory.job.outputs(0, "a", ["b"])
    gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    output.batch(Batch(net.rows(1, text="x" * 100_000)))
    output.batch(Batch(net.rows(1, first=1, text="y" * 100_000)))
    found = memory.exchange(gate)
    assert net.keys_of(found) == [0, 1]
    assert memory.transport.frames_moved > 600


def test_a_broken_connection_fails_both_sides(net):
    memory = net.Memory()
    output = memory.job.outputs(0, "a", ["b"])
    gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    memory.exchange(gate)
    memory.transport.disconnect("a", "b", "cable cut")
    with pytest.raises(ConnectionLostError, match="cable cut"):
        gate.poll()
    with pytest.raises(ConnectionLostError, match="cable cut"):
        output.batch(Batch(net.rows(1)))
    assert [(w, p) for w, p, _ in memory.lost] == [("a", "b"), ("b", "a")]


def test_a_cut_link_moves_nothing_until_it_is_healed(net):
    memory = net.Memory()
    output = memory.job.outputs(0, "a", ["b"])
    gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    memory.exchange(gate)
    memory.transport.partition("a", "b")
    output.batch(Batch(net.rows(5)))
    assert memory.transport.ready_links() == []
    assert not memory.transport.pump(WorkerPair("a", "b"))
    memory.transport.heal("a", "b")
    assert net.keys_of(memory.exchange(gate)) == list(range(5))


def test_a_worker_that_crashes_is_lost_to_its_peers(net):
    memory = net.Memory()
    memory.job.outputs(0, "a", ["b"])
    gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    memory.exchange(gate)
    memory.transport.leave("a", "crashed")
    with pytest.raises(ConnectionLostError, match="crashed"):
        gate.poll()


def test_a_receiver_released_too_early_fails_the_sender(net):
    memory = net.Memory()
    output = memory.job.outputs(0, "a", ["b"])
    gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    memory.exchange(gate)
    memory.planes["b"].release("job")
    memory.transport.pump_all()
    with pytest.raises(ConnectionLostError, match="receiver was released"):
        output.batch(Batch(net.rows(1)))


def test_a_sender_released_before_its_end_fails_the_receiver(net):
    memory = net.Memory()
    output = memory.job.outputs(0, "a", ["b"])
    gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    output.batch(Batch(net.rows(1)))
    memory.planes["a"].release("job")
    memory.transport.pump_all()
    with pytest.raises(ConnectionLostError, match="before its end of input"):
        gate.poll()
    with pytest.raises(ConnectionLostError, match="released"):
        output.batch(Batch(net.rows(1)))


def test_what_is_queued_behind_the_end_is_delivered_after_the_release(net):
    memory = net.Memory()
    output = memory.job.outputs(0, "a", ["b"])
    gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    output.batch(Batch(net.rows(500)))
    output.end()
    memory.planes["a"].release("job")
    found = memory.exchange(gate)
    assert net.keys_of(found) == list(range(500))
    assert net.ended(found)
    assert memory.planes["a"].sessions["b"].channel_count == 0


def test_a_new_epoch_starts_clean_while_frames_of_the_old_one_are_still_under_way(net):
    memory = net.Memory()
    old_output = memory.job.outputs(0, "a", ["b"])
    old_gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    memory.exchange(old_gate)
    old_output.batch(Batch(net.rows(50)))
    memory.transport.pump(WorkerPair("a", "b"))
    for worker in "ab":
        memory.planes[worker].release("job")
    job = net.Job(memory.planes, epoch=2)
    output, gate = job.outputs(0, "a", ["b"]), job.gate(0, "b", ["a"])
    job.start()
    output.batch(Batch(net.rows(3, first=1000)))
    output.end()
    found = memory.exchange(gate)
    assert net.keys_of(found) == [1000, 1001, 1002]
    assert net.ended(found)


def test_a_frame_of_nonsense_breaks_the_connection_loudly(net):
    memory = net.Memory()
    output = memory.job.outputs(0, "a", ["b"])
    gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    memory.exchange(gate)
    memory.planes["a"].sessions["b"]._control.append(b"\xff" * 64)
    memory.transport.pump_all()
    with pytest.raises(ConnectionLostError, match="invalid frame header"):
        gate.poll()
    with pytest.raises(ConnectionLostError):
        output.end()


def test_release_may_be_called_twice_and_for_unknown_jobs(net):
    memory = net.Memory()
    memory.job.gate(0, "b", ["a"])
    memory.planes["b"].release("job")
    memory.planes["b"].release("job")
    memory.planes["b"].release("other")


def test_buffer_timeout_holds_rows_back_until_flushed(net):
    settings = msgspec.structs.replace(net.SMALL, buffer_timeout_ms=100, buffer_size_bytes=100_000)
    memory = net.Memory(settings=settings)
    output = memory.job.outputs(0, "a", ["b"])
    gate = memory.job.gate(0, "b", ["a"])
    memory.job.start()
    for n in range(10):
        output.batch(Batch(net.rows(1, first=n)))
        output.watermark(Watermark(n))
    assert memory.exchange(gate) == []
    memory.clock.advance(100)
    output.flush_due(memory.clock.monotonic_ms())
    (_, batch), (_, watermark) = memory.exchange(gate)
    assert batch.num_rows == 10
    assert watermark == Watermark(9)


def test_combined_rows_keep_their_form_on_the_wire(net):
    class AsNumbers:
        def combine(self, batch):
            return batch.select(["k"]) if batch.num_rows > 10 else None

    memory = net.Memory()
    output = memory.job.outputs(0, "a", ["b"])
    output.combine_with(AsNumbers())
    gate = memory.job.gate(0, "b", ["a"])
    gate.expect_combined(net.SCHEMA.remove(1))
    memory.job.start()
    output.batch(Batch(net.rows(50)))
    output.batch(Batch(net.rows(5, first=50)))
    output.end()
    found = [e for _, e in memory.exchange(gate) if isinstance(e, Batch)]
    assert [(b.combined, b.num_rows, b.data.schema.names) for b in found] == [(True, 50, ["k"]), (False, 5, ["k", "v"])]
    assert net.keys_of([(0, b) for b in found]) == list(range(55))
    assert gate.records_in == 55


def test_channels_with_a_small_guaranteed_part_move_everything_while_one_of_them_is_blocked(net):
    memory = net.Memory("ab")
    outputs = [memory.job.outputs(source, worker, ["b"]) for source, worker in enumerate("ab")]
    gate = memory.job.gate(0, "b", ["a", "b"], share=GateShare(window=200, floating=0))
    memory.job.start()
    memory.transport.pump_all()
    gate.block(0)
    sent, found = [0, 0], []
    for _ in range(40):
        for source, output in enumerate(outputs):
            if output.available:
                output.batch(Batch(net.rows(5, first=10_000 * source + sent[source])))
                sent[source] += 5
        found += memory.exchange(gate)
    assert sent[0] < sent[1] == 200
    assert gate.bytes_queued <= 400
    assert net.keys_of(found) == list(range(10_000, 10_200))
    gate.unblock(0)
    assert net.keys_of(memory.exchange(gate)) == list(range(sent[0]))
    outputs[0].batch(Batch(net.rows(1, first=7, text="x" * 50_000)))  # one row above all bounds
    assert net.keys_of(memory.exchange(gate)) == [7]
