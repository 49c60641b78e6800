"""Hot keys are found in samples of what comes in, at next to no cost."""

import numpy as np
import pyarrow as pa

from penstock.core.clock import ManualClock
from penstock.core.elements import Batch
from penstock.task.chain.hot_keys import HALF_LIFE_MS, KEPT_KEYS, SAMPLE_INTERVAL_MS, SAMPLE_ROWS, HotKeys


def batch(keys, **more):
    return Batch(pa.record_batch({"k": pa.array(keys), **more}))


def test_a_heavy_key_among_very_many_is_found_with_its_share():
    clock, rng = ManualClock(), np.random.default_rng(3)
    hot = HotKeys({"key": ["k"]}, clock)
    for _ in range(200):
        keys = rng.integers(0, 10_000_000, 4096)
        keys[rng.random(4096) < 0.2] = 7
        hot.observe(batch(keys), 0)
        clock.advance(SAMPLE_INTERVAL_MS / 10)
    found = hot.hottest()
    assert found["keys"][0]["key"] == {"k": 7}
    assert abs(found["keys"][0]["rows"] / found["rows"] - 0.2) < 0.05
    assert abs(hot.share - 0.2) < 0.05
    assert len(hot._top.top(10_000)) <= 2 * KEPT_KEYS


def test_without_rows_there_is_no_share():
    assert HotKeys({"key": ["k"]}, ManualClock()).share is None


def share(found, key):
    return sum(one["rows"] for one in found["keys"] if one["key"]["k"] == key) / found["rows"]


def test_a_batch_stands_for_no_more_than_its_rows():
    clock = ManualClock()
    hot = HotKeys({"key": ["k"]}, clock)
    for _ in range(100):
        hot.observe(batch([1] * 10), 0)  # always the first after a while without rows
        for _ in range(20):
            hot.observe(batch([2] * 500), 0)
        clock.advance(SAMPLE_INTERVAL_MS)
    found = hot.hottest()
    assert share(found, 1) < 0.01
    assert share(found, 2) > 0.99


def test_rows_that_come_in_turns_are_seen_alike():
    clock = ManualClock()
    hot = HotKeys({"key": ["k"]}, clock)
    for turn in range(6000):
        hot.observe(batch([turn % 4] * 64), 0)
        clock.advance(SAMPLE_INTERVAL_MS / 64)
    found = hot.hottest()
    assert all(abs(share(found, key) - 0.25) < 0.05 for key in range(4))


def test_rows_are_about_as_many_as_came_and_few_are_looked_at():
    clock = ManualClock()
    hot, looked = HotKeys({"key": ["k"]}, clock), 0
    look = hot._count_rows

    def counting(*given):
        nonlocal looked
        looked += (found := look(*given))
        return found

    hot._count_rows = counting
    for second in range(20):
        for _ in range(200 if second % 10 else 2):  # a rate that changes at once
            hot.observe(batch(np.arange(1000)), 0)
            clock.advance(5 if second % 10 else 500)
    assert abs(hot._top.total / (18 * 200_000 + 4000) - 1) < 0.15
    assert looked < 20 * 2 * SAMPLE_ROWS * 2


def test_the_inputs_do_not_stand_for_each_other():
    clock = ManualClock()
    hot = HotKeys({"left_key": ["k"], "right_key": ["k"]}, clock)
    for _ in range(200):
        hot.observe(batch([1] * 10), 0)
        hot.observe(batch([2] * 2000), 1)
        clock.advance(SAMPLE_INTERVAL_MS / 4)
    assert share(hot.hottest(), 1) < 0.01


def test_a_batch_without_rows_is_nothing():
    hot = HotKeys({"key": ["k"]}, ManualClock())
    hot.observe(batch(pa.array([], pa.int64())), 0)
    assert hot.hottest() == {"rows": 0.0, "error": 0.0, "keys": []}


def test_yesterdays_hot_keys_fade():
    clock = ManualClock()
    hot = HotKeys({"key": ["k"]}, clock)
    hot.observe(batch([1] * 1000), 0)
    clock.advance(3 * HALF_LIFE_MS)
    hot.observe(batch([2] * 500), 0)
    assert [(key["key"]["k"], round(key["rows"])) for key in hot.hottest()["keys"]] == [(2, 500), (1, 125)]


def test_each_input_has_keys_of_its_own():
    clock = ManualClock()
    joined = HotKeys({"left_key": ["k"], "right_key": ["other"]}, clock)
    joined.observe(batch([1, 1], other=pa.array(["x", "y"])), 0)
    clock.advance(SAMPLE_INTERVAL_MS)
    joined.observe(batch([1, 1], other=pa.array(["x", "x"])), 1)
    assert {key["key"]["k"] for key in joined.hottest()["keys"]} == {1, "x"}
    connected = HotKeys({"key": ["k"], "second_key": None}, clock)
    connected.observe(batch([1]), 1)
    assert connected.hottest()["keys"] == [], "rows of a broadcast stream have no key"


def test_null_keys_and_several_columns():
    hot = HotKeys({"key": ["k", "n"]}, ManualClock())
    hot.observe(batch([None, "a", None], n=pa.array([1, 2, 1])), 0)
    assert hot.hottest()["keys"] == [
        {"key": {"k": None, "n": 1}, "rows": 2.0},
        {"key": {"k": "a", "n": 2}, "rows": 1.0},
    ]
