"""How many TaskManagers a cluster should have: as many as its jobs wait for, between two bounds; a pure decider.

Asked by `spark_taskmanagers` once a second; `cli.start.spark_options` makes the bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a cluster may have; the same `least` and `most`: always so many."""

    least: int = 2
    most: int = 2
    #: Of each TaskManager.
    slots: int = 2
    #: One without used slots is released after so long.
    timeout_ms: float = 60_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is there at one moment."""

    #: Slots that jobs wait for.
    pending: int
    #: TaskManagers that were started and have not registered.
    starting: int
    #: Free slots of each registered one, by id.
    free: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now."""

    #: So many more TaskManagers.
    start: int
    #: Ids; each was without used slots for the whole time-out.
    release: tuple[str, ...] = ()


class Sizer:
    """Remembers since when which TaskManager is idle."""

    def __init__(self, bounds: Bounds) -> None:
        """Nothing has been seen yet."""
        self._bounds = bounds
        self._idle_since: dict[str, float] = {}

    def decide(self, look: Look, now_ms: float) -> Decision:
        """Return what brings the cluster to its size; a job that waits keeps every TaskManager."""
        bounds = self._bounds
        idle = [name for name, free in look.free.items() if free >= bounds.slots and not look.pending]
        self._idle_since = {name: self._idle_since.get(name, now_ms) for name in idle}
        there = look.starting + len(look.free)
        lacking = look.pending - sum(look.free.values()) - look.starting * bounds.slots
        wanted = there - (-max(0, lacking) // bounds.slots)
        start = max(0, min(max(wanted, bounds.least), bounds.most) - there)
        late = sorted((since, name) for name, since in self._idle_since.items() if now_ms - since >= bounds.timeout_ms)
        spare = max(0, len(look.free) - bounds.least)
        return Decision(start, tuple(name for _, name in late[:spare]))
