"""Measures the cost of a job's restarts: the time from its stop until it produces output again; pure.

Used by `jobmanager.jobs.autoscaler` for its decisions. Output resumes with the first checkpoint completed after the
restart, or, in a job without checkpoints, when all subtasks run.
"""

from __future__ import annotations

from collections import deque

_KEPT = 5


class RestartCost:
    """The restart cost of one job, sampled regularly; the first start does not count."""

    def __init__(self, assumed_ms: float) -> None:
        """Start with an estimate of `assumed_ms`, used until the first measurement."""
        self._assumed_ms = assumed_ms
        self._seen: deque[float] = deque(maxlen=_KEPT)
        self._left_ms: int | None = None
        self._checkpoints = 0
        self._ran = False
        self._since_ms: int | None = None
        self._looked_ms = 0

    def look(self, now_ms: int, *, running_since_ms: int | None, checkpoints: int, periodic: bool) -> None:
        """Sample the job: since when it runs (None: it does not) and its number of completed checkpoints."""
        if running_since_ms is None:
            if self._ran and self._left_ms is None:
                self._left_ms, self._checkpoints = now_ms, checkpoints
            return
        if self._ran and self._left_ms is None and running_since_ms != self._since_ms:
            # a restart between two samples: the job still ran at the previous one
            self._left_ms, self._checkpoints = self._looked_ms, checkpoints
        self._ran, self._since_ms, self._looked_ms = True, running_since_ms, now_ms
        if self._left_ms is None or (periodic and checkpoints <= self._checkpoints):
            return
        self._seen.append((now_ms if periodic else running_since_ms) - self._left_ms)
        self._left_ms = None

    @property
    def pending(self) -> bool:
        """Whether a restart is in progress."""
        return self._left_ms is not None

    @property
    def measured(self) -> int:
        """The number of measured restarts."""
        return len(self._seen)

    @property
    def cost_ms(self) -> float:
        """The mean of the last measurements, or the estimate."""
        return sum(self._seen) / len(self._seen) if self._seen else self._assumed_ms
