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


def test_a_meter_has_a_rate_before_its_first_interval_is_complete():
    clock = ManualClock()
    group = MetricGroup(clock)
    meter = group.meter("numRecordsInPerSecond")
    clock.advance(50)
    meter.mark(25)
    assert group.read()["numRecordsInPerSecond"] == 0, "too short"
    clock.advance(200)
    assert group.read()["numRecordsInPerSecond"] == 100
    clock.advance(750)
    assert group.read()["numRecordsInPerSecond"] == 25
    clock.advance(250)
    assert group.read()["numRecordsInPerSecond"] == 25


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
