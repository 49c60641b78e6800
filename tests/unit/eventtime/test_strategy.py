"""Watermark strategies as values."""

import json

import polars as pl
import pytest

from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.errors import GraphError, UsageError
from penstock.eventtime.strategy import WatermarkStrategy, strategy_from_builtins, strategy_to_builtins


def test_the_watermark_stays_behind_the_bound_by_one_microsecond():
    strategy = WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="ts")
    assert strategy.watermark_of(10_000_000) == 4_999_999
    assert strategy.watermark_of(MIN_TIMESTAMP) == MIN_TIMESTAMP
    assert WatermarkStrategy.monotonic(timestamp="ts").watermark_of(10) == 9


def test_it_travels_as_json():
    strategy = WatermarkStrategy.bounded_out_of_orderness(1.5, timestamp="t", unit="s", exact=True).with_idleness("30s")
    assert strategy.bound_ms == 1500
    assert strategy.idle_timeout_ms == 30_000
    assert strategy_from_builtins(json.loads(json.dumps(strategy_to_builtins(strategy)))) == strategy
    assert strategy_to_builtins(None) is None
    assert not strategy_from_builtins(None).has_event_time


def test_a_wrong_column_or_bound_is_named():
    with pytest.raises(GraphError, match=r"no column 'when'.*user_id, ts"):
        WatermarkStrategy.monotonic(timestamp="when").validate(("user_id", "ts"))
    with pytest.raises(GraphError, match="must not be negative"):
        WatermarkStrategy.bounded_out_of_orderness(-1, timestamp="ts").validate(("ts",))
    with pytest.raises(UsageError, match="not a duration"):
        WatermarkStrategy.bounded_out_of_orderness("soon", timestamp="ts")
    WatermarkStrategy.none().validate(())


@pytest.mark.parametrize("timestamp", [pl.col("ts") + 1, lambda row: row.ts, None])
def test_what_is_no_column_is_told_where_it_can_be_computed(timestamp):
    with pytest.raises(GraphError, match="is not a column's name") as caught:
        WatermarkStrategy.monotonic(timestamp=timestamp).validate(("ts",))
    assert "assign_timestamps_and_watermarks" in caught.value.hint


def test_event_time_without_watermarks_travels_as_json():
    strategy = WatermarkStrategy.no_watermarks(timestamp="t", unit="us").with_idleness("1s")
    assert strategy.has_event_time
    assert strategy_from_builtins(json.loads(json.dumps(strategy_to_builtins(strategy)))) == strategy
    with pytest.raises(GraphError, match="no column 't'"):
        strategy.validate(("ts",))
