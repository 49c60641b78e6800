"""Splits of one source subtask wait for each other: which are paused, and that somebody always goes on."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.eventtime.split_watermarks import SplitAlignment, SplitWatermarks

DRIFT = 10


def test_a_split_ahead_of_the_last_one_is_paused_until_that_has_come_as_far():
    aligned = SplitAlignment(DRIFT)
    assert aligned.pause_changes({"a": 11, "b": 0, "c": 10}, 0) == (("a",), ())
    assert aligned.pause_changes({"a": 11, "b": 0, "c": 12}, 0) == (("c",), ())
    assert aligned.pause_changes({"a": 11, "b": 1, "c": 12}, 1) == ((), ("a",))
    assert aligned.paused == {"c"}
    assert aligned.pause_changes({"a": 11, "b": 1, "c": 12}, 1) == ((), ())


def test_a_split_before_its_first_row_holds_the_others():
    assert SplitAlignment(DRIFT).pause_changes({"a": 0, "b": MIN_TIMESTAMP}, MIN_TIMESTAMP) == (("a",), ())


def test_the_group_may_allow_less_than_the_neighbours_and_then_holds_the_last_one_too():
    aligned = SplitAlignment(DRIFT)
    aligned.limit = 3
    assert aligned.pause_changes({"a": 5, "b": 3}, 3) == (("a",), ())
    assert not aligned.pauses_subtask(3)
    assert aligned.pauses_subtask(4)
    aligned.limit = MAX_TIMESTAMP
    assert aligned.pause_changes({"a": 5, "b": 3}, 3) == ((), ("a",))


def test_one_split_alone_waits_as_the_whole_subtask_only():
    aligned = SplitAlignment(DRIFT)
    aligned.limit = 3
    assert aligned.pause_changes({"a": 50}, 50) == ((), ())
    assert aligned.pauses_subtask(50)
    assert not SplitAlignment(DRIFT).pauses_subtask(50), "nobody has said how far it may be"


def test_what_is_read_to_its_end_is_not_resumed():
    aligned = SplitAlignment(DRIFT)
    aligned.pause_changes({"a": 20, "b": 0, "c": 0}, 0)
    assert aligned.pause_changes({"b": 0, "c": 0}, 0) == ((), ())
    assert aligned.paused == frozenset()


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 25)), min_size=1, max_size=60)


@given(STEPS, st.sets(st.sampled_from("abc"), max_size=2))
def test_nobody_reads_far_ahead_of_the_slowest_that_is_not_idle_and_the_slowest_always_reads(steps, idle):
    splits, aligned, marks = SplitWatermarks(1), SplitAlignment(DRIFT), dict.fromkeys("abc", 0)
    for split_id in marks:
        splits.add(split_id, 0)
    splits.advance_time(0, idle, backpressured=False)
    splits.advance_time(1, idle, backpressured=False)
    busy = sorted(set(marks) - idle)
    for split_id, step in steps:
        if split_id in idle or split_id in aligned.paused:
            continue
        assert marks[split_id] <= min(marks[b] for b in busy) + DRIFT
        marks[split_id] += step
        splits.advance(split_id, marks[split_id])
        splits.take_advance()
        aligned.pause_changes(splits.unfinished, splits.combined)
        slowest = min(busy, key=marks.__getitem__)
        assert slowest not in aligned.paused
