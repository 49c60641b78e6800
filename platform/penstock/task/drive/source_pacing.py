"""`SourcePacing`: when a source is asked for rows; kept by `task.drive.subtask` for a source at the head of its chain.

A reader that has rows is asked again at once, one that has none ever more rarely (readers wake the subtask earlier;
for idleness time must pass). One that gave all it had is asked again after a while: a poll for every few rows would
cost a core and, beside row functions, the GIL. Where few rows come and go on to other subtasks, that is the buffer
time-out, at the same moments for all sources of a machine: the rows then pass through the subtasks after it together,
and leave each of them at once.
"""

from __future__ import annotations

import math

#: A source with nothing to give is asked again after this long, and each time it has nothing again after twice as long
#: up to a limit: an idle job costs next to nothing.
SOURCE_POLL_MS = 10.0
MAX_SOURCE_POLL_MS = 160.0
#: Of the buffer time-out, so much is spent before a drained reader is asked again, and at most so many milliseconds.
_LINGER_PART, _MAX_LINGER_MS = 0.2, 25.0
#: The same where few rows come: the whole of it, and so many rows in that time are few.
_MAX_LONG_LINGER_MS = 100.0
FEW_ROWS = 256


class SourcePacing:
    """All times are monotonic milliseconds."""

    def __init__(self, buffer_timeout_ms: float, *, sends: bool) -> None:
        """Ask at once; `sends`: rows go on to other subtasks."""
        #: When to ask although nobody wakes the subtask.
        self.next_ms = 0.0
        self._poll_ms = SOURCE_POLL_MS
        self._linger_ms = min(_LINGER_PART * buffer_timeout_ms, _MAX_LINGER_MS)
        self._long_linger_ms = min(buffer_timeout_ms, _MAX_LONG_LINGER_MS) if sends else 0.0
        self._lingers_until_ms = 0.0
        self._gave_ms = -math.inf

    def lingers(self, now_ms: float) -> bool:
        """Whether it is too early to ask."""
        if now_ms >= self._lingers_until_ms:
            return False
        self.next_ms = self._lingers_until_ms
        return True

    def blocked(self, now_ms: float) -> None:
        """The output has no room."""
        self.next_ms = now_ms + SOURCE_POLL_MS

    def gave(self, now_ms: float, rows: int, *, drained: bool) -> None:
        """There were rows, and maybe these were all."""
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
        """There were none."""
        self.next_ms = now_ms + self._poll_ms
        self._poll_ms = min(2 * self._poll_ms, MAX_SOURCE_POLL_MS)
