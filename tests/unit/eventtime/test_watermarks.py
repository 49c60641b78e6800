"""The merging of watermarks over channels, as Flink's status valve does it."""

from penstock.core.elements import MIN_TIMESTAMP
from penstock.eventtime.watermarks import StatusChange, WatermarkMerger


def test_combined_is_the_minimum_of_all_channels():
    merger = WatermarkMerger(2)
    assert merger.update(0, 10) is None
    assert merger.update(1, 5) == 5
    assert merger.update(1, 20) == 10
    assert merger.combined == 10


def test_a_watermark_that_goes_back_is_ignored():
    merger = WatermarkMerger(1)
    assert merger.update(0, 10) == 10
    assert merger.update(0, 7) is None
    assert merger.channel_watermark(0) == 10


def test_an_idle_channel_does_not_hold_the_others_back():
    merger = WatermarkMerger(2)
    merger.update(0, 10)
    assert merger.status(1, idle=True) == StatusChange(watermark=10)


def test_the_last_channel_to_fall_idle_lets_the_largest_watermark_out():
    merger = WatermarkMerger(2)
    merger.update(0, 100)
    merger.update(1, 50)
    assert merger.status(0, idle=True) == StatusChange()
    assert merger.status(1, idle=True) == StatusChange(watermark=100, idle=True)
    assert merger.idle


def test_a_channel_back_from_idleness_counts_only_once_it_has_caught_up():
    merger = WatermarkMerger(2)
    merger.update(0, 10)
    merger.status(1, idle=True)
    assert merger.status(1, idle=False) == StatusChange()
    assert merger.update(1, 3) is None
    assert merger.update(0, 20) == 20, "a channel that lags behind what was emitted must not block"
    assert merger.update(1, 25) is None
    assert merger.update(0, 40) == 25, "caught up: it counts again"


def test_the_first_active_channel_makes_the_whole_active():
    merger = WatermarkMerger(1)
    assert merger.status(0, idle=True).idle is True
    assert merger.update(0, 99) is None, "watermarks of idle channels are ignored"
    assert merger.status(0, idle=False) == StatusChange(idle=False)


def test_a_restored_watermark_is_a_floor():
    merger = WatermarkMerger(1, restored=50)
    assert merger.update(0, 40) is None
    assert merger.combined == 50
    assert merger.update(0, 60) == 60
    assert WatermarkMerger(1).combined == MIN_TIMESTAMP
