"""The gate: fair, blockable, and exact about what it has been given."""

import threading
from functools import partial

import pytest

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import Barrier, Batch, EndOfInput, Watermark
from penstock.core.schema import schema_to_text
from penstock.graph.task_deployment import ChannelId, InputChannelSpec, InputSpec
from penstock.network.credit import exclusive_bytes
from penstock.network.input_gate import InputGate
from penstock.network.network_memory import GateShare
from penstock.network.subpartition import ConnectionLostError, Outgoing


class Sender:
    """A gate with the senders of its channels in the test's hand."""

    def __init__(self, net, channels=3, inputs=1, small_bytes=0):
        self.net = net
        self.wakes = 0
        specs = tuple(
            InputSpec(
                input_index=i,
                schema=schema_to_text(net.SCHEMA),
                channels=tuple(InputChannelSpec(ChannelId(i, s, 0, 1), "w", "memory:w") for s in range(channels)),
            )
            for i in range(inputs)
        )
        self.gate = InputGate(specs, net.SMALL, self.wake, small_bytes)
        self.granted = [0] * self.gate.channel_count
        self.windows = [0] * self.gate.channel_count
        self.sequence = [0] * self.gate.channel_count
        for index in range(self.gate.channel_count):
            self.gate.connect(index, partial(self.grant, index))

    def wake(self):
        self.wakes += 1

    def grant(self, channel, amount, window=0):
        self.granted[channel] += amount
        self.windows[channel] = window or self.windows[channel]

    def send(self, channel, item, size=0, backlog=0):
        self.gate.receive(channel, Outgoing(item, size, backlog, self.sequence[channel]))
        self.sequence[channel] += 1

    def rows(self, channel, count=1, size=100, backlog=0):
        self.send(channel, Batch(self.net.rows(count)), size, backlog)


def test_every_channel_is_granted_its_exclusive_bytes(net):
    assert Sender(net).granted == [2000, 2000, 2000]


def test_the_credit_of_a_channel_is_that_of_its_own_edge(net):
    settings = JobSettings(checkpoint_root="memory://x")
    specs = tuple(
        InputSpec(input_index=i, schema="", channels=(InputChannelSpec(ChannelId(i, 0, 0, 1), "w", "m"),), width=width)
        for i, width in enumerate((1, 64))
    )
    gate, granted = InputGate(specs, settings, lambda: None), {}
    for index in range(2):
        gate.connect(index, lambda amount, index=index: granted.update({index: amount}))
    assert granted == {0: exclusive_bytes(settings, 1), 1: exclusive_bytes(settings, 64)}
    assert granted[1] < granted[0]


def test_channels_take_turns(net):
    sender = Sender(net)
    for _ in range(3):
        sender.rows(0)
    sender.rows(1)
    sender.rows(2)
    assert [c for c, _ in net.poll_all(sender.gate)] == [0, 1, 2, 0, 0]


def test_few_rows_of_several_channels_of_an_input_are_one_batch(net):
    sender = Sender(net, channels=3, inputs=2, small_bytes=400)
    for channel in (0, 3, 1, 0, 2):
        sender.rows(channel)
    sender.send(1, Watermark(5))
    sender.rows(1)
    found = [(c, e.num_rows if isinstance(e, Batch) else e) for c, e in net.poll_all(sender.gate)]
    assert found == [(0, 4), (3, 1), (1, Watermark(5)), (1, 1)]
    assert sender.gate.records_in == 6
    assert sender.gate.bytes_queued == 0


def test_rows_that_become_one_batch_return_their_credit(net):
    sender = Sender(net, channels=2, small_bytes=1000)
    for _ in range(100):  # far more than the credit that each channel began with
        sender.rows(0)
        sender.rows(1)
        assert [e.num_rows for _, e in net.poll_all(sender.gate)] == [2]


def test_rows_become_one_batch_up_to_a_limit(net):
    sender = Sender(net, channels=3, small_bytes=250)
    for channel in (0, 1, 2):
        sender.rows(channel)
    sender.gate.block(2)
    sender.rows(1, size=300)
    assert [(c, e.num_rows) for c, e in net.poll_all(sender.gate)] == [(0, 2), (1, 1)]
    sender.gate.unblock(2)
    assert [(c, e.num_rows) for c, e in net.poll_all(sender.gate)] == [(2, 1)]


def test_combined_rows_are_not_put_to_others(net):
    sender = Sender(net, channels=4, small_bytes=1000)
    for channel in (0, 1, 2, 3):
        sender.send(channel, Batch(net.rows(1), combined=channel % 2 == 1), 100)
    found = [(c, e.num_rows, e.combined) for c, e in net.poll_all(sender.gate)]
    assert found == [(0, 2, False), (1, 2, True)]


def test_the_task_is_told_when_the_gate_was_empty_only(net):
    sender = Sender(net)
    sender.rows(0)
    sender.rows(0)
    sender.rows(1)
    assert sender.wakes == 1
    net.poll_all(sender.gate)
    sender.rows(1)
    assert sender.wakes == 2


def test_blocked_channels_fill_up_but_are_not_polled(net):
    sender = Sender(net)
    sender.rows(0)
    sender.gate.block(0)
    sender.rows(0)
    sender.rows(1)
    assert [c for c, _ in net.poll_all(sender.gate)] == [1]
    assert sender.gate.bytes_queued == 200
    wakes = sender.wakes
    sender.gate.unblock(0)
    assert sender.wakes == wakes + 1
    assert [c for c, _ in net.poll_all(sender.gate)] == [0, 0]


def test_a_blocked_channel_does_not_wake_the_task(net):
    sender = Sender(net)
    sender.gate.block(0)
    sender.rows(0)
    assert sender.wakes == 0
    assert not sender.gate.has_data


def test_consuming_returns_credit(net):
    sender = Sender(net, channels=1)
    sender.rows(0, size=1500)
    assert sender.granted == [2000]
    sender.gate.poll()
    assert sender.granted == [3500]


def test_a_backlog_is_granted_floating_bytes(net):
    sender = Sender(net, channels=1)
    sender.rows(0, size=1500, backlog=3000)
    assert sender.granted == [2000 + 2500]


def test_watermarks_of_a_blocked_channel_do_not_pile_up(net):
    sender = Sender(net, channels=1)
    sender.gate.block(0)
    for n in range(50):
        sender.send(0, Watermark(n))
    sender.gate.unblock(0)
    assert net.poll_all(sender.gate) == [(0, Watermark(49))]


def test_order_within_a_channel_is_kept(net):
    sender = Sender(net, channels=1)
    sender.send(0, Watermark(1))
    sender.rows(0)
    sender.send(0, Watermark(2))
    sender.send(0, Barrier(1))
    sender.send(0, EndOfInput())
    kinds = [type(e) for _, e in net.poll_all(sender.gate)]
    assert kinds == [Watermark, Batch, Watermark, Barrier, EndOfInput]


def test_channels_are_numbered_over_all_inputs(net):
    gate = Sender(net, channels=2, inputs=2).gate
    assert [gate.input_index_of(c) for c in range(gate.channel_count)] == [0, 0, 1, 1]


def test_encoded_rows_are_decoded_with_the_edges_schema(net):
    sender = Sender(net, channels=1)
    message = net.rows(7).serialize()
    sender.send(0, message, message.size)
    ((_, batch),) = net.poll_all(sender.gate)
    assert batch.data.equals(net.rows(7))
    assert (sender.gate.records_in, sender.gate.bytes_in) == (7, message.size)


def test_a_missing_element_is_caught(net):
    sender = Sender(net, channels=1)
    sender.sequence[0] = 1
    with pytest.raises(RuntimeError, match="element 1 instead of 0"):
        sender.rows(0)


def test_a_lost_sender_is_the_tasks_error(net):
    sender = Sender(net)
    sender.rows(0)
    assert sender.gate.fail("worker w is gone")
    assert sender.gate.has_data
    with pytest.raises(ConnectionLostError, match="worker w is gone"):
        sender.gate.poll()


def test_a_sender_that_is_lost_behind_its_end_takes_the_last_barriers_with_it(net):
    """Its tasks stay until the job is finished: who waited for the final checkpoint would wait until its time-out."""
    sender = Sender(net, channels=1)
    sender.send(0, EndOfInput())
    assert net.poll_all(sender.gate) == [(0, EndOfInput())]
    assert sender.gate.fail("left")
    with pytest.raises(ConnectionLostError, match="left"):
        sender.gate.poll()


def test_a_window_that_changes_while_a_channel_is_connected_counts_in_the_end(net):
    clock, windows = ManualClock(), []
    channels = tuple(InputChannelSpec(ChannelId(0, sender, 0, 1), "w", "memory:w") for sender in range(2))
    spec = InputSpec(input_index=0, schema=schema_to_text(net.SCHEMA), channels=channels)
    settings = JobSettings(checkpoint_root="memory://x", buffer_debloat_target_ms=1_000)
    gate = InputGate((spec,), settings, lambda: None, clock=clock)
    gate.connect(0, lambda amount, window=0: None)
    gate.receive(0, Outgoing(Batch(net.rows(1)), 100, 0, 0))
    assert gate.poll() is not None
    clock.advance(50)

    def grant(_amount, window=0):
        if not windows:
            windows.append(0)
            assert gate.poll() is None  # the task, in another thread
        windows.append(window)

    gate.connect(1, grant)
    assert windows == [0, 1024, 4096, 1024]
    assert gate.window == 1024


@pytest.mark.parametrize("target_ms", [0, 1_000])
def test_a_gate_announces_its_share_of_the_network_memory_and_gives_no_more(net, target_ms):
    channels = tuple(InputChannelSpec(ChannelId(0, sender, 0, 1), "w", "memory:w") for sender in range(2))
    spec = InputSpec(input_index=0, schema=schema_to_text(net.SCHEMA), channels=channels)
    settings = JobSettings(checkpoint_root="memory://x", buffer_debloat_target_ms=target_ms)
    clock, granted = ManualClock(), []
    gate = InputGate((spec,), settings, lambda: None, clock=clock, share=GateShare(window=3_000, floating=0))
    gate.connect(0, lambda amount, window=0: granted.append((amount, window)))
    assert granted == [(2 << 20, 3_000)]
    gate.receive(0, Outgoing(Batch(net.rows(1)), 2_000, 1 << 20, 0))
    clock.advance(50)
    assert gate.poll() is not None
    assert granted[1:] == [(2_000, 0)]  # what it took, although the sender has a megabyte waiting


@pytest.mark.parametrize("target_ms", [0, 1_000])
def test_a_gate_that_gets_another_share_announces_it_and_keeps_to_a_smaller_one_once_its_rows_are_consumed(
    net, target_ms
):
    channels = tuple(InputChannelSpec(ChannelId(0, sender, 0, 1), "w", "memory:w") for sender in range(2))
    spec = InputSpec(input_index=0, schema=schema_to_text(net.SCHEMA), channels=channels)
    settings = JobSettings(checkpoint_root="memory://x", buffer_debloat_target_ms=target_ms)
    gate = InputGate((spec,), settings, lambda: None, clock=ManualClock(), share=GateShare(1_000, 0))
    windows = []
    gate.connect(0, lambda amount, window=0: windows.append(window))
    gate.resize(GateShare(None, 500))
    full = 1_000 if target_ms else 2 << 20  # without a measurement it does not grow
    assert windows == [1_000, full]
    gate.resize(GateShare(None, 700))
    assert windows == [1_000, full]
    gate.receive(0, Outgoing(Batch(net.rows(1)), 900, 0, 0))
    assert gate.keeps_to_share
    gate.resize(GateShare(300, 0))
    assert windows == [1_000, full, 300]
    assert not gate.keeps_to_share
    assert gate.poll() is not None
    assert gate.keeps_to_share
    assert gate.want.total == (2 * 2 + 8) << 20


def test_a_gate_keeps_to_a_smaller_share_once_it_has_its_floating_bytes_back(net):
    channels = tuple(InputChannelSpec(ChannelId(0, sender, 0, 1), "w", "memory:w") for sender in range(2))
    spec = InputSpec(input_index=0, schema=schema_to_text(net.SCHEMA), channels=channels)
    settings = JobSettings(checkpoint_root="memory://x", buffer_size_bytes=100)
    gate, granted = InputGate((spec,), settings, lambda: None, share=GateShare(None, 400)), []
    gate.connect(0, lambda amount, window=0: granted.append(amount))
    gate.receive(0, Outgoing(Batch(net.rows(1)), 100, 300, 0))
    assert granted == [200, 200]  # its backlog beyond what is outstanding
    gate.resize(GateShare(None, 50))
    assert not gate.keeps_to_share
    assert gate.poll() is not None
    assert not gate.keeps_to_share
    gate.receive(0, Outgoing(Batch(net.rows(1)), 100, 200, 1))
    assert granted == [200, 200]
    assert gate.poll() is not None
    assert gate.keeps_to_share


def test_a_closed_gate_ignores_what_still_arrives(net):
    sender = Sender(net)
    sender.rows(0)
    sender.gate.close()
    sender.rows(0)
    assert sender.gate.poll() is None
    assert sender.gate.bytes_queued == 0


def test_a_waiting_barrier_is_seen_behind_rows_unless_its_channel_is_blocked(net):
    sender = Sender(net)
    sender.rows(0)
    assert not sender.gate.barrier_waiting
    sender.send(0, Barrier(1))
    assert sender.gate.barrier_waiting
    sender.gate.block(0)
    assert not sender.gate.barrier_waiting


def test_rows_arrive_while_those_of_a_checkpoint_are_read_from_a_slow_store(net):
    sender = Sender(net)

    def read():
        arrival = threading.Thread(target=lambda: sender.rows(0), daemon=True)
        arrival.start()
        arrival.join(timeout=10)
        assert not arrival.is_alive(), "the network thread waits for the store"
        yield 0, Batch(net.rows(2))

    sender.gate.restore(read())
    assert [sender.gate.poll()[1].num_rows for _ in range(2)] == [2, 1]
