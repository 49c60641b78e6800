"""How the rows of a state are shared out by ranges of hashes; pure.

Used where a snapshot is cut anew (`snapshots.repartition`) and where Spark reads one (`snapshots.spark`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from penstock.core.keygroup import HashRange
from penstock.core.snapshot import KeyedStateSnapshot


def ranges_by_size(held: Sequence[KeyedStateSnapshot], within: HashRange, size: int) -> list[HashRange]:
    """Cut `within` into ranges of about `size` bytes of files each; hashes are taken to be spread evenly in a file."""
    total = sum(bytes_within(state, within) for state in held)
    hashes = within.high - within.low + 1
    count = max(1, min(-(-total // max(1, size)), hashes))
    bounds = [within.low + hashes * i // count for i in range(count + 1)]
    return [HashRange(low, high - 1) for low, high in pairwise(bounds)]


def bytes_within(state: KeyedStateSnapshot, within: HashRange) -> int:
    """Return about how many bytes of a state's files lie in a range of hashes."""
    found = 0
    for segment in state.segments:
        own = HashRange(segment.hash_min, segment.hash_max)
        common = own.intersect(within)
        if common is not None:
            found += segment.file.length * (common.high - common.low + 1) // (own.high - own.low + 1)
    return found
