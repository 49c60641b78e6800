"""Chains with row functions are fed in pieces of a bounded time, others whole batches."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from penstock.core.clock import ManualClock
from penstock.core.elements import Batch
from penstock.graph.job_graph import OperatorSpec
from penstock.task.drive.batch_sizer import FIRST_ROWS, MOST_ROWS, TARGET_MS, BatchSizer, feeds_rows
from penstock.task.drive.source_polling import poll
from penstock.task.drive.subtask import StepResult


class Chain:
    """Takes `ms` for a row, and `fixed` for a piece."""

    def __init__(self, clock, ms=0.0):
        self.clock, self.ms, self.fixed = clock, ms, 0.0
        self.seen = []
        self.asked = []
        self.links = [SimpleNamespace(source=SimpleNamespace(poll_rows=None), records_out=0)]

    def batch(self, batch, input_index):
        assert input_index == 1
        self.seen.append(batch.data.column(0).to_pylist())
        self.clock.advance(self.fixed + self.ms * batch.num_rows)

    def poll(self, *, backpressured):
        assert not backpressured
        rows = self.links[0].source.poll_rows
        self.asked.append(rows)
        self.links[0].records_out += rows
        self.clock.advance(self.fixed + self.ms * rows)
        return True


def operators_of(kinds):
    """`kind` or `kind exact`, which emits a watermark after each row that raises it."""
    names = [kind.partition(" ") for kind in kinds]
    return [
        OperatorSpec(uid="o", name="o", kind=kind, config={"watermarks": {"exact": bool(exact)}})
        for kind, _, exact in names
    ]


def pieces_of(ms=0.0):
    clock = ManualClock()
    chain = Chain(clock, ms)
    return chain, BatchSizer(chain, clock)


def feed(pieces, count):
    pieces.feed(Batch(pa.record_batch({"n": list(range(count))})), 1)
    while pieces.waiting:
        pieces.feed_next()


def test_every_row_is_fed_once_and_in_order_in_pieces_that_fit_the_cache():
    chain, pieces = pieces_of()
    feed(pieces, 20_000)
    assert [n for piece in chain.seen for n in piece] == list(range(20_000))
    sizes = [len(piece) for piece in chain.seen]
    assert sizes[0] == FIRST_ROWS, "nothing is known of the first"
    assert set(sizes[1:-1]) == {MOST_ROWS}
    chain.seen.clear()
    feed(pieces, 10)
    assert [len(piece) for piece in chain.seen] == [10]


def test_where_a_row_takes_long_a_piece_has_fewer():
    chain, pieces = pieces_of(ms=0.1)
    feed(pieces, 1000)
    assert {len(piece) for piece in chain.seen[1:-1]} == {TARGET_MS / 0.1}
    chain.ms = 100.0
    feed(pieces, 2000)
    sizes = [len(piece) for piece in chain.seen[-600:-1]]
    assert set(sizes) == {1, 4}
    assert sizes.count(4) <= 3, "more are tried now and then"


def test_a_row_that_takes_some_milliseconds_delays_a_barrier_by_few_rows():
    chain, pieces = pieces_of(ms=4.0)
    feed(pieces, 2000)
    assert {len(piece) for piece in chain.seen[-200:-1]} <= {2, 3, 8}


@pytest.mark.parametrize("fixed", [8.0, 30.0, 1000.0])
def test_a_cost_of_every_piece_in_place_of_one_of_every_row_makes_them_large_again(fixed):
    chain, pieces = pieces_of(ms=4.0)
    feed(pieces, 2000)
    assert pieces.rows <= 8
    chain.ms, chain.fixed = 0.0, fixed
    feed(pieces, 20_000)
    assert pieces.rows >= FIRST_ROWS


def test_one_slow_piece_changes_little():
    chain, pieces = pieces_of(ms=0.005)
    feed(pieces, 5000)
    assert pieces.rows == 2000
    chain.fixed = 50.0
    feed(pieces, 2000)
    assert pieces.rows < 1000
    chain.fixed = 0.0
    feed(pieces, 5000)
    assert pieces.rows == 2000


@pytest.mark.parametrize("fixed", [4.0, 9.0, 11.0, 30.0, 1000.0])
@pytest.mark.parametrize("ms", [0.0, 0.001, 0.01])
def test_a_cost_of_every_piece_makes_them_no_smaller_than_that_helps(fixed, ms):
    chain, pieces = pieces_of(ms=ms)
    feed(pieces, 50_000)
    rows = pieces.rows
    chain.fixed = fixed
    chain.seen.clear()
    feed(pieces, 200_000)
    spent = len(chain.seen) * fixed + 200_000 * ms
    least = 200_000 / rows * fixed + 200_000 * ms
    assert spent < 3 * least
    chain.fixed = 0.0
    left = 3_000_000
    while pieces.rows != rows and left:
        feed(pieces, 100_000)
        left -= 100_000
    assert pieces.rows == rows


def test_a_cost_of_every_piece_from_the_first_one_on_does_not_keep_them_small():
    chain, pieces = pieces_of(ms=0.001)
    chain.fixed = 11.0
    for _ in range(100):
        poll(chain, pieces, chain.clock)
    assert pieces.rows == MOST_ROWS


def test_a_source_in_front_of_row_functions_is_asked_for_a_piece():
    chain, pieces = pieces_of(ms=0.05)
    assert all(poll(chain, pieces, chain.clock) for _ in range(3))
    assert chain.asked == [FIRST_ROWS, 200, 200]


@pytest.mark.parametrize("limited", [True, False])
def test_a_source_is_asked_for_no_more_rows_than_have_room(limited):
    chain, pieces = pieces_of()
    limit = pieces if limited else None
    poll(chain, limit, chain.clock, 10)
    poll(chain, limit, chain.clock, 1 << 30)
    poll(chain, limit, chain.clock)
    assert chain.asked[0] == 10
    assert min(chain.asked[1:]) >= 64


@pytest.mark.parametrize(
    ("kinds", "cuts"),
    [
        (["map"], True),
        (["source", "project", "filter_rows", "sink"], True),
        (["process", "window_aggregate"], True),
        (["window_aggregate", "map"], False),
        (["map_batches", "map"], False),
        (["map", "map_batches"], False),
        (["project", "sink"], False),
        (["project", "assign_watermarks exact", "map_batches"], True),
        (["assign_watermarks", "sink"], False),
        (["source exact", "window_aggregate"], True),  # one poll of tens of thousands of rows would take seconds
        (["source", "window_aggregate"], False),
    ],
)
def test_only_rows_on_their_way_to_a_row_function_are_cut(kinds, cuts):
    assert feeds_rows(operators_of(kinds)) is cuts


def test_a_barrier_behind_a_batch_waits_for_all_its_pieces_and_mails_do_not(world, batch_of):
    w = world()
    w.deploy()
    w.settle()
    sink = w.subtasks("sink")[0]
    sink._batch_sizer = BatchSizer(sink._chain, w.clock)
    w.sources[0].script.append(batch_of(*range(FIRST_ROWS + 5)))
    while w.subtasks("source")[0].step() is StepResult.BUSY:
        pass
    w.trigger(1)
    while w.subtasks("source")[0].step() is StepResult.BUSY:
        pass
    w.transport.pump_all()
    while not w.sink.seen:
        sink.step()
    assert len(w.sink.seen) == FIRST_ROWS
    mails = []
    sink.mailbox.post(lambda: mails.append(len(w.sink.seen)))
    w.settle()
    assert mails == [FIRST_ROWS]
    assert w.sink.seen == [*range(FIRST_ROWS + 5), ("barrier", 1)]
