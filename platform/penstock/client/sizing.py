"""Decides how many TaskManagers a cluster should have: enough for waiting jobs, within bounds; a pure decider.

Called by `spark_cluster` once a second; `cli.start.spark_options` creates the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The size limits of a cluster; equal `least` and `most` mean a fixed size."""

    least: int = 2
    most: int = 2
    #: Slots of each TaskManager.
    slots: int = 2
    #: A TaskManager without used slots is released after this time.
    timeout_ms: float = 60_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSample:
    """A sample of the cluster."""

    #: Slots that jobs wait for.
    pending: int
    #: Started TaskManagers that have not registered.
    starting: int
    #: Free slots of each registered TaskManager, by id.
    free: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Decision:
    """The TaskManagers to start and to release."""

    #: Number of TaskManagers to start.
    start: int
    #: Ids of TaskManagers that had no used slots for the whole timeout.
    release: tuple[str, ...] = ()


class Sizer:
    """Decides the size, and remembers since when each TaskManager is idle."""

    def __init__(self, bounds: Bounds) -> None:
        """Start without samples."""
        self._bounds = bounds
        self._idle_since: dict[str, float] = {}

    def decide(self, sample: ClusterSample, now_ms: float) -> Decision:
        """Return the changes that bring the cluster to its target size; while a job waits, none is released."""
        bounds = self._bounds
        idle = [name for name, free in sample.free.items() if free >= bounds.slots and not sample.pending]
        self._idle_since = {name: self._idle_since.get(name, now_ms) for name in idle}
        there = sample.starting + len(sample.free)
        lacking = sample.pending - sum(sample.free.values()) - sample.starting * bounds.slots
        wanted = there - (-max(0, lacking) // bounds.slots)
        start = max(0, min(max(wanted, bounds.least), bounds.most) - there)
        late = sorted((since, name) for name, since in self._idle_since.items() if now_ms - since >= bounds.timeout_ms)
        spare = max(0, len(sample.free) - bounds.least)
        return Decision(start, tuple(name for _, name in late[:spare]))
