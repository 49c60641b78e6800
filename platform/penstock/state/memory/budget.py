"""Managed memory of a slot.

Who holds how much of it, and whether that is too much. Used by the tables of one subtask's thread; the thread that
encodes a checkpoint says what it works with.
"""

from __future__ import annotations


class MemoryBudget:
    """Bytes in use by holder, against one limit."""

    def __init__(self, limit_bytes: int) -> None:
        """A budget of `limit_bytes`."""
        self.limit_bytes = limit_bytes
        #: The most that was held and worked with at a time.
        self.peak_bytes = 0
        self._held: dict[str, int] = {}
        self._work: dict[str, int] = {}

    def report(self, holder: str, held_bytes: int) -> None:
        """Set what `holder` holds now; 0 takes it off the list."""
        if held_bytes:
            self._held[holder] = held_bytes
        else:
            self._held.pop(holder, None)
        self._note()

    def work(self, what: str, size_bytes: int) -> None:
        """Set what a step that comes and goes takes now (copies of a freeze, eviction, encoding); it shows in the peak.

        Tables leave room for it instead of being asked for it. Any thread.
        """
        if size_bytes:
            self._work[what] = size_bytes
        else:
            self._work.pop(what, None)
        self._note()

    def share_of(self, holder: str) -> int:
        """Return the holder's even part of all."""
        return self.limit_bytes // max(1, len(self._held.keys() | {holder}))

    def _note(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.used_bytes + sum(tuple(self._work.values())))

    @property
    def used_bytes(self) -> int:
        """Bytes held by all."""
        return sum(tuple(self._held.values()))

    @property
    def exceeded(self) -> bool:
        """Whether more is held than allowed."""
        return self.used_bytes > self.limit_bytes

    def should_shrink(self, holder: str) -> bool:
        """Whether more is held than allowed, and by `holder` no less than its fair share."""
        return self.exceeded and self._held.get(holder, 0) * len(self._held) >= self.limit_bytes
