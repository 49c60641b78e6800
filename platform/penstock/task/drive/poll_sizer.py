"""`PollRows`: the number of rows requested from a source in a chain without row functions, by the time of a batch.

A batch has a fixed cost of some hundred calls of Python, which find the CPU caches full of earlier rows. If a row takes
nanoseconds, that is as much as the rows; twice as many rows make each one cheaper. But mails, barriers and results wait
until a batch is done. Kept by `task.drive.batch_sizer`.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Target time of a batch.
TARGET_MS = 4.0
#: At this maximum a column takes a megabyte, so several fit in a cache.
LEAST_ROWS, MOST_ROWS = 65_536, 131_072


class PollRows:
    """The number of rows of the next poll; updated after each one."""

    def __init__(self) -> None:
        """Start with the smaller number."""
        self.rows = LEAST_ROWS

    def took(self, rows: int, ms: float) -> None:
        """Adapt to a poll; one with fewer rows than requested is ignored."""
        if rows < self.rows:
            return
        if 2 * ms <= TARGET_MS:
            self.rows = min(2 * self.rows, MOST_ROWS)
        elif ms > 2 * TARGET_MS:
            self.rows = max(self.rows // 2, LEAST_ROWS)


def columns_alone(kinds: Sequence[str]) -> bool:
    """Return whether only operations on columns, a sink or an edge follow a source: none splits, keeps or waits."""
    return kinds[0] == "source" and set(kinds[1:]) <= {"project", "sink"}
