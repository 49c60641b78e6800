"""Key groups: contiguous ranges of the signed 64-bit key hash, and the subtask that owns each range.

Group of hash h among G groups: `(((h >> 32) + 2^31) * G) >> 32`. As groups are ranges of the *signed* hash, files
sorted by hash can be split for any G. Called by the planner, restore and the offline tools. The compiled kernels that
split batches repeat the formula (`kernels.rows.key_group_split`, `kernels.keys.hashing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

HASH_MIN = -(1 << 63)
HASH_MAX = (1 << 63) - 1
DEFAULT_KEY_GROUPS = 1024


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """An inclusive range of signed 64-bit hashes."""

    low: int
    high: int

    def __contains__(self, key_hash: int) -> bool:
        """Return whether `key_hash` is in the range."""
        return self.low <= key_hash <= self.high

    def intersect(self, other: HashRange) -> HashRange | None:
        """Return the common part, or None."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return HashRange(low, high) if low <= high else None

    def split(self, count: int) -> list[HashRange]:
        """Return `count` ranges of the same size; at least one, and at most one for each hash."""
        hashes = self.high - self.low + 1
        count = max(1, min(count, hashes))
        bounds = [self.low + hashes * number // count for number in range(count + 1)]
        return [HashRange(low, after - 1) for low, after in pairwise(bounds)]


ALL_HASHES = HashRange(HASH_MIN, HASH_MAX)


def key_group_of(key_hash: int, key_groups: int) -> int:
    """Return the key group (0..key_groups-1) of a signed 64-bit hash."""
    return (((key_hash >> 32) + (1 << 31)) * key_groups) >> 32


def first_hash_of(key_group: int, key_groups: int) -> int:
    """Return the lowest signed hash of `key_group`; `key_group == key_groups` gives one past the highest hash."""
    return (-(-(key_group << 32) // key_groups) - (1 << 31)) << 32


def key_groups_of(subtask: int, parallelism: int, key_groups: int) -> range:
    """Return the key groups of one subtask: Flink's split, contiguous and complete."""
    start = (subtask * key_groups + parallelism - 1) // parallelism
    stop = ((subtask + 1) * key_groups + parallelism - 1) // parallelism
    return range(start, stop)


def subtask_of(key_group: int, parallelism: int, key_groups: int) -> int:
    """Return the subtask that owns `key_group`: the inverse of `key_groups_of`."""
    return key_group * parallelism // key_groups


def hash_range_of(subtask: int, parallelism: int, key_groups: int) -> HashRange:
    """Return the hashes that one subtask owns.

    Raises:
        ValueError: there are more subtasks than key groups.
    """
    if not 0 < parallelism <= key_groups:
        msg = f"parallelism {parallelism} is outside 1 to {key_groups}, the number of key groups"
        raise ValueError(msg)
    groups = key_groups_of(subtask, parallelism, key_groups)
    return HashRange(first_hash_of(groups.start, key_groups), first_hash_of(groups.stop, key_groups) - 1)
