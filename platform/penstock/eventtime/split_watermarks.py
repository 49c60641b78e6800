"""Watermarks per source split: their minimum, idleness, and alignment within a subtask; deciders without a clock.

Owned by `operators.sources.source_operator`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.elements import MAX_TIMESTAMP, MIN_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(slots=True)
class _Split:
    watermark: int
    finished: bool = False
    idle: bool = False
    #: Milliseconds for which the split has been quiet and caught up, without times of back-pressure; None = it is not.
    quiet_ms: float | None = None
    #: Time of the last watermark advance, and of the last rows; None = never.
    moved_ms: float | None = None
    rows_ms: float | None = None


@dataclass(frozen=True, slots=True)
class SplitProgress:
    """The progress of one split, as of the last time update."""

    split_id: str
    watermark: int
    idle: bool
    finished: bool
    #: Time since its watermark advanced, and since its last rows; both at most the time since the subtask began.
    stalled_ms: float
    quiet_ms: float


class SplitWatermarks:
    """The watermarks of the splits.

    The combined watermark is the minimum over splits that are neither idle nor finished. It never goes back.
    """

    def __init__(self, idle_timeout_ms: int | None, floor: int = MIN_TIMESTAMP) -> None:
        """Start with `floor`, the watermark that was emitted before the restored checkpoint."""
        self._idle_timeout_ms = idle_timeout_ms
        self._splits: dict[str, _Split] = {}
        self._combined = floor
        self._last_time_ms: float | None = None
        self._start_ms: float | None = None
        self._now_ms = 0.0
        #: Start of the present back-pressure of the output; None = there is none.
        self._backpressured_since: float | None = None

    @property
    def combined(self) -> int:
        """Return the combined watermark so far; `MIN_TIMESTAMP` before the first."""
        return self._combined

    @property
    def idle(self) -> bool:
        """Return whether no split takes part in the minimum: all are idle or finished, or there is none."""
        return all(split.idle or split.finished for split in self._splits.values())

    @property
    def unfinished(self) -> dict[str, int]:
        """Return the watermark of each unfinished split; `MIN_TIMESTAMP` before its first."""
        return {split_id: split.watermark for split_id, split in self._splits.items() if not split.finished}

    @property
    def progress(self) -> list[SplitProgress]:
        """Return the progress of each split."""

        def ago(when: float | None) -> float:
            since = max(when or 0.0, self._start_ms or 0.0)
            return max(0.0, self._now_ms - since)

        return [
            SplitProgress(split_id, s.watermark, s.idle, s.finished, ago(s.moved_ms), ago(s.rows_ms))
            for split_id, s in self._splits.items()
        ]

    def add(self, split_id: str, watermark: int | None, *, finished: bool = False) -> None:
        """Add a split, with its restored watermark if it has one; a known id is left as it is."""
        self._splits.setdefault(split_id, _Split(MIN_TIMESTAMP if watermark is None else watermark, finished))

    def advance(self, split_id: str, watermark: int) -> None:
        """Raise the split's own watermark to at least `watermark`."""
        split = self._splits[split_id]
        if watermark > split.watermark:
            split.watermark, split.moved_ms = watermark, self._now_ms

    def active(self, split_id: str) -> None:
        """Record that rows of the split arrived, with any effect on its watermark."""
        split = self._splits[split_id]
        split.idle = False
        split.quiet_ms = None
        split.rows_ms = self._now_ms

    def finish(self, split_id: str) -> None:
        """Record that the split is read to its bounded end and no longer holds back the watermark."""
        self._splits[split_id].finished = True

    def advance_time(self, now_ms: float, caught_up: Iterable[str], *, backpressured: bool) -> None:
        """Advance the time to `now_ms`; a split is idle after the time-out in `caught_up`.

        `caught_up` are the splits that are known to have no rows. A split that leaves it is not idle any more.
        """
        self._start_ms = now_ms if self._start_ms is None else self._start_ms
        self._now_ms = now_ms
        if self._idle_timeout_ms is None:
            return
        if backpressured:
            self._backpressured_since = now_ms if self._backpressured_since is None else self._backpressured_since
            return
        backpressured_since, self._backpressured_since = self._backpressured_since, None
        passed = (
            0.0
            if self._last_time_ms is None
            else (now_ms if backpressured_since is None else backpressured_since) - self._last_time_ms
        )
        self._last_time_ms = now_ms
        # after long back-pressure a split may have rows that were not fetched: its time-out starts again
        restarted = backpressured_since is not None and now_ms - backpressured_since >= self._idle_timeout_ms
        quiet = frozenset(caught_up)
        for split_id, split in self._splits.items():
            if split_id not in quiet:  # also without an answer: rows may wait in the external system
                split.quiet_ms, split.idle = None, False
            elif split.quiet_ms is None or restarted:
                split.quiet_ms = 0.0
            else:
                split.quiet_ms += passed
                if split.quiet_ms >= self._idle_timeout_ms:
                    split.idle = True

    def take_advance(self) -> int | None:
        """Return the combined watermark when it advanced since the last call, and remember it as emitted; else None."""
        unfinished = [split for split in self._splits.values() if not split.finished]
        if not unfinished:
            return None
        active = [split.watermark for split in unfinished if not split.idle]
        # all idle: the result is that of the split furthest ahead, as if it had become idle last
        lowest = min(active) if active else max(split.watermark for split in unfinished)
        if lowest <= self._combined:
            return None
        self._combined = lowest
        return lowest

    def watermark_of(self, split_id: str) -> int | None:
        """Return the split's own watermark for its snapshot; None before its first row."""
        watermark = self._splits[split_id].watermark
        return None if watermark == MIN_TIMESTAMP else watermark


class SplitAlignment:
    """The splits of one subtask; times are microseconds."""

    def __init__(self, drift_us: int) -> None:
        """Start with no split paused; `drift_us` is how far a split may be ahead of the watermark."""
        self._drift_us = drift_us
        #: The limit of the group; None = unknown so far.
        self.limit: int | None = None
        self.paused: frozenset[str] = frozenset()

    def pauses_subtask(self, combined: int) -> bool:
        """Return whether the whole subtask pauses at the watermark `combined`."""
        return self.limit is not None and combined > self.limit

    def pause_changes(self, watermarks: Mapping[str, int], combined: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
