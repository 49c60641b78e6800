"""`SourcePacing`: when a source is asked for rows; kept by `task.subtask` for a source at the head of its chain.

A reader that has rows is asked again at once, one that has none ever more rarely (readers wake the subtask earlier;
for idleness time must pass). One that gave all it had is let linger: rows wait for company behind the source anyway,
until the buffer time-out, and a poll for every few rows would cost a core and, beside row functions, the GIL.
"""

from __future__ import annotations

#: A source with nothing to give is asked again after this long, and each time it has nothing again after twice as long
#: up to a limit: an idle job costs next to nothing.
SOURCE_POLL_MS = 10.0
MAX_SOURCE_POLL_MS = 160.0
#: Of the buffer time-out, so much is spent before a drained reader is asked again, and at most so many milliseconds.
_LINGER_PART, _MAX_LINGER_MS = 0.2, 25.0


class SourcePacing:
    """All times are monotonic milliseconds."""

    def __init__(self, buffer_timeout_ms: float) -> None:
        """Ask at once."""
        #: When to ask although nobody wakes the subtask.
        self.next_ms = 0.0
        self._poll_ms = SOURCE_POLL_MS
        self._linger_ms = min(_LINGER_PART * buffer_timeout_ms, _MAX_LINGER_MS)
        self._lingers_until_ms = 0.0

    def lingers(self, now_ms: float) -> bool:
        """Whether it is too early to ask."""
        if now_ms >= self._lingers_until_ms:
            return False
        self.next_ms = self._lingers_until_ms
        return True

    def blocked(self, now_ms: float) -> None:
        """The output has no room."""
        self.next_ms = now_ms + SOURCE_POLL_MS

    def gave(self, now_ms: float, *, drained: bool) -> None:
        """There were rows, and maybe these were all."""
        self._poll_ms = SOURCE_POLL_MS
        if drained:
            self._lingers_until_ms = now_ms + self._linger_ms

    def gave_nothing(self, now_ms: float) -> None:
        """There were none."""
        self.next_ms = now_ms + self._poll_ms
        self._poll_ms = min(2 * self._poll_ms, MAX_SOURCE_POLL_MS)
