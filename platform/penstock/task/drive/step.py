"""What one step of a subtask did, for whoever drives it: `task.drive.threads` or the simulator."""

from __future__ import annotations

import enum


class StepResult(enum.Enum):
    """Call again at once (BUSY), wait for a wake or a deadline, or never again (DONE)."""

    BUSY = "busy"
    IDLE = "idle"
    BACKPRESSURED = "backpressured"
    DONE = "done"
