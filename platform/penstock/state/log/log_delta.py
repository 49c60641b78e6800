"""The difference between two checkpoints of the state of the same subtasks; pure.

`state.store` loads it into tables that hold the earlier checkpoint. There is no
difference if one of the new segments is the result of a compaction: it may lack deletions of rows that were restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.elements import MIN_TIMESTAMP
from penstock.core.snapshot import KeyedStateSnapshot, Segment


@dataclass(frozen=True, slots=True)
class LogDelta:
    """First hide the restored rows of namespaces up to `hidden_to` (None: of no namespace), then load `segments`."""

    segments: tuple[Segment, ...] = ()
    hidden_to: int | None = None


def log_delta(before: Sequence[KeyedStateSnapshot], after: Sequence[KeyedStateSnapshot]) -> LogDelta | None:
    """Return the difference between two snapshots of one state, each clipped to the same hashes; None: there is none.

    A snapshot has a part for each subtask that wrote it.
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
