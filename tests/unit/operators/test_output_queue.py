"""Output in pieces: in order, so many rows at a time, and nothing begun before its turn."""

import pyarrow as pa

from penstock.core.elements import Batch, Watermark, WatermarkStatus
from penstock.operators.joins.join_operator import OutputQueue


class Out(list):
    def batch(self, batch):
        self.append(batch.num_rows)

    def watermark(self, watermark):
        self.append(watermark)

    def status(self, status):
        self.append(status)


def rows(count):
    return Batch(pa.record_batch({"x": pa.array([0] * count)}))


def test_so_many_rows_come_at_a_time_and_what_follows_them_after_the_last():
    pieces, out = OutputQueue(10), Out()
    pieces.begin(iter([rows(4), rows(5), rows(6), rows(3), Watermark(7), rows(2), WatermarkStatus(idle=True)]), out)
    assert out == [4, 5, 6]
    assert pieces.has_pending_output
    assert pieces.emit_ready(out)
    assert out[3:] == [3, Watermark(7), 2, WatermarkStatus(idle=True)]
    assert not pieces.has_pending_output
    assert not pieces.emit_ready(out)


def test_work_begins_when_the_work_before_it_is_done():
    pieces, out, begun = OutputQueue(10), Out(), []

    def second():
        begun.append(True)
        yield rows(1)

    pieces.begin(iter([rows(10), rows(10)]), out)
    pieces.begin(second(), out)
    pieces.emit_ready(out)
    assert not begun
    pieces.drain(out)
    assert begun
    assert out == [10, 10, 1]


def test_work_that_gives_nothing_is_done_at_once():
    pieces, out = OutputQueue(10), Out()
    pieces.begin(iter(()), out)
    assert not pieces.has_pending_output
    assert out == []
