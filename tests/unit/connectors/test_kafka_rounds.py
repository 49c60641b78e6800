"""Rounds of messages: all of them, in order, none much larger than asked for."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock_connectors.kafka.write.committer import round_bytes, rounds


@given(st.lists(st.text(max_size=40), max_size=60), st.integers(1, 3000), st.booleans(), st.integers(0, 5))
def test_rounds_hold_every_message_once_and_in_order(texts, most, keyed, skipped):
    values = pa.array(["before"] * skipped + texts, pa.string()).slice(skipped)
    keys = pa.array([f"k{i}" for i in range(len(texts))], pa.string()) if keyed else None
    seen, names = [], []
    for (part, part_keys), size in rounds(values, keys, most):
        assert len(part) == 1 or 0 < size <= most
        seen += part.to_pylist()
        names += [] if part_keys is None else part_keys.to_pylist()
    assert seen == texts
    assert names == ([f"k{i}" for i in range(len(texts))] if keyed else [])


def test_a_round_grows_with_the_partitions_and_an_unknown_topic_has_one():
    assert round_bytes(8) == 8 * round_bytes(1)
    assert round_bytes(5000) == round_bytes(500) <= 128_000_000
    assert round_bytes(0) == round_bytes(1)
