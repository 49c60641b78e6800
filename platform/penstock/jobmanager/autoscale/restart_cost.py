"""What restarts of a job have cost: from the moment it ran no more until its output came again; pure.

Used by `jobmanager.jobs.autoscaler`, whose decisions weigh it. Output counts as come again with the first checkpoint
that is complete behind the restart, or, in a job that takes none, when all subtasks run.
"""

from __future__ import annotations

from collections import deque

_KEPT = 5


class RestartCost:
    """Looked at now and then; counts restarts of every kind but the first start."""

    def __init__(self, assumed_ms: float) -> None:
        """`assumed_ms` is told until one was seen."""
        self._assumed_ms = assumed_ms
        self._seen: deque[float] = deque(maxlen=_KEPT)
        self._left_ms: int | None = None
        self._checkpoints = 0
        self._ran = False
        self._since_ms: int | None = None
        self._looked_ms = 0

    def look(self, now_ms: int, *, running_since_ms: int | None, checkpoints: int, periodic: bool) -> None:
        """Look at the job: since when it runs (None: it does not), how many checkpoints it has completed."""
        if running_since_ms is None:
            if self._ran and self._left_ms is None:
                self._left_ms, self._checkpoints = now_ms, checkpoints
            return
        if self._ran and self._left_ms is None and running_since_ms != self._since_ms:
            # gone and back between two looks: it ran at the last one
            self._left_ms, self._checkpoints = self._looked_ms, checkpoints
        self._ran, self._since_ms, self._looked_ms = True, running_since_ms, now_ms
        if self._left_ms is None or (periodic and checkpoints <= self._checkpoints):
            return
        self._seen.append((now_ms if periodic else running_since_ms) - self._left_ms)
        self._left_ms = None

    @property
    def pending(self) -> bool:
        """Whether a restart is not over yet."""
        return self._left_ms is not None

    @property
    def measured(self) -> int:
        """Return how many restarts the figure is made of."""
        return len(self._seen)

    @property
    def cost_ms(self) -> float:
        """Return the mean of the last few, or what is assumed."""
        return sum(self._seen) / len(self._seen) if self._seen else self._assumed_ms
