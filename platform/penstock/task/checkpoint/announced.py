"""`AnnouncedBarrier`: a barrier that is on its way to a subtask; kept by `task.checkpoint.barriers`.

The JobMaster announces it when it triggers a checkpoint, because rows without room may delay the barrier.
"""

from __future__ import annotations


class AnnouncedBarrier:
    """The newest announced barrier; checkpoint ids only increase."""

    def __init__(self) -> None:
        """Start without an announcement."""
        self._announced = self._over = 0

    @property
    def coming(self) -> bool:
        """Whether the announced barrier has neither arrived nor been aborted."""
        return self._announced > self._over

    def announce(self, checkpoint_id: int) -> None:
        """Announce a barrier that is on its way or has already arrived."""
        self._announced = checkpoint_id

    def over(self, checkpoint_id: int) -> None:
        """Record the barrier's arrival or the checkpoint's abort; earlier barriers no longer arrive."""
        self._over = max(self._over, checkpoint_id)
