"""The adaptive scheduler: what a job starts with, when it takes more, and that it does not restart in a loop."""

from __future__ import annotations

import pytest

from penstock.config.settings import AdaptiveSchedulerSettings
from penstock.jobmanager.change.adaptive_scheduler import (
    AdaptiveScheduler,
    Keep,
    RescaleUp,
    Resources,
    ScalingStep,
    StartWith,
    WaitUntil,
)

_STABLE, _PAUSE, _WAIT = 10_000, 30_000, 300_000


class _Job:
    """A job with an adaptive scheduler, and a clock; it does what is decided."""

    def __init__(self, declared: int, current: int = 0, **settings: int) -> None:
        self.scheduler = AdaptiveScheduler(AdaptiveSchedulerSettings(enabled=True, **settings))
        self.declared, self.current, self.running, self.now_ms = declared, current or declared, False, 1_000

    def sees(self, reachable: int, after_ms: int = 0) -> ScalingStep:
        """Let time pass, then decide with slots for `reachable` subtasks per vertex."""
        self.now_ms += after_ms
        step = self.scheduler.decide(Resources(self.running, self.current, self.declared, reachable), self.now_ms)
        if isinstance(step, StartWith):
            self.current, self.running = step.parallelism, True
            self.scheduler.decide(Resources(True, self.current, self.declared, reachable), self.now_ms)
        elif isinstance(step, RescaleUp):
            self.current, self.running = step.parallelism, False
        return step


def test_a_job_starts_at_once_with_all_its_slots() -> None:
    assert _Job(8).sees(8) == StartWith(8)


def test_a_job_starts_with_fewer_slots_when_they_have_been_stable() -> None:
    job = _Job(8)
    assert job.sees(3) == WaitUntil(1_000 + _STABLE)
    assert job.sees(5, after_ms=4_000) == WaitUntil(5_000 + _STABLE)
    assert job.sees(5, after_ms=_STABLE - 1) == WaitUntil(5_000 + _STABLE)
    assert job.sees(5, after_ms=1) == StartWith(5)


def test_slots_that_never_are_stable_do_not_delay_the_start_for_ever() -> None:
    job = _Job(8)
    steps = [job.sees(3 + tick % 2, after_ms=5_000) for tick in range(_WAIT // 5_000 + 1)]
    assert [isinstance(step, WaitUntil) for step in steps] == [True] * (_WAIT // 5_000) + [False]
    assert steps[-1] == StartWith(3)


def test_a_job_below_its_minimum_waits_and_then_lets_its_start_fail() -> None:
    job = _Job(8)
    assert job.sees(0) == WaitUntil(1_000 + _WAIT)
    assert job.sees(0, after_ms=_WAIT - 1) == WaitUntil(1_000 + _WAIT)
    assert job.sees(0, after_ms=1) == StartWith(8)


def test_the_loss_of_slots_shrinks_the_job_when_no_replacement_comes() -> None:
    job = _Job(6)
    job.sees(6)
    job.running = False
    assert job.sees(4, after_ms=60_000) == WaitUntil(61_000 + _STABLE)
    assert job.sees(4, after_ms=_STABLE) == StartWith(4)


def test_a_replacement_in_time_keeps_the_parallelism() -> None:
    job = _Job(6)
    job.sees(6)
    job.running = False
    assert job.sees(4, after_ms=60_000) == WaitUntil(61_000 + _STABLE)
    assert job.sees(6, after_ms=2_000) == StartWith(6)


def test_a_failed_worker_restarts_the_job_at_once_without_a_change() -> None:
    job = _Job(8, current=4)
    job.sees(4)
    job.running = False
    assert job.sees(6, after_ms=60_000) == StartWith(4)


def test_a_running_job_takes_all_its_slots_after_the_cooldown() -> None:
    job = _Job(8, current=4)
    job.sees(4)
    assert job.sees(8, after_ms=5_000) == WaitUntil(1_000 + _PAUSE)
    assert job.sees(8, after_ms=_PAUSE - 5_000) == RescaleUp(8)


def test_a_running_job_takes_some_of_its_slots_when_they_have_been_stable() -> None:
    job = _Job(8, current=4)
    job.sees(4)
    assert job.sees(5, after_ms=_PAUSE) == WaitUntil(1_000 + _PAUSE + _STABLE)
    assert job.sees(6, after_ms=9_000) == WaitUntil(10_000 + _PAUSE + _STABLE)
    assert job.sees(6, after_ms=_STABLE) == RescaleUp(6)


def test_a_smaller_increase_than_the_least_changes_nothing() -> None:
    job = _Job(8, current=4, min_parallelism_increase=3)
    job.sees(4)
    assert job.sees(6, after_ms=10 * _PAUSE) == Keep()
    assert job.sees(7) == WaitUntil(1_000 + 10 * _PAUSE + _STABLE)


def test_a_refused_rescale_is_repeated_after_the_cooldown() -> None:
    job = _Job(8, current=4)
    job.sees(4)
    assert job.sees(8, after_ms=_PAUSE) == RescaleUp(8)
    job.current, job.running = 4, True
    job.scheduler.rescale_failed(job.now_ms)
    assert job.sees(8, after_ms=1_000) == WaitUntil(1_000 + 2 * _PAUSE)
    assert job.sees(8, after_ms=_PAUSE) == RescaleUp(8)


def test_after_a_rescale_the_job_waits_for_the_slots_of_its_previous_run() -> None:
    """FLINK-40379: a job of 1 is stopped for 2, and one of its slots is free only some time later."""
    job = _Job(2, current=1)
    job.sees(1)
    assert job.sees(2, after_ms=_PAUSE) == RescaleUp(2)
    assert isinstance(job.sees(1, after_ms=100), WaitUntil)
    assert isinstance(job.sees(1, after_ms=5_000), WaitUntil)
    assert job.sees(2, after_ms=1_000) == StartWith(2)


@pytest.mark.parametrize("hours", [1, 24])
def test_a_slot_that_is_lost_at_every_rescale_does_not_restart_the_job_in_a_loop(hours: int) -> None:
    """FLINK-40379: 1 -> 2, one slot fails at the stop, the job restarts with 1 and sees 2 again."""
    job = _Job(2, current=1)
    job.sees(1)
    rescales, end_ms = 0, hours * 3_600_000
    while job.now_ms < end_ms:
        step = job.sees(2 if job.running else 1, after_ms=1_000)
        rescales += isinstance(step, RescaleUp)
    assert rescales <= (7 if hours == 1 else 12)


def test_a_rescale_that_succeeds_ends_the_longer_pause() -> None:
    job = _Job(4, current=1)
    job.sees(1)
    assert job.sees(4, after_ms=_PAUSE) == RescaleUp(4)
    assert isinstance(job.sees(2), WaitUntil)
    assert job.sees(2, after_ms=_STABLE) == StartWith(2)
    assert isinstance(job.sees(4, after_ms=_PAUSE), WaitUntil)
    assert job.sees(4, after_ms=_PAUSE) == RescaleUp(4)
    assert job.sees(4) == StartWith(4)
    job.declared = 6
    assert job.sees(6, after_ms=_PAUSE) == RescaleUp(6)
