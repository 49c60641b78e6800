"""The difference between two checkpoints of one state."""

import msgspec
import pytest
from tests.unit.state.test_segment_log import segment

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from penstock.core.snapshot import KeyedStateSnapshot, Tombstone
from penstock.state.log.segment_log import LogDelta, log_delta


def part(*segments, stones=(), low=0, high=9, schema="s"):
    """Return a snapshot of one subtask."""
    return KeyedStateSnapshot(
        uid="u", state="s", schema=schema, hash_low=low, hash_high=high, segments=segments, tombstones=stones
    )


def stone(position, up_to, low=0, high=9, namespace_low=MIN_TIMESTAMP):
    return Tombstone(position=position, hash_low=low, hash_high=high, namespace_low=namespace_low, namespace_high=up_to)


OLD, NEW, NEWER = segment(1, 0, 3), segment(2, 2, 5), segment(3, 4, 6)


def test_new_segments_are_added():
    assert log_delta([part(OLD)], [part(OLD, NEW, NEWER)]) == LogDelta((NEW, NEWER))
    assert log_delta([part(OLD)], [part(OLD)]) == LogDelta()
    assert log_delta([part()], [part(NEW)]) == LogDelta((NEW,))


def test_the_result_of_a_compaction_is_no_addition():
    merged = msgspec.structs.replace(segment(2, 0, 5), tier=1)
    assert log_delta([part(OLD)], [part(merged)]) is None
    assert log_delta([part(OLD)], [part(OLD, msgspec.structs.replace(NEWER, tier=1))]) is None


def test_a_tombstone_hides_restored_rows():
    assert log_delta([part(OLD, NEW)], [part(OLD, NEW, NEWER, stones=(stone(9, 2),))]) == LogDelta((NEWER,), 2)


def test_a_segment_that_is_gone_was_hidden_as_a_whole():
    """Its tombstone has nothing left to hide, and is gone too."""
    assert log_delta([part(OLD, NEW)], [part(NEW)]) == LogDelta((), 3)


def test_rows_that_a_new_segment_replaces_are_hidden_by_one_tombstone():
    whole = stone(8, MAX_TIMESTAMP)
    assert log_delta([part(OLD)], [part(NEWER, stones=(whole,))]) == LogDelta((NEWER,), MAX_TIMESTAMP)


@pytest.mark.parametrize("given", [stone(9, 2, high=4), stone(9, 2, namespace_low=1)])
def test_other_tombstones_cannot_be_applied(given):
    assert log_delta([part(OLD)], [part(OLD, stones=(given,))]) is None


def test_a_known_tombstone_hides_nothing_more():
    known = stone(9, 2)
    assert log_delta([part(OLD, stones=(known,))], [part(OLD, NEW, stones=(known,))]) == LogDelta((NEW,))


def test_another_schema_or_another_division_of_the_hashes_is_no_addition():
    assert log_delta([part(OLD)], [part(OLD, schema="other")]) is None
    assert log_delta([part(OLD)], [part(OLD, high=4), part(low=5)]) is None


def test_subtasks_that_have_closed_different_windows():
    """The rows of all hashes can be hidden only if none of them is still needed."""
    left, right = segment(1, 0, 3, hash_max=4), segment(1, 0, 3, hash_min=5)
    before = [part(left, high=4), part(right, low=5)]
    closed = stone(9, 2, high=4), stone(9, 2, low=5)
    both = [part(left, high=4, stones=closed[:1]), part(right, low=5, stones=closed[1:])]
    assert log_delta(before, both) == LogDelta((), 2)
    assert log_delta(before, [both[0], part(right, low=5)]) is None
    added = segment(2, 1, 3, hash_min=5)  # rows that a table would hide after they were loaded
    no_row = part(low=5)
    assert log_delta([before[0], no_row], [both[0], part(added, low=5)]) is None
    later = segment(1, 7, 9, hash_min=5)
    assert log_delta([before[0], part(later, low=5)], [both[0], part(later, low=5)]) == LogDelta((), 2)
