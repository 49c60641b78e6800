"""Cold rows of one state by key: an evicted key is one record in a `ColdStore` until its next use.

A key is completely in memory or completely in the store, never in both: `put` stores a key's rows, `take` returns and
removes them. The store is a spill area; changes are in a segment before their key is evicted. One `ColdHome` serves all
states of an operator. Used by the tables of `state.tables.row_state` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from penstock.core.keygroup import HASH_MAX
from penstock.state.keys.sorted_keys import bound, encode_keys, hashes_of
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.spill.packed_rows import RowPacker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSegment
    from penstock.state.spill.cold_panes import ColdStore
    from penstock.state.spill.local_bytes import LocalBytes


def pieces(slots: I32, most: int) -> Iterator[I32]:
    """Yield evicted slots in batches of at most `most`: as bytes their rows take several times as much."""
    for first in range(0, len(slots), most):
        yield slots[first : first + most]


class ColdHome:
    """The cold store of one operator's row state, opened at the first eviction."""

    def __init__(self, open_store: Callable[[], ColdStore], directory: Path, limits: StateLimits = PRODUCTION) -> None:
        """Open nothing; `directory` is for changes that are evicted before the next barrier."""
        self._open = open_store
        self.limits = limits
        self._directory = directory
        self._store: ColdStore | None = None
        self._states = 0
        #: Local bytes of records, if records may be dropped and fetched again.
        self.local: LocalBytes | None = None

    @property
    def store(self) -> ColdStore:
        """The store."""
        if self._store is None:
            self._store = self._open()
        return self._store

    def number(self) -> int:
        """Return a number for another state, the prefix of its keys in the store."""
        self._states += 1
        return self._states

    def spill(self, state: str, segment: FrozenSegment) -> None:
        """Encode changes that were frozen between two barriers to a local file, kept until they are durable."""
        self._directory.mkdir(parents=True, exist_ok=True)
        segment.spill(self._directory / f"{state}-{segment.position}.parquet")

    def close(self) -> None:
        """Close and remove the store."""
        store, self._store = self._store, None
        if store is not None:
            store.close()


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows that return to memory, in the order of their slots."""

    slots: I32
    #: Rows of each slot, at least one.
    counts: I64
    columns: list[pa.Array]


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Packed records for the store, one per key."""

    hashes: I64
    names: list[bytes]
    values: list[bytes]

    def chosen(self, which: np.ndarray) -> PackedRows:
        """Return the selected records."""
        return PackedRows(self.hashes[which], list(compress(self.names, which)), list(compress(self.values, which)))


class ColdRecords:
    """The rows of one state by key."""

    def __init__(self, home: ColdHome, types: Sequence[pa.DataType]) -> None:
        """Start without cold rows; `types` are those of a row's columns."""
        self._home = home
        self._number = home.number()
        self._packer = RowPacker(types)
        #: Number of keys in the store, at most.
        self.count = 0
        self._swept = bound(self._number)

    def put(self, keys: KeyView, slots: I32, counts: I64, columns: Sequence[pa.Array]) -> None:
        """Store rows: `counts[i]` (at least one) of the key `slots[i]`, which has none in the store."""
        if len(slots):
            self.put_packed(self.packed(keys, slots, counts, columns))

    def packed(self, keys: KeyView, slots: I32, counts: I64, columns: Sequence[pa.Array]) -> PackedRows:
        """Return rows, as for `put`, packed into records; any thread."""
        names = encode_keys(keys, slots, np.full(len(slots), self._number, np.int64))
        return PackedRows(keys.hashes[slots], names, self._packer.pack(columns, counts))

    def put_packed(self, rows: PackedRows) -> None:
        """Store packed records."""
        if not rows.names:
            return
        self._home.store.put(rows.names, rows.values)
        self.count += len(rows.names)
        if self._home.local is not None:
            self._home.local.came(rows.hashes, rows.values)

    def drop_range(self, part: HashRange) -> None:
        """Remove the keys in a hash range; `count` still includes them."""
        behind = bound(self._number + 1) if part.high == HASH_MAX else bound(self._number, part.high + 1)
        self._home.store.delete_range(bound(self._number, part.low), behind)

    def take(self, keys: KeyView, slots: I32) -> Taken | None:
        """Return and remove the rows of these distinct keys with one sorted read."""
        if self.count == 0 or len(slots) == 0:
            return None
        taken, there, values = self._read(keys, slots)
        if taken is not None:
            self._home.store.delete(there)
            self.count -= len(there)
            if self._home.local is not None:
                self._home.local.went(keys.hashes[taken.slots], values)
        return taken

    def look_up(self, keys: KeyView, slots: I32) -> Taken | None:
        """Return the rows of these keys as `take` does, without removing them."""
        return self._read(keys, slots)[0] if self.count else None

    def _read(self, keys: KeyView, slots: I32) -> tuple[Taken | None, list[bytes], list[bytes]]:
        """Return the rows of keys in the store, with their names and records there."""
        slots = slots[np.argsort(keys.hashes[slots])]
        names = encode_keys(keys, slots, np.full(len(slots), self._number, np.int64))
        found, there, values = [], list[bytes](), list[bytes]()
        for place, value in enumerate(self._home.store.get(names)):
            if value is not None:
                found.append(place)
                there.append(names[place])
                values.append(value)
        if not found:
            return None, there, values
        counts, columns = self._packer.unpack(values)
        return Taken(slots[found], counts, columns), there, values

    def sweep(self, limit: int, deadline: int) -> list[bytes]:
        """Check the next `limit` keys, in turn, and remove those whose rows were all last accessed by `deadline`.

        The time of last access is the last column. Return the removed keys in the form of `cold_keys`.
        """
        if self.count == 0:
            return []
        store = self._home.store
        names, values = next(store.scan(self._swept, bound(self._number + 1), limit), ([], []))
        if not names:
            self._swept = bound(self._number)
            return []
        self._swept = names[-1] + b"\0"
        counts, columns = self._packer.unpack(values)
        newest = np.maximum.reduceat(columns[-1].to_numpy(), np.cumsum(counts) - counts)
        old = newest <= deadline
        gone = list(compress(names, old))
        if gone:
            store.delete(gone)
            self.count -= len(gone)
            if self._home.local is not None:
                self._home.local.went(hashes_of(gone), list(compress(values, old)))
        return gone
