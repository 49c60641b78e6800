"""How the rows of a state are shared out by ranges of hashes; pure.

Used where a snapshot is cut anew (`snapshots.repartition`), where Spark reads one (`snapshots.spark`) and where many
tasks write one (`snapshots.parts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from penstock.core.keygroup import HashRange
from penstock.core.snapshot import KeyedStateSnapshot


def ranges_by_size(held: Sequence[KeyedStateSnapshot], within: HashRange, size: int) -> list[HashRange]:
    """Cut `within` into ranges of about `size` bytes of files each; hashes are taken to be spread evenly in a file."""
    total = sum(bytes_within(state, within) for state in held)
    return even_ranges(within, -(-total // max(1, size)))


def even_ranges(within: HashRange, count: int) -> list[HashRange]:
    """Cut `within` into `count` ranges, at least one and no more than it has hashes."""
    hashes = within.high - within.low + 1
    count = max(1, min(count, hashes))
    bounds = [within.low + hashes * i // count for i in range(count + 1)]
    return [HashRange(low, high - 1) for low, high in pairwise(bounds)]


def shared_ranges(ranges: Iterable[HashRange]) -> list[HashRange]:
    """Return the hashes that lie in more than one of `ranges`, as ranges in order that do not touch."""
    found: list[HashRange] = []
    reach: int | None = None
    for own in sorted(ranges):
        if reach is not None and own.low <= reach:
            high = min(own.high, reach)
            if found and own.low <= found[-1].high + 1:
                found[-1] = HashRange(found[-1].low, max(found[-1].high, high))
            else:
                found.append(HashRange(own.low, high))
        reach = own.high if reach is None else max(reach, own.high)
    return found


def bytes_within(state: KeyedStateSnapshot, within: HashRange) -> int:
    """Return about how many bytes of a state's files lie in a range of hashes."""
    found = 0
    for segment in state.segments:
        own = HashRange(segment.hash_min, segment.hash_max)
        common = own.intersect(within)
        if common is not None:
            found += segment.file.length * (common.high - common.low + 1) // (own.high - own.low + 1)
    return found
