"""The outgoing edge: routing to channels, deadlines, and refusal of rows the receiver could not read."""

import msgspec
import pyarrow as pa
import pytest

from penstock.config.settings import JobSettings
from penstock.core.clock import ManualClock
from penstock.core.elements import Barrier, Batch, EndOfInput, Watermark, WatermarkStatus
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import Broadcast, KeyGroup, Rebalance
from penstock.graph.task_deployment import ChannelId, OutputChannelSpec, OutputSpec
from penstock.network.credit import exclusive_bytes
from penstock.network.output import OutputOptions, ResultPartition


def partition(net, partitioner, channels, **settings):
    clock = ManualClock()
    spec = OutputSpec(
        partitioner=partitioner,
        schema=schema_to_text(net.SCHEMA),
        channels=tuple(OutputChannelSpec(ChannelId(0, 0, i, 1), "b", "memory:b") for i in range(channels)),
    )
    changed = msgspec.structs.replace(net.SMALL, **settings)
    return ResultPartition(spec, OutputOptions(changed, clock, kernels=net.TWINS)), clock


def take(channel):
    channel.attach(lambda: None)
    channel.grant(1 << 40)
    found = []
    while (element := channel.poll()) is not None:
        found.append(element.item)
    return found


def test_every_channel_gets_its_rows_and_all_events(net):
    output, _ = partition(net, KeyGroup(("k",)), 3)
    output.batch(Batch(net.rows(100)))
    output.watermark(Watermark(5))
    output.status(WatermarkStatus(idle=True))
    output.barrier(Barrier(1))
    output.end()
    rows = 0
    for channel in output.channels:
        *data, watermark, status, barrier, end = take(channel)
        rows += sum(item.num_rows for item in data)
        assert (watermark, status, barrier, end) == (Watermark(5), WatermarkStatus(idle=True), Barrier(1), EndOfInput())
    assert rows == 100
    assert output.records_out == 100
    assert output.bytes_out > 800


@pytest.mark.parametrize(
    ("width", "own"), [(1, 2 << 20), (8, 2 << 20), (32, 512 << 10), (64, 256 << 10), (1024, 64 << 10)]
)
def test_the_channels_of_a_wide_edge_share_out_what_an_end_may_hold(width, own):
    assert exclusive_bytes(JobSettings(checkpoint_root="memory://x"), width) == own


def test_a_small_setting_is_not_raised_for_a_narrow_edge_nor_lowered_for_a_wide_one(net):
    assert exclusive_bytes(net.SMALL, 1) == exclusive_bytes(net.SMALL, 1000) == 2000


@pytest.mark.parametrize(("width", "rows"), [(1, 16_384), (64, 8_192)])
def test_messages_stay_large_on_a_wide_edge(width, rows):
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64(), nullable=False)])
    channel = OutputChannelSpec(ChannelId(0, 0, 0, 1), "b", "memory:b")
    spec = OutputSpec(partitioner=Rebalance(), schema=schema_to_text(schema), channels=(channel,), width=width)
    output = ResultPartition(spec, OutputOptions(JobSettings(checkpoint_root="memory://x"), ManualClock()))
    for _ in range(64):
        output.batch(Batch(pa.record_batch([pa.array([1] * 512), pa.array([2] * 512)], schema=schema)))
    assert [batch.num_rows for batch in take(output.channels[0])] == [rows] * (32_768 // rows)


def test_only_what_is_due_is_flushed(net):
    output, clock = partition(net, Rebalance(), 2, buffer_timeout_ms=100, buffer_size_bytes=1 << 20)
    output.batch(Batch(net.rows(1)))
    clock.advance(3)
    output.batch(Batch(net.rows(1)))
    assert output.next_deadline_ms == 5
    output.flush_due(4)
    assert output.next_deadline_ms == 5
    output.flush_due(5)
    assert output.next_deadline_ms == 8
    assert sorted(len(take(channel)) for channel in output.channels) == [0, 1]
    output.flush()
    assert output.next_deadline_ms is None
    assert output.queued_bytes > 0


def test_what_follows_a_message_waits_for_the_time_out(net):
    output, clock = partition(net, Rebalance(), 1, buffer_timeout_ms=100, buffer_size_bytes=1 << 20)
    sent = []
    for now in range(0, 400, 10):
        clock.advance(now - clock.monotonic_ms())
        output.flush_due(now)
        sent += [(now, batch.num_rows) for batch in take(output.channels[0])]
        output.batch(Batch(net.rows(1)))
    assert sent == [(10, 1), (100, 9), (200, 10), (300, 10)]


def test_one_full_channel_makes_the_partition_unavailable(net):
    output, _ = partition(net, KeyGroup(("k",)), 2)
    while output.available:
        output.channels[1].add_rows(net.rows(10, text="z" * 30), 400, 0)
    take(output.channels[0])
    assert not output.available
    take(output.channels[1])
    assert output.available


def test_rows_of_another_schema_are_refused(net):
    output, _ = partition(net, KeyGroup(("k",)), 1)
    with pytest.raises(GraphError, match=r"k: string.*k: int64"):
        output.batch(Batch(pa.record_batch({"k": ["a"], "v": ["b"]})))


def test_a_difference_in_nullability_alone_is_mended(net):
    output, _ = partition(net, KeyGroup(("k",)), 1)
    output.batch(Batch(pa.record_batch({"k": [1], "v": ["b"]})))
    (batch,) = take(output.channels[0])
    assert batch.data.schema.equals(net.SCHEMA)


def test_no_rows_send_nothing(net):
    output, _ = partition(net, KeyGroup(("k",)), 1)
    output.batch(Batch(net.rows(0)))
    assert take(output.channels[0]) == []


def test_closed_channels_hold_nothing(net):
    output, _ = partition(net, KeyGroup(("k",)), 1)
    output.batch(Batch(net.rows(10)))
    output.close()
    assert output.queued_bytes == 0
    assert take(output.channels[0]) == []


def test_columns_the_receiver_did_not_ask_for_stay(net):
    output, _ = partition(net, Broadcast(), 1)
    rows = net.rows(3)
    wide = rows.append_column("more", rows.column("k")).select(["more", "k", "v"])
    output.batch(Batch(wide))
    output.flush()
    (batch,) = take(output.channels[0])
    assert batch.data.equals(rows)


def messages(output):
    return [[e if isinstance(e, Watermark | WatermarkStatus) else e.num_rows for e in take(c)] for c in output.channels]


def test_few_rows_are_split_together_when_their_time_out_has_come(net):
    output, clock = partition(net, KeyGroup(("k",)), 2, buffer_timeout_ms=10, buffer_size_bytes=1 << 20)
    for first in range(0, 50, 10):
        output.batch(Batch(net.rows(10, first)))
        output.watermark(Watermark(first))
        clock.advance(1)
    assert output.queued_bytes > 0
    assert output.next_deadline_ms == 0.5, "they wait since the first came"
    output.flush_due(0.4)
    assert messages(output) == [[], []]
    output.flush_due(5)
    assert output.next_deadline_ms is None
    (left, last), (right, same) = messages(output)
    assert left + right == 50, "one message a channel"
    assert last == same == Watermark(40), "the newest watermark is behind the rows"


def test_rows_worth_a_split_take_the_waiting_ones_along_and_order_stays(net):
    output, _ = partition(net, KeyGroup(("k",)), 2, buffer_timeout_ms=10, buffer_size_bytes=1000)
    for first, rows in ((0, 5), (5, 5), (10, 500), (510, 5)):
        output.batch(Batch(net.rows(rows, first)))
    output.flush()
    for channel in output.channels:
        keys = [key for e in take(channel) for key in e.data.column("k").to_pylist()]
        assert keys == sorted(keys)
        assert keys


@pytest.mark.parametrize("how", ["status", "barrier", "end", "flush"])
def test_nothing_overtakes_the_waiting_rows(net, how):
    output, _ = partition(net, KeyGroup(("k",)), 2, buffer_timeout_ms=10, buffer_size_bytes=1 << 20)
    output.batch(Batch(net.rows(20)))
    output.watermark(Watermark(7))
    if how == "status":
        output.status(WatermarkStatus(idle=True))
        output.flush()
    else:
        {"barrier": lambda: output.barrier(Barrier(1)), "end": output.end, "flush": output.flush}[how]()
    for channel in output.channels:
        rows, watermark, *event = take(channel)
        assert rows.num_rows > 0
        assert watermark == Watermark(7)
        assert len(event) == (how != "flush")
    assert output.queued_bytes == 0


class Halved:
    """Keeps every other row, of batches with an even number of them."""

    def combine(self, batch):
        if batch.num_rows % 2:
            return None
        kept = batch.take(pa.array(range(0, batch.num_rows, 2)))
        return pa.RecordBatch.from_arrays([kept.column(0), kept.column(0)], names=["k", "twice"])


def test_combined_rows_go_by_key_and_never_share_a_batch_with_others(net):
    output, _ = partition(net, KeyGroup(("k",)), 2, buffer_timeout_ms=100, buffer_size_bytes=1 << 20)
    output.combine_with(Halved())
    output._min_split_bytes = 1
    for count in (40, 20, 9, 30):
        output.batch(Batch(net.rows(count)))
    output.watermark(Watermark(1))
    output.flush()
    assert (output.records_out, output.records_combined) == (99, 45)
    found = [take(channel) for channel in output.channels]
    rows = {True: 0, False: 0}
    for elements in found:
        assert elements[-1] == Watermark(1)
        assert [batch.combined for batch in elements[:-1]] == [True, False, True]
        for batch in elements[:-1]:
            assert batch.data.schema.names == (["k", "twice"] if batch.combined else net.SCHEMA.names)
            rows[batch.combined] += batch.num_rows
    assert rows == {True: 45, False: 9}


def test_rows_have_room_in_the_windows_of_their_receivers(net):
    output, _ = partition(net, KeyGroup(("k",)), 2)
    assert output.room_rows is None
    for channel in output.channels:
        channel.grant(2000, 200)
    output.batch(Batch(net.rows(1)))
    room = output.room_rows
    output.batch(Batch(net.rows(1)))
    assert 1 <= output.room_rows < room
    output.batch(Batch(net.rows(100)))
    assert not output.available
    for channel in output.channels:
        channel.grant(0, 1 << 20)
    assert output.available
    assert output.room_rows is None


@pytest.mark.parametrize("partitioner", [Rebalance(), Broadcast()])
def test_a_batch_that_goes_whole_to_a_channel_has_room_in_its_window(net, partitioner):
    output, _ = partition(net, partitioner, 4)
    for channel in output.channels:
        channel.grant(2000, 200)
    output.batch(Batch(net.rows(1)))
    assert output.room_rows <= 200 / output._bytes_of_row
