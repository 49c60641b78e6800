"""Watermarks per split: minimum, idleness, restore."""

from penstock.core.elements import MIN_TIMESTAMP
from penstock.eventtime.split_watermarks import SplitWatermarks


def two_splits(timeout=None, floor=MIN_TIMESTAMP):
    watermarks = SplitWatermarks(timeout, floor)
    watermarks.add("a", None)
    watermarks.add("b", None)
    return watermarks


def test_a_split_without_rows_holds_the_minimum_back():
    watermarks = two_splits()
    watermarks.advance("a", 10)
    assert watermarks.take_advance() is None
    watermarks.advance("b", 7)
    assert watermarks.take_advance() == 7
    assert watermarks.take_advance() is None, "emitted only when it advanced"


def test_idleness_needs_the_time_out_of_being_caught_up():
    watermarks = two_splits(timeout=100)
    watermarks.advance("a", 10)
    watermarks.advance_time(0, ["b"], backpressured=False)
    watermarks.advance_time(99, ["b"], backpressured=False)
    assert watermarks.take_advance() is None
    watermarks.advance_time(100, ["b"], backpressured=False)
    assert watermarks.take_advance() == 10


def test_a_fetch_that_is_pending_starts_the_time_anew():
    watermarks = two_splits(timeout=100)
    watermarks.advance("a", 10)
    for now, caught_up in ((0, ["b"]), (60, []), (120, ["b"]), (219, ["b"])):
        watermarks.advance_time(now, caught_up, backpressured=False)
    assert watermarks.take_advance() is None
    watermarks.advance_time(220, ["b"], backpressured=False)
    assert watermarks.take_advance() == 10


def test_an_outage_ends_idleness_and_the_time_begins_anew_with_the_answer():
    watermarks = two_splits(timeout=100)
    watermarks.advance("a", 10)
    for now in (0, 100):
        watermarks.advance_time(now, ["b"], backpressured=False)
    assert watermarks.take_advance() == 10
    watermarks.advance_time(150, [], backpressured=False)
    watermarks.advance("a", 20)
    for now, caught_up in ((5_000, []), (5_050, ["b"]), (5_149, ["b"])):
        watermarks.advance_time(now, caught_up, backpressured=False)
        assert watermarks.take_advance() is None, "rows of b may wait in its system"
    watermarks.advance_time(5_150, ["b"], backpressured=False)
    assert watermarks.take_advance() == 20


def test_time_under_back_pressure_does_not_count():
    watermarks = two_splits(timeout=100)
    watermarks.advance("a", 10)
    for now, backpressured in ((0, False), (60, False), (70, True), (130, True), (140, False), (169, False)):
        watermarks.advance_time(now, ["b"], backpressured=backpressured)
    assert watermarks.take_advance() is None, "70 ms and 29"
    watermarks.advance_time(170, ["b"], backpressured=False)
    assert watermarks.take_advance() == 10


def test_behind_long_back_pressure_the_time_begins_anew():
    watermarks = two_splits(timeout=100)
    watermarks.advance("a", 10)
    for now, backpressured in ((0, False), (90, False), (95, True), (195, False), (294, False)):
        watermarks.advance_time(now, ["b"], backpressured=backpressured)
    assert watermarks.take_advance() is None
    watermarks.advance_time(295, ["b"], backpressured=False)
    assert watermarks.take_advance() == 10


def test_a_split_whose_rows_say_nothing_of_the_watermark_is_not_idle():
    watermarks = two_splits(timeout=100)
    watermarks.advance("a", 10)
    for now in range(0, 500, 50):
        watermarks.active("b")
        watermarks.advance_time(now, ["b"], backpressured=False)
        watermarks.advance_time(now + 49, ["b"], backpressured=False)
    assert watermarks.take_advance() is None


def test_rows_end_idleness_and_the_watermark_never_goes_back():
    watermarks = two_splits(timeout=10)
    watermarks.advance("a", 100)
    for now in (0, 10):
        watermarks.advance_time(now, ["b"], backpressured=False)
    assert watermarks.take_advance() == 100
    watermarks.active("b")
    watermarks.advance("b", 50)
    watermarks.advance("a", 200)
    assert watermarks.take_advance() is None, "b is active again and behind"
    watermarks.advance("b", 150)
    assert watermarks.take_advance() == 150


def test_without_a_time_out_nothing_is_ever_idle():
    watermarks = two_splits()
    for now in (0, 10**9):
        watermarks.advance_time(now, ["a", "b"], backpressured=False)
    assert not watermarks.idle


def test_when_all_fall_idle_at_once_the_largest_watermark_is_let_out():
    watermarks = two_splits(timeout=10)
    watermarks.advance("a", 100)
    for now in (0, 10):
        watermarks.advance_time(now, ["a", "b"], backpressured=False)
    assert watermarks.idle
    assert watermarks.take_advance() == 100


def test_finished_splits_leave_the_minimum():
    watermarks = two_splits()
    watermarks.advance("a", 10)
    watermarks.advance("b", 5)
    watermarks.finish("b")
    assert watermarks.take_advance() == 10
    watermarks.finish("a")
    assert watermarks.idle
    assert watermarks.take_advance() is None


def test_restored_splits_and_floor_give_the_same_lateness():
    watermarks = SplitWatermarks(None, floor=80)
    watermarks.add("a", 100)
    watermarks.add("b", 20)
    assert watermarks.combined == 80
    assert watermarks.take_advance() is None
    watermarks.advance("b", 90)
    assert watermarks.take_advance() == 90
    assert watermarks.watermark_of("a") == 100


def test_progress_says_since_when_a_split_stands_and_is_quiet():
    marks = SplitWatermarks(None)
    marks.add("a", None)
    marks.add("b", 7)
    marks.advance_time(1_000.0, (), backpressured=False)
    marks.active("a")
    marks.advance("a", 5)
    marks.advance_time(3_000.0, (), backpressured=True)
    marks.active("a")
    marks.advance("a", 5)
    marks.advance("b", 6)
    marks.advance_time(4_000.0, (), backpressured=False)
    a, b = marks.progress
    assert (a.split_id, a.watermark, a.stalled_ms, a.quiet_ms) == ("a", 5, 3_000.0, 1_000.0)
    assert (b.watermark, b.stalled_ms, b.quiet_ms) == (7, 3_000.0, 3_000.0)
