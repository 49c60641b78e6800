"""How much every key of a table holds, and what that makes by key group: asked for while the job runs.

Returned by the tables of `penstock.state`; added up by `penstock.task.questions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from penstock.kernels.compile import I64

#: Keys that are looked at; of more, every so many-th.
MOST_KEYS = 1 << 20


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """Rows by key: the signed hash of each key, and how many rows it has (booleans count as 0 and 1)."""

    hashes: I64
    rows: np.ndarray

    def by_group(self, key_groups: int, most: int = MOST_KEYS) -> dict[int, int]:
        """Return the rows of every key group that has any; of more than `most` keys from a part of them."""
        step = max(1, -(-len(self.hashes) // most))
        hashes, rows = self.hashes[::step], self.rows[::step]
        groups = (((hashes >> 32) + (1 << 31)) * key_groups) >> 32
        if len(groups) == 0:
            return {}
        first = int(groups.min())
        found = np.bincount(groups - first, weights=rows) * step
        return {first + int(group): round(found[group]) for group in np.flatnonzero(found)}

    @property
    def total(self) -> int:
        """Rows of all keys."""
        return int(self.rows.sum(dtype=np.int64))
