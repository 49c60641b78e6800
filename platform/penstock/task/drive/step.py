"""The result of one step of a subtask, for its driver: `task.drive.threads` or the simulator."""

from __future__ import annotations

import enum


class StepResult(enum.Enum):
    """The next call: at once (BUSY), after a wake-up or deadline, or never (DONE)."""

    BUSY = "busy"
    IDLE = "idle"
    BACKPRESSURED = "backpressured"
    DONE = "done"
