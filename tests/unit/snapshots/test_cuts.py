"""Ranges that a state is shared out by: together they are what was cut, and about as large as was asked."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.keygroup import ALL_HASHES, HASH_MAX, HASH_MIN, HashRange
from penstock.core.snapshot import FileRef, KeyedStateSnapshot, Segment
from penstock.snapshots.cuts import bytes_within, ranges_by_size, shared_ranges

HASHES = st.integers(HASH_MIN, HASH_MAX)


def state(*segments):
    made = tuple(
        Segment(
            file=FileRef(path="f", length=length, checksum=""), position=1, writer="w", rows=1,
            hash_min=low, hash_max=high, namespace_min=0, namespace_max=0,
        )
        for low, high, length in segments
    )  # fmt: skip
    return KeyedStateSnapshot(uid="u", state="s", schema="", hash_low=HASH_MIN, hash_high=HASH_MAX, segments=made)


@given(ends=st.tuples(HASHES, HASHES), length=st.integers(0, 1 << 40), size=st.integers(1 << 20, 1 << 40))
def test_ranges_follow_each_other_from_end_to_end(ends, length, size):
    within = HashRange(*sorted(ends))
    found = ranges_by_size([state((HASH_MIN, HASH_MAX, length))], within, size)
    assert (found[0].low, found[-1].high) == (within.low, within.high)
    assert all(left.high + 1 == right.low for left, right in pairwise(found))
    assert all(r.low <= r.high for r in found)


@pytest.mark.parametrize(("length", "count"), [(0, 1), (99, 1), (100, 1), (101, 2), (1000, 10)])
def test_there_are_as_many_as_the_bytes_ask_for(length, count):
    assert len(ranges_by_size([state((HASH_MIN, HASH_MAX, length))], ALL_HASHES, 100)) == count


def test_of_files_only_the_part_within_counts():
    held = state((0, 99, 1000), (100, 199, 500))
    assert bytes_within(held, HashRange(50, 149)) == 750
    assert bytes_within(held, HashRange(200, 300)) == 0


def test_a_range_of_few_hashes_has_no_more_parts_than_hashes():
    assert len(ranges_by_size([state((0, 2, 1000))], HashRange(0, 2), 1)) == 3


SMALL = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: HashRange(*sorted(ends)))


@given(st.lists(SMALL, max_size=8))
def test_what_several_ranges_share_is_found(ranges):
    found = shared_ranges(ranges)
    twice = {h for h in range(31) if sum(h in own for own in ranges) > 1}
    assert {h for h in range(31) if any(h in own for own in found)} == twice
    assert all(left.high + 1 < right.low for left, right in pairwise(found))
