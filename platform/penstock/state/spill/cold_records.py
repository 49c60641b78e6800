"""Evicted state by key in RocksDB: a record for each key with its rows of all states, an entry for each timer.

Timers are in time order until they are due. A timer may also be in memory, if its key returned. It is the same timer
and fires once, because a deletion removes it in both places. Used by the tables of `state.tables.row_state` and by
sessions, in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, compress, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import MAX_TIMESTAMP
from penstock.core.errors import UsageError
from penstock.kernels.keys.key_types import is_fixed
from penstock.kernels.rows.python_values import plain_values
from penstock.state.keys.sorted_keys import bound, bounds, decode_keys, encode_keys, second_numbers
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.spill.rocksdb import RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.spill.rocksdb import LocalBytes, SortedStore

#: A record of a key from its parts, and back; parts of states that were added later are missing.
_ENCODED, _PARTED = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(list[bytes]).decode
_ROWS, _NO_ROWS = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode, _ENCODED([])
#: Types whose Python values are in parts.
_PLAIN = (pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.binary())
#: The type of the values in parts for any other type, by its bits.
_WORDS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64(), 128: pa.binary(16)}


class RowPacker:
    """A packer of the rows of keys in one state, a part of their records; dictionaries are returned plain.

    A part is the list of the rows of its key in MessagePack; it is empty if there are none.
    """

    def __init__(self, types: Sequence[pa.DataType], number: int = 0) -> None:
        """Prepare for columns of `types`; without any, a part says only how many rows exist.

        `number` is the place among the parts of a record.
        """
        self.number = number
        self._types = tuple(t.value_type if pt.is_dictionary(t) else t for t in types)
        self._packed = tuple(map(_packed_type, self._types))
        #: Whether the values in parts are the Python values of the columns.
        self.plain = all(data_type in _PLAIN for data_type in self._types)

    def pack(self, rows: KeyRows) -> list[bytes]:
        """Return the part of each key."""
        if not rows.counts.any():
            return [b""] * len(rows.counts)
        columns = [_packed_values(*each) for each in zip(rows.columns, self._packed, strict=True)]
        every = list(zip(*columns, strict=True)) if columns else [()] * int(rows.counts.sum())
        edges = np.append(0, np.cumsum(rows.counts)).tolist()
        return [_ENCODED(every[low:high]) if low < high else b"" for low, high in pairwise(edges)]

    def unpack(self, parts: Sequence[bytes]) -> KeyRows:
        """Return the rows of keys from their parts."""
        found = list(self.decode(parts))
        counts = np.fromiter(map(len, found), np.int64, len(found))
        columns = list(zip(*chain.from_iterable(found), strict=True)) or [()] * len(self._types)
        types = zip(columns, self._packed, self._types, strict=True)
        return KeyRows(counts, [pa.array(values, packed).view(data_type) for values, packed, data_type in types])

    @staticmethod
    def encode(rows: Iterable[Iterable[tuple[Any, ...]]]) -> list[bytes]:
        """Return the part of each key from its rows, at least one, of values as they are in parts."""
        return list(map(_ENCODED, map(list, rows)))

    @staticmethod
    def decode(parts: Sequence[bytes]) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of each key, of values as they are in parts."""
        return map(_ROWS, [part or _NO_ROWS for part in parts])


def _packed_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of the values in parts for a type."""
    if data_type in _PLAIN or not (is_fixed(data_type) or pt.is_decimal128(data_type)):
        return data_type
    return _WORDS[data_type.bit_width]


def _packed_values(array: pa.Array, packed: pa.DataType) -> list[Any]:
    return plain_values((array.dictionary_decode() if pt.is_dictionary(array.type) else array).view(packed))


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Rows of one state, in the order of their keys: the number of each key's rows, possibly none, and the columns."""

    counts: I64
    columns: list[pa.Array]

    @classmethod
    def of(cls, columns: Sequence[pa.Array], keys: I64 | I32, count: int, *, by_first: bool) -> KeyRows:
        """Group rows by their key, a number below `count`; with `by_first` those of a key are sorted by column 0."""
        order = np.lexsort((columns[0].to_numpy(), keys)) if by_first else np.argsort(keys, kind="stable")
        chosen = pa.array(order)
        return cls(np.bincount(keys, minlength=count), [column.take(chosen) for column in columns])


@dataclass(frozen=True, slots=True)
class PackedKeys:
    """Names and records of keys for the store."""

    hashes: I64
    names: list[bytes]
    values: list[bytes]

    def chosen(self, which: np.ndarray) -> PackedKeys:
        """Return the selected records."""
        return PackedKeys(self.hashes[which], list(compress(self.names, which)), list(compress(self.values, which)))


class SpillStore:
    """The evicted keys of one operator: a record for each key, with its rows of all states.

    A record stays when its key is loaded, and is out of date from then on: the next eviction replaces it, and its owner
    deletes that of a key without rows. The store is opened at the first eviction. Timers are in it as well
    (`ColdTimers`).
    """

    def __init__(self, open_store: Callable[[], SortedStore], limits: StateLimits = PRODUCTION) -> None:
        """Open nothing."""
        self._open = open_store
        self.limits = limits
        self._store: SortedStore | None = None
        #: Of each state.
        self.packers: list[RowPacker] = []
        self._numbers = 0
        self._prefix = self.number()
        #: Whether a record was ever stored.
        self._used = False
        self._swept = bound(self._prefix)
        #: Local bytes of records, if records may be dropped and fetched again.
        self.local: LocalBytes | None = None

    @property
    def store(self) -> SortedStore:
        """The store."""
        if self._store is None:
            self._store = self._open()
        return self._store

    def number(self) -> int:
        """Return a number for another kind of record, the prefix of its names in the store."""
        self._numbers += 1
        return self._numbers

    def add(self, types: Sequence[pa.DataType]) -> RowPacker:
        """Add a state whose rows have columns of these types; return the packer of its part of a record."""
        self.packers.append(RowPacker(types, len(self.packers)))
        return self.packers[-1]

    def put(self, keys: KeyView, slots: I32, parts: Sequence[list[bytes]]) -> None:
        """Store the parts of each state for distinct keys, in hash order; this replaces their records."""
        if len(slots):
            self.put_packed(self.packed(keys, slots, parts))

    def packed(self, keys: KeyView, slots: I32, parts: Sequence[list[bytes]]) -> PackedKeys:
        """Return the records of distinct keys, without keys that have no row in any state; any thread."""
        records = list(zip(*parts, strict=True))
        there = np.fromiter(map(any, records), np.bool_, len(records))
        return PackedKeys(
            keys.hashes[slots[there]], self._names(keys, slots[there]), list(map(_ENCODED, compress(records, there)))
        )

    def put_packed(self, rows: PackedKeys) -> None:
        """Store records."""
        if not rows.names:
            return
        self.store.put(rows.names, rows.values)
        self._used = True
        if self.local is not None:
            self.local.add(rows.hashes, _sizes_of(rows.values))

    def load(self, keys: KeyView, slots: I32) -> tuple[I32, list[list[bytes]]] | None:
        """Return those of these distinct keys that have a record, in hash order, and their parts of each state.

        None: no key has a record. All are read with one sorted read.
        """
        if not self._used or len(slots) == 0:
            return None
        found, values = self._read(keys, slots)
        if len(found) == 0:
            return None
        if self.local is not None:
            self.local.add(keys.hashes[found], -_sizes_of(values))
        return found, self._parts(values)

    def look_up(self, keys: KeyView, slots: I32, packer: RowPacker) -> KeyRows | None:
        """Return the rows of one key in one state without removing them; None: it has none."""
        values = self._read(keys, slots)[1] if self._used else []
        part = self._parts(values)[packer.number] if values else [b""]
        return packer.unpack(part) if any(part) else None

    def _read(self, keys: KeyView, slots: I32) -> tuple[I32, list[bytes]]:
        """Return the keys that have a record, in hash order, and the records."""
        slots = slots[np.argsort(keys.hashes[slots])]
        values = self.store.get(self._names(keys, slots))
        found = [value for value in values if value is not None]
        if len(found) < len(slots):
            slots = slots[[value is not None for value in values]]
        return slots, found

    def delete(self, keys: KeyView, slots: I32) -> None:
        """Remove the records of keys, whose rows were loaded or removed; a key may have none."""
        if self._used and len(slots):
            self.store.delete(self._names(keys, slots))

    def _names(self, keys: KeyView, slots: I32) -> list[bytes]:
        return encode_keys(keys, slots, np.full(len(slots), self._prefix, np.int64))

    def _parts(self, values: Sequence[bytes]) -> list[list[bytes]]:
        """Return the parts of each state from some records, some of which may be from before all states were added."""
        records = list(map(_PARTED, values))
        for record in records if min(map(len, records)) < len(self.packers) else ():
            record.extend([b""] * (len(self.packers) - len(record)))
        return list(map(list, zip(*records, strict=True)))

    def drop_range(self, part: HashRange) -> None:
        """Remove the records in a hash range."""
        self.store.delete_range(*bounds(self._prefix, part))

    def sweep(
        self, limit: int, deadlines: Sequence[int | None], in_memory: Callable[[I64], np.ndarray]
    ) -> list[list[bytes]]:
        """Check the next `limit` keys, in turn, and remove the rows of a state that have all expired.

        `deadlines` has the time of last access up to which rows of each state expired, None without a time-to-live; it
        is the last column. Records of keys in memory may be out of date and stay: `in_memory` is the mask of such
        hashes. Return by state the names of the keys whose rows were removed.
        """
        none: list[list[bytes]] = [[] for _ in deadlines]
        if not self._used:
            return none
        names, values = next(self.store.scan(self._swept, bound(self._prefix + 1), limit), ([], []))
        if not names:
            self._swept = bound(self._prefix)
            return none
        self._swept = names[-1] + b"\0"
        parts = self._parts(values)
        gone = np.stack([_expired(*each) for each in zip(self.packers, parts, deadlines, strict=True)])
        if gone.any():
            gone &= ~in_memory(second_numbers(names))
            self._replace(names, values, parts, gone)
        return [list(compress(names, which)) for which in gone]

    def _replace(self, names: list[bytes], values: list[bytes], parts: Sequence[list[bytes]], gone: np.ndarray) -> None:
        """Write records again without the parts of states that are `gone`; remove those of which nothing is left."""
        changed, kept, written = np.flatnonzero(gone.any(axis=0)), list[int](), list[bytes]()
        for place in changed.tolist():
            left = [b"" if which[place] else own[place] for own, which in zip(parts, gone, strict=True)]
            if any(left):
                kept.append(place)
                written.append(_ENCODED(left))
        self.store.put([names[place] for place in kept], written)
        self.store.delete([names[place] for place in np.setdiff1d(changed, kept).tolist()])
        if self.local is not None:
            hashes = second_numbers(names)
            self.local.add(hashes[changed], -_sizes_of([values[place] for place in changed.tolist()]))
            self.local.add(hashes[kept], _sizes_of(written))

    def close(self) -> None:
        """Close and remove the store."""
        store, self._store = self._store, None
        if store is not None:
            store.close()


def _sizes_of(records: Sequence[bytes]) -> I64:
    return np.fromiter(map(len, records), np.int64, len(records)) + RECORD_BYTES


def _expired(packer: RowPacker, parts: Sequence[bytes], deadline: int | None) -> np.ndarray:
    """Return a mask of the keys that have rows, all of them last accessed at `deadline` or before."""
    gone = np.zeros(len(parts), np.bool_)
    if deadline is not None and any(parts):
        rows = packer.unpack(parts)
        there = rows.counts > 0
        firsts = np.cumsum(rows.counts[there]) - rows.counts[there]
        gone[there] = np.maximum.reduceat(rows.columns[-1].to_numpy(), firsts) <= deadline
    return gone


_PREFIX = 8
#: Timers that a query reads between two checks of its limit.
_LOOKED_PIECE = 4096
#: Taken timers that are deleted together: one range costs about as much as one timer.
_MOST_TAKEN = 65_536


@dataclass(frozen=True, slots=True)
class DueTimers:
    """Timers in time order that were taken out of the store."""

    keys: KeyColumns
    hashes: I64
    times: I64
    #: All remaining timers are later than this; with `more`, some at this time remain, and all taken ones are at it.
    reached: int
    more: bool = False


class ColdTimers:
    """The timers of one kind of time of one operator."""

    def __init__(self, spill_store: SpillStore) -> None:
        """Start without timers."""
        self.spill_store = spill_store
        number = spill_store.number()
        self._prefix, self._stop = bound(number)[:_PREFIX], bound(number + 1)[:_PREFIX]
        #: Lower bound of the names; those of taken timers are below it until they are deleted together.
        self._first, self._taken = self._prefix, 0
        #: Lower bound of the times; None: no timer.
        self.least: int | None = None
        #: Upper bound of the number of timers.
        self.count = 0

    def put(self, keys: KeyView, slots: I32, times: I64) -> None:
        """Store timers; storing one twice has no effect."""
        if len(slots) == 0:
            return
        names = self._names(keys, slots, times)
        lowest = min(names)
        if lowest < self._first:
            self._delete_taken()
            self._first = lowest
        self.spill_store.store.put(names, [b""] * len(names))
        low = int(times.min())
        self.least = low if self.least is None else min(low, self.least)
        self.count += len(names)

    def forget(self, keys: KeyView, slots: I32, times: I64) -> None:
        """Delete timers that may or may not be in the store."""
        if self.least is None:
            return
        there = times >= self.least
        if there.any():
            self.spill_store.store.delete(self._names(keys, slots[there], times[there]))

    def look_up(self, keys: KeyView, slots: I32, most: int) -> list[int]:
        """Return the times of the first `most` timers of one key, ascending, without removing them.

        Raises:
            UsageError: too many timers of other keys are before them.
        """
        if self.least is None:
            return []
        key, times, looked = encode_keys(keys, slots, np.zeros(1, np.int64))[0][_PREFIX:], list[int](), 0
        first = max(self._first, self._bound(self.least))
        for names, _ in self.spill_store.store.scan(first, self._stop, _LOOKED_PIECE):
            found = [name for name in names if name[2 * _PREFIX :] == key]
            times += second_numbers(found).tolist()
            looked += len(names)
            if len(times) >= most:
                break
            if looked >= self.spill_store.limits.searched_timers:
                msg = f"the first {looked:,} timers of keys on disk do not include enough of this key"
                raise UsageError(msg, hint="take a savepoint and read its state (ps.snapshots.read)")
        return times[:most]

    def _span(self, least: int, until: int) -> tuple[bytes, bytes]:
        """Return the names from the first timer to those up to a time."""
        end = self._stop if until >= MAX_TIMESTAMP else self._bound(until + 1)
        return max(self._first, self._bound(least)), end

    def take(self, key_schema: pa.Schema, until: int, limit: int) -> DueTimers | None:
        """Return the first timers up to a time, about `limit`: all of a time, or a part of a single time."""
        if self.least is None or self.least > until:
            return None
        names, _ = next(self.spill_store.store.scan(*self._span(self.least, until), limit + 1), ([], []))
        if not names:
            self._look(until)
            return None
        columns, hashes, times = decode_keys(key_schema, [name[_PREFIX:] for name in names])
        stop, reached, more = len(names), until, False
        if stop > limit:
            reached = int(times[-1]) - 1
            stop = int(np.searchsorted(times, times[-1]))
            if stop == 0:
                stop, reached, more = limit, int(times[-1]), True
            self.least = int(times[stop])
        self._first = names[stop - 1] + b"\0"
        self._taken += stop
        if self._taken >= _MOST_TAKEN:
            self._delete_taken()
        self.count = max(0, self.count - stop)
        if len(names) <= limit:
            self._look(until)
        if stop < len(names):
            columns, hashes, times = decode_keys(key_schema, [name[_PREFIX:] for name in names[:stop]])
        return DueTimers(columns, hashes, times, reached, more)

    def _delete_taken(self) -> None:
        if self._taken:
            self.spill_store.store.delete_range(self._prefix, self._first)
            self._taken = 0

    def _look(self, until: int) -> None:
        """Find the first timer after `until`, up to which there is none."""
        self.least = None
        if until < MAX_TIMESTAMP:
            names, _ = next(self.spill_store.store.scan(self._bound(until + 1), self._stop, 1), ([], []))
            if names:
                self.least = int(second_numbers(names)[0])
        if self.least is None:
            self.count = 0

    def _names(self, keys: KeyView, slots: I32, times: I64) -> list[bytes]:
        return [self._prefix + name for name in encode_keys(keys, slots, times)]

    def _bound(self, time: int) -> bytes:
        return self._prefix + bound(time)[:_PREFIX]
