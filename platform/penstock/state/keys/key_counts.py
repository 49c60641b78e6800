"""Rows per key and per key group of a table, and the keys themselves; queried while the job runs.

Returned by the tables of `penstock.state`; added up by `penstock.task.drive.state_queries`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I64
    from penstock.state.keys.run_keys import Keys

#: Columns of `KeyCounts.page` after those of the key.
HASH, ROWS = "__hash", "__rows"

#: Most keys that are counted; of more, an even sample.
MOST_KEYS = 1 << 20


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """Rows per key: the signed hash of each key, and its number of rows (booleans count as 0 and 1)."""

    hashes: I64
    rows: np.ndarray
    #: The key stores and their sizes, in the order of `hashes`; a key in several stores is in each of them.
    places: tuple[tuple[Keys, int], ...] = ()

    def by_group(self, key_groups: int, most: int = MOST_KEYS) -> dict[int, int]:
        """Return the rows of every key group that has any; of more than `most` keys, estimated from a sample."""
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
        """The rows of all keys."""
        return int(self.rows.sum(dtype=np.int64))

    def page(self, between: HashRange, most: int) -> tuple[pa.Table, bool]:
        """Return the first `most` keys with rows in a hash range, in hash order, one row a key.

        All keys with the last hash are returned, so there may be more than `most`. The columns are the key's, `HASH`
        and `ROWS`. The second result is whether keys with higher hashes remain.
        """
        inside = np.flatnonzero((self.rows > 0) & (self.hashes >= between.low) & (self.hashes <= between.high))
        count = len(inside)
        if count > most:
            hashes = self.hashes[inside]
            inside = inside[hashes <= np.partition(hashes, most - 1)[most - 1]]
        more = len(inside) < count
        parts, first = [], 0
        for keys, held in self.places:
            begin, end = np.searchsorted(inside, (first, first + held))
            parts.append(self._gathered(keys, inside[begin:end], first))
            first += held
        found = pa.concat_tables(parts).sort_by(HASH)
        if len(parts) == 1:
            return found, more
        names = [*self.places[0][0].schema.names, HASH]
        merged = found.group_by(names, use_threads=False).aggregate([(ROWS, "sum")])
        return merged.select([*names, f"{ROWS}_sum"]).rename_columns([*names, ROWS]).sort_by(HASH), more

    def _gathered(self, keys: Keys, places: I64, first: int) -> pa.Table:
        columns = keys.gather((places - first).astype(np.int32))
        figures = [pa.array(self.hashes[places]), pa.array(self.rows[places].astype(np.int64))]
        return pa.table([*columns, *figures], names=[*keys.schema.names, HASH, ROWS])
