"""Which splits of a source subtask wait for its others: alignment within the subtask, a decider without a clock.

A source of an alignment group waits as a whole while its own watermark is above the group's limit; a split also while
it alone is further ahead than that, or than the drift allows from the last of its neighbours. So a partition with newer
rows does not pile them up in state until the older ones have come as far. Owned by `operators.sources.source_operator`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.elements import MAX_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Mapping


class SplitAlignment:
    """The splits of one subtask; times are microseconds."""

    def __init__(self, drift_us: int) -> None:
        """Nobody waits; `drift_us` is how far a split may be ahead of the watermark."""
        self._drift_us = drift_us
        #: What the group allows; None = it has not said yet.
        self.limit: int | None = None
        self.paused: frozenset[str] = frozenset()

    def holds(self, combined: int) -> bool:
        """Whether the whole subtask waits, its watermark being `combined`."""
        return self.limit is not None and combined > self.limit

    def changes(self, watermarks: Mapping[str, int], combined: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the splits to pause and those to resume, from the watermarks of all that are not read to their end.

        A single split never waits by itself, the subtask does.
        """
        ahead: frozenset[str] = frozenset()
        if len(watermarks) > 1:
            limit = min(combined + self._drift_us, MAX_TIMESTAMP if self.limit is None else self.limit)
            ahead = frozenset(split_id for split_id, watermark in watermarks.items() if watermark > limit)
        pause = tuple(sorted(ahead - self.paused))
        resume = tuple(sorted(split_id for split_id in self.paused - ahead if split_id in watermarks))
        self.paused = ahead
        return pause, resume
