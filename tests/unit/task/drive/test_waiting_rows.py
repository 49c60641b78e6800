"""Rows that wait for state: any schedule of batches and fetches keeps every row, and the order of each key's rows."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.support.depth import examples

from penstock.core.elements import Batch, Watermark, WatermarkStatus
from penstock.eventtime.watermarks import WatermarkMerger
from penstock.kernels.keys.hashing import hash_columns
from penstock.task.drive.waiting_rows import WaitingRows

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("n", pa.int64())])
KEYS = 6


def batch(rows, *, combined=False):
    columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
    return Batch(pa.record_batch(columns, schema=SCHEMA), combined=combined)


def rows_of(batches):
    return [tuple(row.values()) for one in batches for row in one.data.to_pylist()]


class State:
    """The keys whose state was fetched."""

    def __init__(self, fetched=()):
        self.hashes = hash_columns(batch([(k, 0) for k in range(KEYS)]).data, ("k",))
        self.fetched, self.changes, self.awaited = set(fetched), 0, []

    @property
    def complete(self):
        return len(self.fetched) == KEYS

    def unfetched(self, hashes):
        missing = [self.hashes[k] for k in range(KEYS) if k not in self.fetched]
        return np.isin(hashes, np.array(missing, np.int64))

    def wait_for(self, hashes):
        found = {int(h): k for k, h in enumerate(self.hashes)}
        self.awaited += sorted({found[h] for h in hashes.tolist()})

    def fetch(self, *keys):
        self.fetched |= set(keys)
        self.changes += 1


def of_keys(rows):
    return {k: [row for row in rows if row[0] == k] for k in range(KEYS)}


def drained(waiting):
    found = []
    while (taken := waiting.take()) is not None:
        found.append(taken)
    return found


KEY = st.integers(0, KEYS - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.lists(KEY, min_size=1, max_size=8), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("fetch"), st.lists(KEY, max_size=3)),
        st.tuples(st.just("drop"), KEY),
        st.tuples(st.just("take")),
        st.tuples(st.just("release")),
    ),
    min_size=5,
    max_size=40,
)


@examples(400)
@given(STEPS)
def test_any_schedule_keeps_the_rows_of_each_key_in_their_order(steps):
    state = State()
    waiting = WaitingRows(state, [("k",)], 1 << 20)
    sent, processed = [], []
    for number, (what, *arguments) in enumerate(steps):
        if what == "batch":
            keys, index, combined = arguments
            rows = [(k, 100 * number + place) for place, k in enumerate(keys)]
            sent += rows
            passed = waiting.split(batch(rows, combined=combined), index)
            processed += [] if passed is None else rows_of([passed])
            assert passed is None or passed.combined == combined
        elif what == "fetch":
            state.fetch(*arguments[0])
        elif what == "drop":
            state.fetched.discard(arguments[0])
            state.changes += 1
        elif what == "take":
            taken = waiting.take()
            processed += [] if taken is None else rows_of([taken[1]])
        else:
            waiting.release()
        assert of_keys(processed + rows_of(one for _, one in waiting.batches)) == of_keys(sent)
    waiting.release()
    processed += rows_of(one for _, one in drained(waiting))
    assert of_keys(processed) == of_keys(sent)
    assert not waiting


def test_rows_whose_state_is_there_pass_and_the_others_are_asked_for():
    state = State(fetched={1, 2})
    waiting = WaitingRows(state, [("k",)], 1 << 20)
    assert rows_of([waiting.split(batch([(1, 1), (3, 2), (2, 3), (0, 4), (3, 5)]), 0)]) == [(1, 1), (2, 3)]
    assert state.awaited == [0, 3]
    assert waiting.take() is None
    state.fetch(3)
    assert [(index, rows_of([rows])) for index, rows in drained(waiting)] == [(0, [(3, 2), (3, 5)])]
    assert rows_of(rows for _, rows in waiting.batches) == [(0, 4)]


def test_a_row_waits_for_an_earlier_one_of_its_key_whose_state_has_come():
    state = State()
    waiting = WaitingRows(state, [("k",)], 1 << 20)
    assert waiting.split(batch([(0, 1)]), 0) is None
    state.fetch(0)
    assert rows_of([waiting.split(batch([(0, 2)]), 0) or batch([(9, 9)])]) == [(9, 9)]
    assert rows_of(rows for _, rows in drained(waiting)) == [(0, 1), (0, 2)]


def test_batches_of_an_input_that_waited_become_one():
    state = State()
    waiting = WaitingRows(state, [("k",)], 1 << 20)
    for number in range(4):
        waiting.split(batch([(0, number), (1, number)]), 0)
    waiting.split(batch([(0, 4)]), 1)
    state.fetch(0)
    assert [(i, rows_of([rows])) for i, rows in drained(waiting)] == [(0, [(0, n) for n in range(4)]), (1, [(0, 4)])]


def test_it_is_full_until_rows_have_left():
    state = State()
    waiting = WaitingRows(state, [("k",)], 32)
    waiting.split(batch([(0, 1)]), 0)
    assert not waiting.full
    waiting.split(batch([(0, 2)]), 0)
    assert waiting.full
    state.fetch(0)
    drained(waiting)
    assert not waiting.full


def test_each_input_has_its_key():
    state = State(fetched={1})
    waiting = WaitingRows(state, [("k",), ("n",)], 1 << 20)
    assert rows_of([waiting.split(batch([(0, 1), (1, 0)]), 1)]) == [(0, 1)]


def apply(merger, channel, element):
    if isinstance(element, Watermark):
        merger.update(channel, element.timestamp)
    else:
        merger.status(channel, idle=element.idle)


@examples(400)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 4)), max_size=20), st.integers(0, 20))
def test_watermarks_and_statuses_that_waited_have_the_effect_of_those_that_did_not(steps, held_from):
    """A step advances the watermark of a channel, or makes it idle or active."""
    state = SimpleNamespace(only_rows=True)
    waiting = WaitingRows(state, [("k",)], 1 << 20)
    expected, found, marks = WatermarkMerger(3), WatermarkMerger(3), [0] * 3
    idle = [False] * 3
    for number, (channel, more) in enumerate(steps):
        marks[channel] += max(0, more)
        idle[channel] ^= more < 0
        element = WatermarkStatus(idle=idle[channel]) if more < 0 else Watermark(marks[channel])
        apply(expected, channel, element)
        if number < held_from:
            apply(found, channel, element)
        else:
            waiting.hold(channel, element)
    assert waiting.take_held() is None
    state.only_rows = False
    while (element := waiting.take_held()) is not None:
        apply(found, *element)
    assert (found.combined, found.idle) == (expected.combined, expected.idle)


def test_no_more_is_read_when_many_watermarks_wait():
    state = SimpleNamespace(only_rows=True)
    waiting = WaitingRows(state, [("k",)], 1 << 20)
    for number in range(1 << 12):
        assert not waiting.full
        waiting.hold(0, Watermark(number))
        waiting.hold(0, Watermark(number))
        waiting.hold(1, Watermark(number))
        if waiting.full:
            break
    assert waiting.full
    state.only_rows = False
    while waiting.take_held() is not None:
        pass
    assert not waiting.full
