"""Decides how many TaskManagers a cluster should have: enough for waiting jobs, within bounds; a pure decider.

Called by `spark_cluster` once a second; `cli.start.spark_options` creates the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The size limits of a cluster; equal `least` and `most` mean a fixed size."""

    least: int = 2
    most: int = 2
    #: Slots of each TaskManager.
    slots: int = 2
    #: A TaskManager without used slots is released after this time.
    timeout_ms: float = 60_000.0


def fitted(bounds: Bounds, required: int, slots: int = 0) -> Bounds:
    """Return the bounds of a cluster for one job that needs `required` slots.

    `slots`: of each TaskManager; 0: as many as the job needs on the least number of TaskManagers.
    """
    least = max(1, min(bounds.least, -(-required // max(1, slots))))
    most = bounds.most if bounds.most > bounds.least else least
    return replace(bounds, least=least, most=max(least, most), slots=slots or -(-required // least))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSample:
    """A sample of the cluster."""

    #: Slots that jobs wait for.
    pending: int
    #: Started TaskManagers that have not registered.
    starting: int
    #: Free slots of each registered TaskManager that stays, by id.
    free: Mapping[str, int]
    #: Ids of registered TaskManagers whose executor Spark decommissions.
    leaving: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The TaskManagers to start, to release and to drain."""

    #: Number of TaskManagers to start.
    start: int
    #: Ids of TaskManagers that had no used slots for the whole timeout.
    release: tuple[str, ...] = ()
    #: Ids of TaskManagers that jobs have to leave; others replace them, even beyond the upper bound.
    drain: tuple[str, ...] = ()


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
        return Decision(start, tuple(name for _, name in late[:spare]), sample.leaving)
