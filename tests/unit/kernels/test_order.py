"""Rows come in the order of their hashes, however these are spread."""

import numpy as np
import pytest

from penstock.kernels.rows.row_order import hash_order, sort_hashes, sort_spread

HASH_MIN, HASH_MAX = -(1 << 63), (1 << 63) - 1
CHANCE = np.random.default_rng(2)


@pytest.mark.parametrize(
    "hashes",
    [
        CHANCE.integers(HASH_MIN, HASH_MAX, 5000, endpoint=True),
        CHANCE.integers(HASH_MIN, HASH_MIN + (1 << 40), 5000),
        np.repeat(CHANCE.integers(HASH_MIN, HASH_MAX, 400), 12),
        np.full(1000, HASH_MAX),
        np.arange(1000),
        np.concatenate([np.arange(1000), [HASH_MIN, HASH_MAX]]),
        CHANCE.integers(HASH_MIN, HASH_MAX, 255),
        np.array([3, 1, 2, -1, HASH_MAX, HASH_MIN, 0]),
        np.empty(0, np.int64),
    ],
    ids=["even", "narrow", "repeated", "one", "dense", "crowded", "few", "low bits", "none"],
)
def test_hashes_ascend(hashes):
    given = hashes.copy()
    assert sort_hashes(hashes).tolist() == sorted(given.tolist())
    assert hashes[hash_order(hashes)].tolist() == sorted(given.tolist())
    assert sorted(hash_order(hashes).tolist()) == list(range(len(given)))
    assert hashes.tolist() == given.tolist()


def test_rows_of_one_hash_keep_their_order():
    hashes = np.repeat(CHANCE.integers(HASH_MIN, HASH_MAX, 300), 5)
    CHANCE.shuffle(hashes)
    assert hash_order(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


def test_a_crowded_bucket_is_left_to_numpy():
    words = np.zeros(100, np.int64)
    assert sort_spread(words, 0, 0, np.zeros(2, np.int64), words.copy()) == 0
    assert sort_spread(words[:20], 0, 0, np.zeros(2, np.int64), words[:20].copy()) == 1
