"""One outgoing channel: coalescing, what waits behind what, bounds, and who is told."""

import pytest

from penstock.core.elements import Barrier, Batch, EndOfInput, Watermark, WatermarkStatus
from penstock.network.subpartition import ChannelLimits, ConnectionLostError, PartitionBackpressure, Subpartition

IDLE, ACTIVE = WatermarkStatus(idle=True), WatermarkStatus(idle=False)


class Channel:
    """A subpartition with its receiver's side in the test's hand."""

    def __init__(self, net, timeout=100, size=100_000, credit=1 << 40, on_available=None):
        self.budget = PartitionBackpressure(on_available)
        limits = ChannelLimits(buffer_size_bytes=size, buffer_timeout_ms=timeout, exclusive_bytes=2 * size)
        self.sub = Subpartition(limits, self.budget)
        self.calls = 0
        self.sub.attach(self.ready)
        if credit:
            self.sub.grant(credit)

    def ready(self):
        self.calls += 1

    def add(self, rows, due):
        self.sub.add_rows(rows, rows.nbytes, due)

    def take(self):
        found = []
        while (element := self.sub.poll()) is not None:
            item = element.item
            found.append(item.num_rows if isinstance(item, Batch) else item)
        return found


def test_small_slices_are_put_together(net):
    channel = Channel(net)
    for n in range(10):
        channel.add(net.rows(3, first=3 * n), 0)
    assert channel.take() == []
    channel.sub.flush()
    element = channel.sub.poll()
    assert element.item.data.column("k").to_pylist() == list(range(30))


def test_a_full_buffer_leaves_without_waiting(net):
    channel = Channel(net, size=500)
    for n in range(20):
        channel.add(net.rows(5, first=n, text="y" * 20), 0)
    sizes = channel.take()
    assert len(sizes) > 2
    assert max(sizes) < 25


def test_the_deadline_is_that_of_the_first_element(net):
    channel = Channel(net)
    assert channel.sub.deadline_ms is None
    channel.add(net.rows(1), 125)
    channel.add(net.rows(1), 160)
    assert channel.sub.deadline_ms == 125
    channel.sub.flush()
    assert channel.sub.deadline_ms is None


@pytest.mark.parametrize(
    ("now", "left", "due"),
    [
        (25, 0, 100),  # a time-out after what left last
        (25, 24.9, 100),  # on the grid
        (26, 25, 125),
        (31, 25, 125),
        (200, 0, 205),  # nothing has left for long: nearly at once
        (99, 0, 104),
    ],
)
def test_messages_leave_once_a_time_out_and_the_first_of_them_nearly_at_once(now, left, due):
    limits = ChannelLimits(buffer_size_bytes=1, buffer_timeout_ms=100, exclusive_bytes=1)
    assert limits.due_ms(now, left) == due


def test_company_is_waited_for_a_part_of_a_short_time_out_and_not_at_all_without_one():
    for timeout, due in ((10, 1000.5), (10_000, 1005), (0, 1000)):
        limits = ChannelLimits(buffer_size_bytes=1, buffer_timeout_ms=timeout, exclusive_bytes=1)
        assert limits.due_ms(1000, -100_000) == due


def test_without_timeout_everything_leaves_at_once(net):
    channel = Channel(net, timeout=0)
    channel.add(net.rows(1), 0)
    channel.sub.add_event(Watermark(1), 0)
    channel.add(net.rows(2), 0)
    assert channel.take() == [1, Watermark(1), 2]


def test_a_watermark_does_not_flush_and_comes_behind_all_rows_of_the_flush(net):
    channel = Channel(net)
    channel.add(net.rows(1), 0)
    channel.sub.add_event(Watermark(1), 0)
    channel.add(net.rows(2), 0)
    channel.sub.add_event(Watermark(2), 0)
    assert channel.take() == []
    channel.sub.flush()
    assert channel.take() == [3, Watermark(2)]


def test_a_watermark_alone_waits_for_its_deadline_too(net):
    channel = Channel(net)
    channel.sub.add_event(Watermark(1), 100)
    channel.sub.add_event(Watermark(2), 150)
    assert channel.sub.deadline_ms == 100
    channel.sub.flush()
    assert channel.take() == [Watermark(2)]


def test_a_waiting_watermark_in_the_queue_is_replaced_by_a_newer_one(net):
    channel = Channel(net, timeout=0, credit=0)
    for n in range(100):
        channel.sub.add_event(Watermark(n), 0)
    channel.sub.grant(1000)
    assert channel.take() == [Watermark(99)]


@pytest.mark.parametrize(
    ("events", "sent"),
    [
        ([Watermark(1), IDLE], [Watermark(1), IDLE]),
        ([IDLE, ACTIVE, Watermark(2)], [ACTIVE, Watermark(2)]),
        ([Watermark(1), IDLE, ACTIVE, Watermark(2), Watermark(3)], [Watermark(1), ACTIVE, Watermark(3)]),
        ([IDLE, IDLE], [IDLE]),
    ],
)
def test_status_and_watermarks_keep_their_order(net, events, sent):
    channel = Channel(net)
    for event in events:
        channel.sub.add_event(event, 0)
    assert channel.take() == []
    channel.sub.flush()
    assert channel.take() == sent


def test_rows_never_overtake_a_status(net):
    channel = Channel(net)
    channel.sub.add_event(ACTIVE, 0)
    channel.add(net.rows(1), 0)
    channel.sub.flush()
    assert channel.take() == [ACTIVE, 1]


def test_many_changes_of_status_do_not_pile_up(net):
    channel = Channel(net)
    for n in range(100):
        channel.sub.add_event(WatermarkStatus(idle=n % 2 == 0), 0)
        channel.sub.add_event(Watermark(n), 0)
    assert len(channel.take()) >= 190


def test_barriers_and_the_end_flush(net):
    channel = Channel(net)
    channel.add(net.rows(1), 0)
    channel.sub.add_event(Watermark(1), 0)
    channel.sub.add_barrier(Barrier(1))
    channel.add(net.rows(2), 0)
    channel.sub.add_end()
    channel.sub.add_barrier(Barrier(2))
    assert channel.take() == [1, Watermark(1), Barrier(1), 2, EndOfInput(), Barrier(2)]
    assert channel.sub.drained


def test_nothing_leaves_before_the_receiver_has_granted(net):
    channel = Channel(net, timeout=0, credit=0)
    channel.sub.add_event(Watermark(1), 0)
    channel.add(net.rows(1), 0)
    assert channel.calls == 0
    assert channel.take() == []
    channel.sub.grant(1000)
    assert channel.calls == 1
    assert channel.take() == [Watermark(1), 1]


def test_events_need_no_credit_but_wait_behind_rows_that_do(net):
    channel = Channel(net, timeout=0, size=1000, credit=1)
    channel.sub.add_barrier(Barrier(1))
    channel.add(net.rows(9), 0)
    channel.sub.add_barrier(Barrier(2))
    assert channel.take() == [Barrier(1)]
    channel.sub.grant(5000)
    assert channel.take() == [9, Barrier(2)]


def test_the_carrier_is_told_once_until_it_finds_nothing(net):
    channel = Channel(net, timeout=0)
    channel.add(net.rows(1), 0)
    channel.add(net.rows(1), 0)
    assert channel.calls == 1
    channel.take()
    channel.add(net.rows(1), 0)
    assert channel.calls == 2


def test_a_large_batch_is_cut_to_the_buffer_size(net):
    channel = Channel(net, timeout=0, size=1000)
    channel.add(net.rows(1000), 0)
    sizes = channel.take()
    assert sum(sizes) == 1000
    assert len(sizes) > 5


def test_a_single_row_larger_than_the_budget_passes_alone(net):
    channel = Channel(net, timeout=0, size=1000, credit=1500)
    channel.add(net.rows(1), 0)
    channel.add(net.rows(1, text="x" * 50_000), 0)
    assert channel.take() == [1]
    channel.sub.grant(1000)
    assert channel.take() == [1]


def test_the_producer_is_asked_to_stop_and_told_when_it_may_go_on(net):
    told = []
    channel = Channel(net, timeout=0, size=1000, credit=0, on_available=lambda: told.append(1))
    while channel.budget.available:
        channel.add(net.rows(10, text="z" * 20), 0)
    assert channel.sub.queued_bytes >= 2000
    channel.add(net.rows(10), 0)  # an operator call may overdraw
    channel.sub.grant(1 << 30)
    channel.take()
    assert told == [1]
    assert channel.budget.available
    assert channel.sub.queued_bytes == 0


def test_a_lost_receiver_is_the_producers_error(net):
    channel = Channel(net, timeout=0)
    channel.add(net.rows(1), 0)
    assert channel.sub.fail("worker b is gone")
    with pytest.raises(ConnectionLostError, match="worker b is gone"):
        channel.add(net.rows(1), 0)
    with pytest.raises(ConnectionLostError):
        channel.sub.add_barrier(Barrier(1))
    assert channel.take() == []


def test_a_receiver_that_leaves_after_the_end_was_delivered_loses_nothing(net):
    channel = Channel(net, timeout=0)
    channel.sub.add_end()
    channel.take()
    assert not channel.sub.fail("worker b has left")
    channel.sub.add_barrier(Barrier(9))


def test_elements_are_numbered_and_the_backlog_is_announced(net):
    channel = Channel(net, timeout=0)
    for _ in range(3):
        channel.add(net.rows(2), 0)
    elements = [channel.sub.poll() for _ in range(3)]
    assert [e.sequence for e in elements] == [0, 1, 2]
    assert elements[0].backlog == elements[1].size + elements[2].size
    assert elements[2].backlog == 0
