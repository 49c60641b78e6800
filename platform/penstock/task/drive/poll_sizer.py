"""`PollRows`: how many rows a source in front of columns alone is asked for at once, by the time they take.

Whatever its rows, a batch costs some hundred calls of Python, which find the processor's caches full of the rows before
them. Where a row takes nanoseconds, that is as much as the rows; with twice as many of them a row gets cheaper. But
mails, barriers and results wait until a batch is through. Kept by `task.drive.batch_sizer`.
"""

from __future__ import annotations

from collections.abc import Sequence

#: A batch should take no longer.
TARGET_MS = 4.0
#: Columns of the most rows are a megabyte each, several of which still share a cache.
LEAST_ROWS, MOST_ROWS = 65_536, 131_072


class PollRows:
    """Asked before a poll, told of it afterwards."""

    def __init__(self) -> None:
        """Begin with the fewer rows."""
        self.rows = LEAST_ROWS

    def took(self, rows: int, ms: float) -> None:
        """Learn from a poll; one that gave fewer rows than asked for says nothing."""
        if rows < self.rows:
            return
        if 2 * ms <= TARGET_MS:
            self.rows = min(2 * self.rows, MOST_ROWS)
        elif ms > 2 * TARGET_MS:
            self.rows = max(self.rows // 2, LEAST_ROWS)


def columns_alone(kinds: Sequence[str]) -> bool:
    """Whether a source is followed by operations on columns, a sink or an edge: nothing that splits, keeps or waits."""
    return kinds[0] == "source" and set(kinds[1:]) <= {"project", "sink"}
