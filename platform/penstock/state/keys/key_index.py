"""The key index of a table: key columns to dense slot numbers, append-only until it is rebuilt.

An array by key precedes the hash table while integer keys are dense.

Called by tables in the owner's thread; views are read by any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.kernels.compiler.compile import I32, I64
from penstock.kernels.keys import hash_index as kernels
from penstock.kernels.keys import hashing
from penstock.kernels.keys.hashing import hash_key_columns
from penstock.kernels.keys.key_columns import FixedColumn, KeyColumns, key_column
from penstock.state.keys.column_store import ColumnStore, grown, new_store
from penstock.state.memory.slot_arrays import pieces

if TYPE_CHECKING:
    from penstock.core.keygroup import HashRange

#: The span of keys may be this many times their number: then the array is no larger than the hash table.
_SPREAD = 4
_LEAST_KEYS = 64


class DenseKeys:
    """The slots of the keys from `first` upwards; empty while keys are few or far apart."""

    def __init__(self) -> None:
        """Start without keys."""
        self.first = 0
        #: Slot + 1 at index key - first, 0: unknown; the last element is for all keys outside the array.
        self.places: I32 = np.zeros(1, np.int32)
        self._due = _LEAST_KEYS

    @property
    def in_use(self) -> bool:
        """Whether the array is in use."""
        return len(self.places) > 1

    def disable(self) -> bool:
        """Drop the array until the number of keys has doubled; return False if there was none."""
        had, self.places = self.in_use, np.zeros(1, np.int32)
        return had

    def follow(self, keys: I64) -> None:
        """Rebuild or drop the array for `keys`, by slot, each time their number has doubled."""
        if len(keys) < self._due:
            return
        self._due = 2 * len(keys)
        self.first, high = int(keys.min()), int(keys.max())
        span = high - self.first + 1
        if span > _SPREAD * len(keys):
            self.disable()
            return
        # ids mostly grow: leave room until the number of keys doubles
        self.places = np.zeros(2 * span + 1, np.int32)
        self.places[keys - self.first] = np.arange(1, len(keys) + 1, dtype=np.int32)


_FIRST_SLOTS = 1024
_FIRST_BYTES = 16 * _FIRST_SLOTS
_ENTRIES_A_SLOT = 4
#: The dense table is dropped if more than one in this many rows of a batch has a key outside it.
_FAR_PART = 8


@dataclass(frozen=True, slots=True)
class KeyView:
    """The keys of an index as of one moment; safe in any thread."""

    schema: pa.Schema
    hashes: I64
    columns: tuple[ColumnStore, ...]

    def gather(self, slots: I32) -> list[pa.Array]:
        """Return the key columns of the given slots."""
        slots = np.ascontiguousarray(slots, np.int32)
        return [column.array(slots) for column in self.columns]


class Keys(Protocol):
    """Keys by number: of an index (`KeyView`) or of a file (`join_runs.RunKeys`)."""

    @property
    def schema(self) -> pa.Schema:
        """The key columns."""

    @property
    def hashes(self) -> I64:
        """The hash of each key."""

    def gather(self, slots: I32) -> list[pa.Array]:
        """Return the key columns of the given key numbers."""


def columns_of(keys: Keys, slots: I32) -> KeyColumns:
    """Return the key columns of the given key numbers in the form that an index takes."""
    return canonical(keys.schema, keys.gather(slots))


def canonical(schema: pa.Schema, arrays: list[pa.Array]) -> KeyColumns:
    """Return key columns in the form that an index takes."""
    return tuple(key_column(array, name) for array, name in zip(arrays, schema.names, strict=True))


#: Keys that a rebuilt index takes at a time.
_CHUNK = 65_536


class KeyIndex:
    """Key columns -> slot numbers 0, 1, 2..."""

    def __init__(self, schema: pa.Schema, *, small: bool = False) -> None:
        """Create an index for the key columns in `schema`; dictionary columns count as their values.

        `small` takes a third less memory, and more probes.
        """
        self._small, self._entries_a_slot = small, _ENTRIES_A_SLOT // 2 if small else _ENTRIES_A_SLOT
        self.schema = plain_key_schema(schema)
        self.count = 0
        self._table = np.zeros(self._entries_a_slot * _FIRST_SLOTS, np.uint64)
        self._hashes = np.empty(_FIRST_SLOTS, np.int64)
        self._stores = [new_store(field.type, _FIRST_SLOTS, _FIRST_BYTES) for field in self.schema]
        #: Precedes the hash table while integer keys are dense.
        self.dense = DenseKeys()
        self._slots = np.empty(0, np.int32)
        self._created = np.empty(0, np.int32)
        self._every_row = np.empty(0, np.int32)

    @property
    def memory_bytes(self) -> int:
        """The bytes of tables, hashes and keys."""
        tables = int(self._table.nbytes + self._hashes.nbytes + self.dense.places.nbytes)
        return tables + sum(s.memory_bytes for s in self._stores)

    def bytes_with(self, count: int) -> int:
        """Return the bytes of an index with `count` slots, which must not be fewer than now."""
        have = capacity = len(self._hashes)
        while capacity <= count:
            capacity *= 2
        return self.memory_bytes * capacity // have

    def view(self) -> KeyView:
        """Return the keys as of now."""
        return KeyView(self.schema, self._hashes, tuple(store.frozen() for store in self._stores))

    def kept(self, slots: I32, piece: int = _CHUNK) -> KeyIndex:
        """Return an index with only the keys of these slots, renumbered in the same order."""
        index, view = KeyIndex(self.schema, small=self._small), self.view()
        for some in pieces(slots, min(piece, _CHUNK)):
            index.upsert(columns_of(view, some), view.hashes[some])
        return index

    @property
    def hashes(self) -> I64:
        """The hashes of all slots, in slot order."""
        return self._hashes[: self.count]

    def make_room(self, count: int) -> None:
        """Make room for `count` keys at once."""
        capacity = len(self._hashes)
        while capacity <= count:
            capacity *= 2
        if capacity > len(self._hashes):
            self._grow(capacity)

    def upsert(self, keys: KeyColumns, hashes: I64) -> I32:
        """Return the slot of every row, made where the key is new. The array is reused by the next call."""
        rows = len(hashes)
        self._reserve(rows)
        slots = self._slots[:rows]
        state = np.array([0, self.count, len(self._hashes), self.count], np.int64)
        while kernels.probe((self._table, self._hashes), hashes, slots, self._created, state) < rows:
            self._store_new(keys, state)
        self._store_new(keys, state, full=False)
        if not self._hash_decides(keys):
            self._resolve(keys, hashes, slots)
        return slots

    def slots_of(self, keys: KeyColumns, rows: int) -> I32:
        """Hash the keys and return their slots as `upsert` does; one integer key takes a single pass.

        The array is reused by the next call.
        """
        if not self._hash_decides(keys):
            return self.upsert(keys, hash_key_columns(keys, rows))
        self._reserve(rows)
        slots = self._slots[:rows]
        values = keys[0].values  # type: ignore[union-attr]  # one fixed column, or the hash would not decide
        dense = self.dense
        state = np.array([0, self.count, len(self._hashes), self.count, dense.first, 0], np.int64)
        while self._probe_integers(values, slots, state) < rows:
            self._store_new(keys, state)
        self._store_new(keys, state, full=False)
        if _FAR_PART * int(state[5]) > rows:
            dense.disable()
        dense.follow(self._stores[0].words[: self.count])  # type: ignore[union-attr]  # as above
        return slots

    def _probe_integers(self, values: I64, slots: I32, state: I64) -> int:
        if self.dense.in_use:
            index = (self._table, self._hashes, self.dense.places)
            return int(hashing.probe_dense(index, values, slots, self._created, state))
        return int(hashing.probe_integers((self._table, self._hashes), values, slots, self._created, state))

    def find(self, keys: KeyColumns, hashes: I64) -> I32:
        """Return the slot of the one given key, or no slot; unlike `upsert` this creates none."""
        places, low, wanted = len(self._table) - 1, len(self._table) // 2 - 1, int(hashes[0])
        row, at = np.zeros(1, np.int32), int(hashes[0]) & places
        while entry := int(self._table[at]):
            slot = np.array([(entry & low) - 1], np.int32)
            if int(self._hashes[slot[0]]) == wanted and len(self._unequal(keys, row, slot)) == 0:
                return slot
            at = (at + 1) & places
        return np.empty(0, np.int32)

    def has_hashes(self, hashes: I64) -> np.ndarray:
        """Return a mask of the hashes that some key has."""
        places, low = len(self._table) - 1, np.uint64(len(self._table) // 2 - 1)
        found, at, left = np.zeros(len(hashes), np.bool_), hashes & places, np.arange(len(hashes))
        while len(left):
            entries = self._table[at[left]]
            left, entries = left[entries != 0], entries[entries != 0]
            same = self._hashes[(entries & low).astype(np.int64) - 1] == hashes[left]
            found[left[same]] = True
            left = left[~same]
            at[left] = (at[left] + 1) & places
        return found

    def _resolve(self, keys: KeyColumns, hashes: I64, slots: I32) -> None:
        """Probe on for rows whose slot has another key of the same hash, until every slot holds the row's key."""
        rows = self._every_row[: len(slots)]
        while True:
            rows = self._unequal(keys, rows, slots)
            if len(rows) == 0:
                return
            state = np.array([0, self.count, len(self._hashes), self.count], np.int64)
            while kernels.probe_next((self._table, self._hashes), hashes, (rows, slots), self._created, state) < len(
                rows
            ):
                self._store_new(keys, state)
            self._store_new(keys, state, full=False)

    def _unequal(self, keys: KeyColumns, rows: I32, slots: I32) -> I32:
        bad = np.zeros(len(rows), np.uint8)
        found = 0
        for column, store in zip(keys, self._stores, strict=True):
            found += store.differ(column, rows, slots, bad)  # type: ignore[arg-type]
        return rows[kernels.places(bad)] if found else rows[:0]

    def _hash_decides(self, keys: KeyColumns) -> bool:
        """Return whether the hash identifies the key: one int64 column (the hash is a bijection) without nulls."""
        return (
            len(keys) == 1 and isinstance(keys[0], FixedColumn) and not keys[0].nullable and self._stores[0].nulls == 0
        )

    def _store_new(self, keys: KeyColumns, state: I64, *, full: bool = True) -> None:
        """Store the keys of the slots just created; when the table is full, double it."""
        first, count = self.count, int(state[1])
        rows = self._created[: count - first]
        if count > first:
            for column, store in zip(keys, self._stores, strict=True):
                store.append(column, rows, first)  # type: ignore[arg-type]
            self.count = count
        if full:
            self._grow(2 * len(self._hashes))
            state[2] = len(self._hashes)
        state[3] = self.count

    def _grow(self, capacity: int) -> None:
        self._hashes = grown(self._hashes, capacity)
        for store in self._stores:
            store.grow(capacity)
        self._table = np.zeros(self._entries_a_slot * capacity, np.uint64)
        kernels.rehash(self._table, self._hashes, self.count)

    def _reserve(self, rows: int) -> None:
        if rows > len(self._slots):
            size = max(rows, 2 * len(self._slots), 4096)
            self._slots = np.empty(size, np.int32)
            self._created = np.empty(size, np.int32)
            self._every_row = np.arange(size, dtype=np.int32)


def plain_key_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with dictionary columns as their values."""
    return pa.schema(
        [pa.field(f.name, f.type.value_type, f.nullable) if pt.is_dictionary(f.type) else f for f in schema]
    )


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
