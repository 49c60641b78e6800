"""The summary of heavy items: bounded, never too high, and too low by no more than it says."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.metrics.top_keys import TopKeys

STREAMS = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=30), max_size=20)


@given(STREAMS, st.integers(1, 8))
def test_every_item_is_within_the_error(batches, capacity):
    top, true = TopKeys(capacity), Counter()
    for batch in batches:
        top.add(Counter(batch))
        true.update(batch)
    found = dict(top.top(100))
    assert len(found) <= 2 * capacity
    assert top.total == true.total()
    assert top.error <= top.total / (capacity + 1) + 1e-9
    for item, count in true.items():
        assert count - top.error - 1e-9 <= found.get(item, 0.0) <= count + 1e-9


@given(STREAMS)
def test_with_room_for_all_it_counts_exactly_the_heaviest_first(batches):
    top = TopKeys(13)
    for batch in batches:
        top.add(Counter(batch))
    true = Counter(item for batch in batches for item in batch)
    assert dict(top.top(100)) == dict(true)
    assert [weight for _, weight in top.top(3)] == sorted(true.values(), reverse=True)[:3]
    assert top.error == 0


def test_what_is_old_weighs_less():
    top = TopKeys(4)
    top.add({"old": 100.0})
    top.decay(0.25)
    top.add({"new": 30.0})
    assert top.top(2) == [("new", 30.0), ("old", 25.0)]
    assert top.total == 55.0
