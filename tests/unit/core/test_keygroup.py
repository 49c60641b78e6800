"""Key groups: ranges of the signed hash, complete and disjoint for every number of groups and subtasks."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.keygroup import (
    HASH_MAX,
    HASH_MIN,
    HashRange,
    first_hash_of,
    hash_range_of,
    key_group_of,
    key_groups_of,
    subtask_of,
)

hashes = st.integers(HASH_MIN, HASH_MAX)
groups = st.integers(1, 40_000)


@given(hashes, groups)
def test_a_hash_lies_between_the_first_hashes_of_its_group_and_the_next(key_hash: int, key_groups: int) -> None:
    group = key_group_of(key_hash, key_groups)
    assert 0 <= group < key_groups
    assert first_hash_of(group, key_groups) <= key_hash < first_hash_of(group + 1, key_groups)


@given(groups, st.data())
def test_subtask_ranges_cover_all_hashes_once(key_groups: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, min(key_groups, 64)))
    ranges = [hash_range_of(i, parallelism, key_groups) for i in range(parallelism)]
    assert ranges[0].low == HASH_MIN
    assert ranges[-1].high == HASH_MAX
    assert all(a.high + 1 == b.low for a, b in pairwise(ranges))


@given(groups, st.data())
def test_owner_of_a_group_is_the_subtask_that_lists_it(key_groups: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, min(key_groups, 64)))
    group = data.draw(st.integers(0, key_groups - 1))
    owner = subtask_of(group, parallelism, key_groups)
    assert group in key_groups_of(owner, parallelism, key_groups)


@given(hashes, hashes, hashes, hashes)
def test_intersection_holds_exactly_the_common_hashes(a: int, b: int, c: int, d: int) -> None:
    first, second = HashRange(min(a, b), max(a, b)), HashRange(min(c, d), max(c, d))
    common = first.intersect(second)
    for key_hash in (a, b, c, d):
        inside = key_hash in first and key_hash in second
        assert inside == (common is not None and key_hash in common)


@given(hashes, hashes, st.integers(0, 50))
def test_the_parts_of_a_range_cover_it_once_and_are_of_the_same_size(a: int, b: int, count: int) -> None:
    whole = HashRange(min(a, b), max(a, b))
    parts = whole.split(count)
    assert len(parts) == max(1, min(count, whole.high - whole.low + 1))
    assert (parts[0].low, parts[-1].high) == (whole.low, whole.high)
    assert all(a.high + 1 == b.low for a, b in pairwise(parts))
    sizes = [part.high - part.low for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_more_subtasks_than_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="number of key groups"):
        hash_range_of(0, 5, 4)
