"""Hot keys are found in samples of what comes in, at next to no cost."""

import numpy as np
import pyarrow as pa

from penstock.core.clock import ManualClock
from penstock.core.elements import Batch
from penstock.task.hot_keys import EVERY_MS, HALF_LIFE_MS, KEPT_KEYS, HotKeys


def batch(keys, **more):
    return Batch(pa.record_batch({"k": pa.array(keys), **more}))


def test_a_heavy_key_among_very_many_is_found_with_its_share():
    clock, rng = ManualClock(), np.random.default_rng(3)
    hot = HotKeys({"key": ["k"]}, clock)
    for _ in range(200):
        keys = rng.integers(0, 10_000_000, 4096)
        keys[rng.random(4096) < 0.2] = 7
        hot.see(batch(keys), 0)
        clock.advance(EVERY_MS / 10)
    found = hot.hottest()
    assert found["keys"][0]["key"] == {"k": 7}
    assert abs(found["keys"][0]["rows"] / found["rows"] - 0.2) < 0.05
    assert len(hot._top.top(10_000)) <= KEPT_KEYS


def test_rows_are_looked_at_some_times_a_second_only_and_stand_for_those_between():
    clock = ManualClock()
    hot = HotKeys({"key": ["k"]}, clock)
    hot.see(batch([1] * 10), 0)
    for _ in range(5):
        hot.see(batch([2] * 10), 0)  # too soon after the first
    assert hot.hottest() == {"rows": 10.0, "error": 0.0, "keys": [{"key": {"k": 1}, "rows": 10.0}]}
    clock.advance(EVERY_MS)
    hot.see(batch([3] * 10), 0)
    rows = {key["key"]["k"]: round(key["rows"]) for key in hot.hottest()["keys"]}
    assert rows == {3: 60, 1: 10}


def test_yesterdays_hot_keys_fade():
    clock = ManualClock()
    hot = HotKeys({"key": ["k"]}, clock)
    hot.see(batch([1] * 1000), 0)
    clock.advance(3 * HALF_LIFE_MS)
    hot.see(batch([2] * 500), 0)
    assert [(key["key"]["k"], round(key["rows"])) for key in hot.hottest()["keys"]] == [(2, 500), (1, 125)]


def test_each_input_has_keys_of_its_own():
    clock = ManualClock()
    joined = HotKeys({"left_key": ["k"], "right_key": ["other"]}, clock)
    joined.see(batch([1, 1], other=pa.array(["x", "y"])), 0)
    clock.advance(EVERY_MS)
    joined.see(batch([1, 1], other=pa.array(["x", "x"])), 1)
    assert {key["key"]["k"] for key in joined.hottest()["keys"]} == {1, "x"}
    connected = HotKeys({"key": ["k"], "second_key": None}, clock)
    connected.see(batch([1]), 1)
    assert connected.hottest()["keys"] == [], "rows of a broadcast stream have no key"


def test_null_keys_and_several_columns():
    hot = HotKeys({"key": ["k", "n"]}, ManualClock())
    hot.see(batch([None, "a", None], n=pa.array([1, 2, 1])), 0)
    assert hot.hottest()["keys"] == [
        {"key": {"k": None, "n": 1}, "rows": 2.0},
        {"key": {"k": "a", "n": 2}, "rows": 1.0},
    ]
