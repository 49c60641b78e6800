"""Counters, meters and the division of time."""

from penstock.core.clock import ManualClock
from penstock.metrics.registry import MetricGroup


def test_a_meter_reports_the_last_complete_interval():
    clock = ManualClock()
    group = MetricGroup(clock)
    meter = group.meter("numRecordsInPerSecond")
    meter.mark(500)
    assert group.read()["numRecordsInPerSecond"] == 0
    clock.advance(2000)
    assert group.read()["numRecordsInPerSecond"] == 250
    assert group.read()["numRecordsInPerSecond"] == 250
    clock.advance(1000)
    assert group.read()["numRecordsInPerSecond"] == 0


def test_times_of_a_subtask_add_up_to_a_second():
    clock = ManualClock()
    group = MetricGroup(clock)
    times = group.times(("busy", "idle", "backPressured"), "idle")
    clock.advance(300)
    times.enter("busy")
    clock.advance(600)
    times.enter("backPressured")
    clock.advance(100)
    values = group.read()
    assert values["idleTimeMsPerSecond"] == 300
    assert values["busyTimeMsPerSecond"] == 600
    assert values["backPressuredTimeMsPerSecond"] == 100
    assert values["accumulatedBusyTimeMs"] == 600


def test_counters_and_gauges_are_read_by_name():
    group = MetricGroup(ManualClock())
    group.counter("numRecordsIn").inc(3)
    group.counter("numRecordsIn").inc()
    group.gauge("currentInputWatermark", lambda: 7)
    assert group.read() == {"numRecordsIn": 4, "currentInputWatermark": 7}
