"""Protocol of work outside the subtasks' threads; implemented by `task.drive.threads` and by the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

#: Called with a result or an error, from any thread.
Done = Callable[[Any, BaseException | None], object]


class Background(Protocol):
    """Runs blocking work off the subtasks' threads: a thread pool, or an event of the simulator."""

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """Run `work`, then call `done` with its result or error."""
