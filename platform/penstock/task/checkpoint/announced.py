"""`AnnouncedBarrier`: a barrier that is on its way to a subtask; kept by `task.checkpoint.barriers`.

The job says so when it triggers a checkpoint, as a barrier may be stuck behind rows for which there is no room.
"""

from __future__ import annotations


class AnnouncedBarrier:
    """The newest announcement counts; ids of checkpoints only grow."""

    def __init__(self) -> None:
        """Nothing was announced."""
        self._announced = self._over = 0

    @property
    def coming(self) -> bool:
        """Whether the announced barrier has neither come nor been called off."""
        return self._announced > self._over

    def announce(self, checkpoint_id: int) -> None:
        """The barrier is on its way, or has already come."""
        self._announced = checkpoint_id

    def over(self, checkpoint_id: int) -> None:
        """This barrier has come, or its checkpoint was aborted; earlier ones will not come any more."""
        self._over = max(self._over, checkpoint_id)
