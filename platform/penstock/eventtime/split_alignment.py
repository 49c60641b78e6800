"""Watermark alignment within a source subtask: which splits pause for the others; a decider without a clock.

A source of an alignment group pauses as a whole while its watermark is above the group's limit. A split pauses while
its own watermark is above that limit, or further ahead of the subtask's slowest split than the drift allows. So a
partition with newer rows does not pile them up in state until the older ones have caught up. Owned by
`operators.sources.source_operator`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.elements import MAX_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Mapping


class SplitAlignment:
    """The splits of one subtask; times are microseconds."""

    def __init__(self, drift_us: int) -> None:
        """Start with no split paused; `drift_us` is how far a split may be ahead of the watermark."""
        self._drift_us = drift_us
        #: The limit of the group; None = unknown so far.
        self.limit: int | None = None
        self.paused: frozenset[str] = frozenset()

    def holds(self, combined: int) -> bool:
        """Return whether the whole subtask pauses at the watermark `combined`."""
        return self.limit is not None and combined > self.limit

    def changes(self, watermarks: Mapping[str, int], combined: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the splits to pause and those to resume, from the watermarks of all unfinished splits.

        A single split never pauses; the subtask does.
        """
        ahead: frozenset[str] = frozenset()
        if len(watermarks) > 1:
            limit = min(combined + self._drift_us, MAX_TIMESTAMP if self.limit is None else self.limit)
            ahead = frozenset(split_id for split_id, watermark in watermarks.items() if watermark > limit)
        pause = tuple(sorted(ahead - self.paused))
        resume = tuple(sorted(split_id for split_id in self.paused - ahead if split_id in watermarks))
        self.paused = ahead
        return pause, resume
