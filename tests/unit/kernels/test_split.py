"""Splitting a batch by key group."""

import numpy as np
import pyarrow as pa

from penstock.kernels.rows.key_group_split import split_by_key_group, take_split


def test_a_batch_of_one_owner_is_not_copied():
    batch = pa.record_batch({"k": pa.array([1, 2])})
    order, offsets = split_by_key_group(np.array([5, 6], np.int64), 16, 2)
    parts = take_split(batch, order, offsets)
    assert parts[0] is None
    assert parts[1] is batch


def test_parts_are_slices_of_one_copy_in_the_order_they_came():
    batch = pa.record_batch({"k": pa.array([1, 2, 3, 4]), "s": pa.array(["a", None, "c", "d"])})
    hashes = np.array([-5, 5, -6, 6], np.int64) << 56
    parts = take_split(batch, *split_by_key_group(hashes, 16, 2))
    assert [p.to_pydict() for p in parts] == [{"k": [1, 3], "s": ["a", "c"]}, {"k": [2, 4], "s": [None, "d"]}]


def test_no_rows():
    batch = pa.record_batch({"k": pa.array([], pa.int64())})
    assert take_split(batch, *split_by_key_group(np.empty(0, np.int64), 16, 3)) == [None, None, None]
