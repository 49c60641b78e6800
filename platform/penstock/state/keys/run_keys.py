"""`RunKeys`: the keys of rows in a spilled file, numbered in hash order.

Rows of joins in memory refer to keys by slots of the operator's index. A spilled file contains its keys, so that none
of them has to be in memory. Requested keys are found by hash and then compared. Used by `state.spill.join_runs` and
`state.tables.join_buffer`; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.state.keys.key_index import KeyIndex, columns_of

if TYPE_CHECKING:
    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.keys.key_index import Keys


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Distinct keys in ascending order of their hashes."""

    schema: pa.Schema
    hashes: I64
    arrays: list[pa.Array]

    @classmethod
    def of(cls, keys: Keys, slots: I32) -> tuple[RunKeys, I32]:
        """Return the distinct keys of rows, and the key number of each row."""
        distinct, places = in_order(keys, slots)
        return cls(keys.schema, keys.hashes[distinct], keys.gather(distinct)), places

    def gather(self, slots: I32) -> list[pa.Array]:
        """Return the key columns of the given key numbers."""
        chosen = pa.array(slots)
        return [array.take(chosen) for array in self.arrays]

    def between(self, part: HashRange) -> tuple[int, int]:
        """Return the first key number in a range of hashes, and the first one after it."""
        first = np.searchsorted(self.hashes, part.low)
        return int(first), int(np.searchsorted(self.hashes, part.high, side="right"))

    def numbers_of(self, keys: Keys, slots: I32) -> I32:
        """Return the number of each of some keys, in hash order; -1: the key is not in this file."""
        numbers = np.full(len(slots), -1, np.int32)
        hashes = keys.hashes[slots]
        first, stop = np.searchsorted(hashes, self.hashes[0]), np.searchsorted(hashes, self.hashes[-1], side="right")
        probes, hashes = slots[first:stop], hashes[first:stop]
        firsts = np.searchsorted(self.hashes, hashes)
        counts = np.searchsorted(self.hashes, hashes, side="right") - firsts
        for further in range(int(counts.max(initial=0))):  # several candidates if keys share a hash
            some = np.flatnonzero(counts > further)
            found = (firsts[some] + further).astype(np.int32)
            same = _same(keys, probes[some], self, found)
            numbers[first + some[same]] = found[same]
        return numbers


def in_order(keys: Keys, slots: I32) -> tuple[I32, I32]:
    """Return the distinct keys of rows in ascending order of their hashes, and each row's position among them."""
    distinct, places = np.unique(slots, return_inverse=True)
    order = np.argsort(keys.hashes[distinct], kind="stable")
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    return distinct[order], number[places]


def _same(keys: Keys, slots: I32, others: Keys, found: I32) -> np.ndarray:
    """Return a mask of the keys that equal the key of the same hash at the same position in `found`."""
    index, hashes = KeyIndex(keys.schema), others.hashes[found]
    own = index.upsert(columns_of(keys, slots), hashes).copy()
    return np.asarray(own == index.upsert(columns_of(others, found), hashes))
