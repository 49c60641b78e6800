"""The log of one state of one subtask attempt: pure logic over positions.

A frozen segment belongs to the log, regardless of the checkpoint's outcome. A view (the content of an acknowledgement)
is the base and all segments up to its barrier, with the tombstones of that moment. Compaction replaces a run of
committed segments in later views only. The difference between two checkpoints of the same subtasks is what tables that
hold the earlier one load. Called by `penstock.state.store` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.keygroup import HashRange
from penstock.core.snapshot import KeyedStateSnapshot, Segment, Tombstone
from penstock.state.memory.limits import PRODUCTION, StateLimits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TIERS = 4
#: The last tier, of a savepoint's segments too: few segments of a job reach it, so its files are rarely merged.
LAST_TIER = TIERS - 1


@dataclass(slots=True)
class Entry:
    """A position in the log; `segment` is None until it is durable."""

    position: int
    segment: Segment | None = None


@dataclass(frozen=True, slots=True)
class LogView:
    """The log at one barrier; its entries can become durable later, and nothing else in it changes."""

    entries: tuple[Entry, ...]
    tombstones: tuple[Tombstone, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """The positions that are not durable yet."""
        return tuple(e.position for e in self.entries if e.segment is None)

    def named(self) -> tuple[tuple[Segment, ...], tuple[Tombstone, ...]]:
        """Return the segments and tombstones for the acknowledgement of this barrier.

        Raises:
            RuntimeError: a segment of the view is not durable.
        """
        if self.missing:
            raise RuntimeError(
                f"segments at positions {self.missing} are not durable: the barrier cannot be acknowledged"
            )
        segments = tuple(s for e in self.entries if (s := e.segment) is not None and not covered(s, self.tombstones))
        return segments, tuple(t for t in self.tombstones if any(hides_some(t, s) for s in segments))


@dataclass(slots=True)
class SegmentLog:
    """Segments and tombstones of one state, oldest first."""

    hash_range: HashRange
    entries: list[Entry] = field(default_factory=list)
    tombstones: tuple[Tombstone, ...] = ()
    limits: StateLimits = PRODUCTION
    #: Whether rows wait that are not a segment of the log yet.
    gathering: bool = False
    _last: int = 0
    #: Positions up to this one are in a completed checkpoint (or were restored from one).
    _committed: int = 0
    _compacting: bool = False

    def restore(self, segments: Iterable[Segment], tombstones: Iterable[Tombstone]) -> None:
        """Start with the content of a checkpoint; new positions are above all of its positions."""
        ordered = sorted(segments, key=lambda s: (s.position, s.writer, s.clip_low))
        self.entries = [Entry(s.position, s) for s in ordered]
        self.tombstones = tuple(sorted(tombstones, key=lambda t: t.position))
        self._last = max([s.position for s in ordered] + [t.position for t in self.tombstones], default=0)
        self._committed = self._last

    @property
    def durable(self) -> list[Segment]:
        """The durable segments, oldest first."""
        return [entry.segment for entry in self.entries if entry.segment is not None]

    @property
    def rows(self) -> int:
        """The approximate rows of all durable segments; a clipped one counts in part."""
        return sum(map(rows_in_clip, self.durable))

    @property
    def keys(self) -> int:
        """At least so many keys have rows, about: the rows of the longest sorted run of segments of one namespace."""
        runs = ([s for s in run if s.namespace_min == s.namespace_max] for run in sorted_runs(self.durable))
        return max((sum(map(rows_in_clip, run)) for run in runs), default=0)

    def next_position(self) -> int:
        """Reserve and return the next position."""
        self._last += 1
        return self._last

    def append(self, position: int) -> None:
        """Append a segment that was frozen at the position just reserved."""
        self.entries.append(Entry(position))

    def view(self) -> LogView:
        """Return the view for a barrier: everything frozen so far."""
        return LogView(tuple(self.entries), self.tombstones)

    def uploaded(self, position: int, segment: Segment) -> None:
        """Record that the segment at `position` is durable; repeated calls change nothing."""
        for entry in self.entries:
            if entry.position == position and entry.segment is None:
                entry.segment = segment
        self._prune()  # a tombstone may cover the segment by now: no later view has it, so its file is deleted

    def completed(self, view: LogView) -> None:
        """Record that the checkpoint with the view is complete, so its segments may be compacted."""
        self._committed = max([self._committed, *(e.position for e in view.entries)])

    def add_tombstone(self, hidden: HashRange, namespace_low: int, namespace_high: int) -> None:
        """Hide all earlier rows in the ranges; drop older tombstones that the new one subsumes."""
        new = Tombstone(
            position=self.next_position(),
            hash_low=hidden.low,
            hash_high=hidden.high,
            namespace_low=namespace_low,
            namespace_high=namespace_high,
        )
        self.tombstones = (*(t for t in self.tombstones if not self._subsumed(t, new)), new)
        self._prune()

    def compaction(self) -> tuple[tuple[Segment, ...], int] | None:
        """Return a run of committed segments to merge and the tier of the result.

        None unless a tier is full and no compaction is running.
        """
        if self._compacting:
            return None
        ready = [segment for segment in self.durable if segment.position <= self._committed]
        if len(ready) < self.limits.segments_per_tier:
            return None
        for tier in range(TIERS):
            places = [i for i, s in enumerate(ready) if min(s.tier, LAST_TIER) == tier]
            runs = sorted_runs([ready[place] for place in places], self.limits.sorted_run_bytes)
            if len(runs) >= self.limits.segments_per_tier:
                stop = places[-1] + 1
                while stop < len(ready) and ready[stop].position == ready[stop - 1].position:
                    stop += 1  # two writers before a rescale: the merged position must not tie with one of its rows
                self._compacting = True
                return tuple(ready[places[0] : stop]), min(tier + 1, LAST_TIER)
        return None

    def compacted(self, inputs: tuple[Segment, ...], merged: Segment | None) -> None:
        """Replace the run by the merged segment, which is durable; None: the compaction was abandoned."""
        self._compacting = False
        if merged is None:
            return
        gone = {id(s) for s in inputs}
        place = next((i for i, e in enumerate(self.entries) if id(e.segment) in gone), None)
        if place is None:  # a tombstone has dropped the whole run in the meantime
            return
        kept = [e for e in self.entries if id(e.segment) not in gone]
        kept.insert(place, Entry(merged.position, merged))
        self.entries = kept
        self._prune()

    def is_oldest(self, inputs: tuple[Segment, ...]) -> bool:
        """Return whether the run is the oldest, so that its deletions have nothing left to hide."""
        return bool(self.entries) and self.entries[0].segment is inputs[0]

    def _prune(self) -> None:
        """Forget segments that a tombstone hides completely, and tombstones that hide nothing.

        Open views keep theirs.
        """
        self.entries = [e for e in self.entries if e.segment is None or not covered(e.segment, self.tombstones)]
        if self._compacting:  # the merged segment may still contain rows that a tombstone has to hide
            return
        self.tombstones = tuple(
            t
            for t in self.tombstones
            if any(e.position < t.position if e.segment is None else hides_some(t, e.segment) for e in self.entries)
        )

    def _subsumed(self, old: Tombstone, new: Tombstone) -> bool:
        mine = HashRange(old.hash_low, old.hash_high).intersect(self.hash_range)
        return mine is None or (
            new.hash_low <= mine.low
            and mine.high <= new.hash_high
            and new.namespace_low <= old.namespace_low
            and old.namespace_high <= new.namespace_high
        )


def sorted_runs(segments: Iterable[Segment], least_bytes: int = 0) -> list[list[Segment]]:
    """Return adjacent segments in runs of ascending hash ranges: a read looks into one segment of a run for a key.

    The files of a savepoint are one run. Files smaller than `least_bytes` are each a run.
    """
    runs: list[list[Segment]] = []
    for segment in segments:
        last = runs[-1][-1] if runs else None
        large = last is not None and min(last.file.length, segment.file.length) >= least_bytes
        if last is not None and large and last.hash_max < segment.hash_min:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return runs


def _hashes_in_clip(segment: Segment) -> tuple[int, int]:
    """Return the lowest and highest hash of the rows in a segment's clip; without such rows low is above high."""
    return max(segment.hash_min, segment.clip_low), min(segment.hash_max, segment.clip_high)


def rows_in_clip(segment: Segment) -> int:
    """Return about how many rows of a segment are in its clip."""
    low, high = _hashes_in_clip(segment)
    if low > high:
        return 0
    return -(-segment.rows * (high - low + 1) // (segment.hash_max - segment.hash_min + 1))


def hides_some(stone: Tombstone, segment: Segment) -> bool:
    """Return whether a tombstone may hide rows of a segment, by the ranges of both."""
    low, high = _hashes_in_clip(segment)
    return (
        segment.position < stone.position
        and low <= stone.hash_high
        and stone.hash_low <= high
        and segment.namespace_min <= stone.namespace_high
        and stone.namespace_low <= segment.namespace_max
    )


def covered(segment: Segment, stones: Iterable[Tombstone], namespaces: tuple[int, int] | None = None) -> bool:
    """Return whether a tombstone hides all rows of a segment, or those from the first to the last of `namespaces`."""
    low, high = _hashes_in_clip(segment)
    first, last = namespaces or (segment.namespace_min, segment.namespace_max)
    return low > high or any(
        segment.position < t.position
        and t.hash_low <= low
        and high <= t.hash_high
        and t.namespace_low <= first
        and last <= t.namespace_high
        for t in stones
    )


@dataclass(frozen=True, slots=True)
class LogDelta:
    """First hide the restored rows of namespaces up to `hidden_to` (None: of no namespace), then load `segments`."""

    segments: tuple[Segment, ...] = ()
    hidden_to: int | None = None


def log_delta(before: Sequence[KeyedStateSnapshot], after: Sequence[KeyedStateSnapshot]) -> LogDelta | None:
    """Return the difference between two snapshots of one state, each clipped to the same hashes; None: there is none.

    A snapshot has a part for each subtask that wrote it. There is no difference if one of the new segments is the
    result of a compaction: it may lack deletions of rows that were restored.
    """
    earlier = {(part.hash_low, part.hash_high): part for part in before}
    later = {(part.hash_low, part.hash_high): part for part in after}
    if earlier.keys() != later.keys() or {part.schema for part in before} != {part.schema for part in after}:
        return None
    added: list[Segment] = []
    hidden: dict[tuple[int, int], int] = {}
    for hashes, part in later.items():
        known = set(earlier[hashes].segments)
        new = [segment for segment in part.segments if segment not in known]
        up_to = _hidden_to(earlier[hashes], part)
        if up_to is None or any(segment.tier for segment in new):
            return None
        added += new
        hidden[hashes] = up_to
    most = max(hidden.values(), default=MIN_TIMESTAMP)
    for hashes, up_to in hidden.items():  # the tables hide rows of all their hashes, also those loaded later
        every = (*earlier[hashes].segments, *later[hashes].segments)
        if up_to < most and any(segment.namespace_min <= most for segment in every):
            return None
    return LogDelta(tuple(added), most if most > MIN_TIMESTAMP else None)


def _hidden_to(before: KeyedStateSnapshot, after: KeyedStateSnapshot) -> int | None:
    """Return up to which namespace earlier rows are hidden; None if they are not hidden by their namespace alone.

    A segment that is gone was hidden as a whole, by a tombstone that may be gone too.
    """
    stones = [stone for stone in after.tombstones if stone not in before.tombstones]
    for stone in stones:
        if stone.namespace_low != MIN_TIMESTAMP or (stone.hash_low, stone.hash_high) != (
            after.hash_low,
            after.hash_high,
        ):
            return None
    gone = set(before.segments) - set(after.segments)
    return max(
        [MIN_TIMESTAMP, *(stone.namespace_high for stone in stones), *(segment.namespace_max for segment in gone)]
    )
