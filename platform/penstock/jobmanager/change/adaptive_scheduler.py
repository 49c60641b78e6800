"""Decides with which parallelism a job starts and when it takes more, by the slots that there are; a pure decider.

As in Flink's adaptive scheduler, the parallelism that a job declares is its largest. A job starts with less, but at
least with its minimum, and rescales up when slots come.

* The slots that the job holds count as available, also while workers of its previous run are exiting. After a rescale
  the job waits for the parallelism that it stopped for. So it never starts with less because its own slots are not
  free yet, only to rescale again (FLINK-40379).
* A rescale whose start got less than it was for doubles the time to the next one, until a rescale succeeds.

Used by `jobmanager.change.adapting`, which counts slots and executes the decisions.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.settings import AdaptiveSchedulerSettings

_MOST_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Resources:
    """A job and the slots for it; every count is the largest parallelism of a vertex."""

    #: Whether all subtasks run.
    running: bool
    #: The parallelism that the job has, or with which it was last to run.
    current: int
    #: The parallelism that it declares.
    declared: int
    #: What its slots and the free ones suffice for, at most `declared`; 0: less than its minimum.
    reachable: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing to do until the slots change."""


@dataclass(frozen=True, slots=True)
class StartWith:
    """Start with this parallelism."""

    parallelism: int


@dataclass(frozen=True, slots=True)
class RescaleUp:
    """Rescale the running job to this parallelism."""

    parallelism: int


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Decide again at this time, unless the slots change before."""

    at_ms: int


ScalingStep = Keep | StartWith | RescaleUp | WaitUntil


class AdaptiveScheduler:
    """The scheduler of one job. It is asked at every change of the job or its slots, and at the times it returns."""

    def __init__(self, settings: AdaptiveSchedulerSettings) -> None:
        """Use the settings of the job, which does not run."""
        self._settings = settings
        self._running = False
        #: When the job stopped, or when all its subtasks ran again; None: not decided before.
        self._since_ms: int | None = None
        self._reachable = -1
        self._stable_since_ms = 0
        #: The parallelism of the last rescale, until its start; 0: none.
        self._target = 0
        self._failed_rescales = 0
        self._not_before_ms = 0

    def rescale_failed(self, now_ms: int) -> None:
        """Note that a rescale was refused or abandoned: the job runs on, and waits before the next one."""
        self._target = 0
        self._not_before_ms = now_ms + self._settings.scaling_interval_ms

    def decide(self, resources: Resources, now_ms: int) -> ScalingStep:
        """Return what to do."""
        if self._since_ms is None or resources.running is not self._running:
            self._running, self._since_ms = resources.running, now_ms
            if resources.running:
                self._started(resources.current)
        if resources.reachable != self._reachable:
            self._reachable, self._stable_since_ms = resources.reachable, now_ms
        return self._grow(resources, now_ms) if resources.running else self._start(resources, now_ms)

    def _started(self, parallelism: int) -> None:
        if self._target:
            self._failed_rescales = self._failed_rescales + 1 if parallelism < self._target else 0
        self._target = 0

    def _start(self, resources: Resources, now_ms: int) -> ScalingStep:
        """Decide for a job that does not run: its parallelism before, or what is there when that lasts."""
        if resources.reachable >= resources.current:
            return StartWith(resources.current)
        waited_ms = (self._since_ms or 0) + self._settings.resource_wait_timeout_ms
        stable_ms = self._stable_since_ms + self._settings.resource_stabilization_timeout_ms
        due_ms = min(stable_ms, waited_ms) if resources.reachable else waited_ms
        if now_ms < due_ms:
            return WaitUntil(due_ms)
        # With less than its minimum, the start gets no slots and fails, and the restart strategy decides.
        return StartWith(resources.reachable or resources.current)

    def _grow(self, resources: Resources, now_ms: int) -> ScalingStep:
        """Decide for a running job: take more when the slots are stable and the last change is long enough ago."""
        settings, more = self._settings, resources.reachable - resources.current
        if more < max(1, settings.min_parallelism_increase):
            return Keep()
        pause_ms = settings.scaling_interval_ms << min(self._failed_rescales, _MOST_DOUBLINGS)
        due_ms = max((self._since_ms or 0) + pause_ms, self._not_before_ms)
        if resources.reachable < resources.declared:
            due_ms = max(due_ms, self._stable_since_ms + settings.resource_stabilization_timeout_ms)
        if now_ms < due_ms:
            return WaitUntil(due_ms)
        self._target = resources.reachable
        return RescaleUp(resources.reachable)
