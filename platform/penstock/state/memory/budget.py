"""Managed memory of a slot: the bytes that each holder uses, against one limit.

The tables report from one subtask's thread; the thread that encodes a checkpoint reports its working memory.
"""

from __future__ import annotations


class MemoryBudget:
    """The bytes in use by each holder, against one limit."""

    def __init__(self, limit_bytes: int) -> None:
        """Create a budget of `limit_bytes`."""
        self.limit_bytes = limit_bytes
        #: Peak of the bytes held and the working memory together.
        self.peak_bytes = 0
        self._held: dict[str, int] = {}
        self._work: dict[str, int] = {}

    def report(self, holder: str, held_bytes: int) -> None:
        """Set the bytes that `holder` holds; 0 removes the holder."""
        if held_bytes:
            self._held[holder] = held_bytes
        else:
            self._held.pop(holder, None)
        self._note()

    def work(self, what: str, size_bytes: int) -> None:
        """Set the working memory of a temporary step (copies of a freeze, eviction, encoding); it counts in the peak.

        Tables leave room for it; it does not count as used bytes. Any thread.
        """
        if size_bytes:
            self._work[what] = size_bytes
        else:
            self._work.pop(what, None)
        self._note()

    def share_of(self, holder: str) -> int:
        """Return an even share of the limit for `holder`."""
        return self.limit_bytes // max(1, len(self._held.keys() | {holder}))

    def _note(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.used_bytes + sum(tuple(self._work.values())))

    @property
    def used_bytes(self) -> int:
        """The bytes held by all holders."""
        return sum(tuple(self._held.values()))

    @property
    def exceeded(self) -> bool:
        """Whether the used bytes are above the limit."""
        return self.used_bytes > self.limit_bytes

    def should_shrink(self, holder: str) -> bool:
        """Return whether the limit is exceeded and `holder` has at least its fair share."""
        return self.exceeded and self._held.get(holder, 0) * len(self._held) >= self.limit_bytes
