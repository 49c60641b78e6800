"""`SourcePacing`: when a source is polled; kept by `task.drive.subtask` for a source at the head of its chain.

A reader that returned rows is polled again at once, one without rows at increasing intervals (readers wake the subtask
earlier; idleness needs passing time). One that returned all its rows is polled after a pause: polling for every few
rows would cost a core and, next to row functions, the GIL. With few rows that are sent to other subtasks, the pause is
the buffer time-out, at the same moments for all sources of a machine: the rows then pass through the next subtasks
together, and leave each at once.
"""

from __future__ import annotations

import math

#: A source without rows is polled again after this time, which doubles after each poll without rows up to a limit:
#: the cost of an idle job is negligible.
SOURCE_POLL_MS = 10.0
MAX_SOURCE_POLL_MS = 160.0
#: Share of the buffer time-out before a drained reader is polled again, and its maximum in milliseconds.
_LINGER_PART, _MAX_LINGER_MS = 0.2, 25.0
#: With few rows: the maximum of the whole time-out as the pause, and the number of rows per pause that counts as few.
_MAX_LONG_LINGER_MS = 100.0
FEW_ROWS = 256


class SourcePacing:
    """The times of polls, in monotonic milliseconds."""

    def __init__(self, buffer_timeout_ms: float, *, sends: bool) -> None:
        """Start with an immediate poll; `sends`: rows are sent to other subtasks."""
        #: Time of the next poll without a wake-up.
        self.next_ms = 0.0
        self._poll_ms = SOURCE_POLL_MS
        self._linger_ms = min(_LINGER_PART * buffer_timeout_ms, _MAX_LINGER_MS)
        self._long_linger_ms = min(buffer_timeout_ms, _MAX_LONG_LINGER_MS) if sends else 0.0
        self._lingers_until_ms = 0.0
        self._gave_ms = -math.inf

    def lingers(self, now_ms: float) -> bool:
        """Return whether it is too early to poll."""
        if now_ms >= self._lingers_until_ms:
            return False
        self.next_ms = self._lingers_until_ms
        return True

    def blocked(self, now_ms: float) -> None:
        """Record that output has no room."""
        self.next_ms = now_ms + SOURCE_POLL_MS

    def gave(self, now_ms: float, rows: int, *, drained: bool) -> None:
        """Record a poll with rows; `drained`: they were all available ones."""
        self._poll_ms = SOURCE_POLL_MS
        since, self._gave_ms = now_ms - self._gave_ms, now_ms
        if not drained:
            return
        long = self._long_linger_ms
        if long and rows * long <= FEW_ROWS * since:
            self._lingers_until_ms = (now_ms + long) // long * long
        else:
            self._lingers_until_ms = now_ms + self._linger_ms

    def gave_nothing(self, now_ms: float) -> None:
        """Record a poll without rows."""
        self.next_ms = now_ms + self._poll_ms
        self._poll_ms = min(2 * self._poll_ms, MAX_SOURCE_POLL_MS)
