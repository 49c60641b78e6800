"""Managed memory of a slot.

Who holds how much of it, and whether that is too much. Used by the tables of one subtask's thread.
"""

from __future__ import annotations


class MemoryBudget:
    """Bytes in use by holder, against one limit."""

    def __init__(self, limit_bytes: int) -> None:
        """A budget of `limit_bytes`."""
        self.limit_bytes = limit_bytes
        self._held: dict[str, int] = {}

    def report(self, holder: str, held_bytes: int) -> None:
        """Set what `holder` holds now; 0 takes it off the list."""
        if held_bytes:
            self._held[holder] = held_bytes
        else:
            self._held.pop(holder, None)

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
