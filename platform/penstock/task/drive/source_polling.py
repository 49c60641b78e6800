"""When a source is polled, and for how many rows: `SourcePacing`, `PollSizer` and `poll`.

Used by `task.drive.subtask` for a source at the head of its chain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.operators.sources.source_operator import POLL_ROWS

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.task.chain.chain import Chain

#: Target time of a batch.
TARGET_MS = 4.0
#: At this maximum a column takes a megabyte, so several fit in a cache.
LEAST_ROWS, MOST_ROWS = 65_536, 131_072


class RowLimit(Protocol):
    """Chooses the rows of the next poll by the time of earlier ones."""

    rows: int

    def measured(self, rows: int, ms: float) -> None:
        """Adapt to a poll."""


class PollSizer:
    """The number of rows of the next poll; updated after each one."""

    def __init__(self) -> None:
        """Start with the smaller number."""
        self.rows = LEAST_ROWS

    def measured(self, rows: int, ms: float) -> None:
        """Adapt to a poll; one with fewer rows than requested is ignored."""
        if rows < self.rows:
            return
        if 2 * ms <= TARGET_MS:
            self.rows = min(2 * self.rows, MOST_ROWS)
        elif ms > 2 * TARGET_MS:
            self.rows = max(self.rows // 2, LEAST_ROWS)


def is_columnar(kinds: Sequence[str]) -> bool:
    """Return whether only operations on columns, a sink or an edge follow a source: none splits, keeps or waits."""
    return kinds[0] == "source" and set(kinds[1:]) <= {"project", "sink"}


def poll(chain: Chain, limit: RowLimit | None, clock: Clock, room: int | None = None) -> bool:
    """Let the source at the head emit a batch; return whether it did.

    `limit` chooses the number of rows; None: the source does. `room`: the rows that fit into the windows of receivers,
    if these bound the rows in flight.
    """
    link = chain.links[0]
    rows = POLL_ROWS if limit is None else limit.rows
    link.source.poll_rows = rows if room is None else min(rows, room)
    if limit is None:
        return chain.poll(backpressured=False)
    before, begun = link.records_out, clock.monotonic_ms()
    emitted = chain.poll(backpressured=False)
    limit.measured(link.records_out - before, clock.monotonic_ms() - begun)
    return emitted


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
        self._last_rows_ms = -math.inf

    def is_too_early(self, now_ms: float) -> bool:
        """Return whether it is too early to poll."""
        if now_ms >= self._lingers_until_ms:
            return False
        self.next_ms = self._lingers_until_ms
        return True

    def record_blocked(self, now_ms: float) -> None:
        """Record that output has no room."""
        self.next_ms = now_ms + SOURCE_POLL_MS

    def record_rows(self, now_ms: float, rows: int, *, drained: bool) -> None:
        """Record a poll with rows; `drained`: they were all available ones."""
        self._poll_ms = SOURCE_POLL_MS
        since, self._last_rows_ms = now_ms - self._last_rows_ms, now_ms
        if not drained:
            return
        long = self._long_linger_ms
        if long and rows * long <= FEW_ROWS * since:
            self._lingers_until_ms = (now_ms + long) // long * long
        else:
            self._lingers_until_ms = now_ms + self._linger_ms

    def record_empty_poll(self, now_ms: float) -> None:
        """Record a poll without rows."""
        self.next_ms = now_ms + self._poll_ms
        self._poll_ms = min(2 * self._poll_ms, MAX_SOURCE_POLL_MS)
