"""Evicted state by key in a `ColdStore`: a packed record for the rows of a key, and an entry for each timer.

Timers are in time order until they are due. A timer may also be in memory, if its key returned. It is the same timer
and fires once, because a deletion removes it in both places. Used by the tables of `state.tables.row_state` and by
sessions, in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import MAX_TIMESTAMP
from penstock.core.errors import UsageError
from penstock.core.keygroup import HASH_MAX
from penstock.kernels.keys import hash_index as kernels
from penstock.kernels.keys.key_columns import (
    BytesColumn,
    bytes_to_arrow,
    fixed_column,
    fixed_to_arrow,
    float_column,
    key_column,
)
from penstock.kernels.keys.key_types import is_fixed
from penstock.state.keys.hash_ranges import RECORD_BYTES
from penstock.state.keys.sorted_keys import bound, decode_keys, encode_keys, hashes_of
from penstock.state.memory.limits import PRODUCTION, StateLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64, U8
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.hash_ranges import LocalBytes
    from penstock.state.keys.key_index import KeyView
    from penstock.state.spill.cold_panes import ColdStore

_WORD = 8
#: Validity bits in a word.
_BITS = 63


class RowPacker:
    """A packer of rows whose columns have these key types; dictionaries are returned plain."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        """Prepare for columns of `types`; without any, a record says only that a row exists."""
        self._types = tuple(t.value_type if pt.is_dictionary(t) else t for t in types)
        #: Words of a line before those of the columns.
        self._heads = max(1, -(-len(self._types) // _BITS))
        self._texts = [k for k, data_type in enumerate(self._types) if not is_fixed(data_type)]
        self._line = (self._heads + len(self._types)) * _WORD

    def pack(self, columns: Sequence[pa.Array], counts: I64) -> list[bytes]:
        """Return a record for each of `counts`, the number of its rows: at least one."""
        rows = int(counts.sum())
        lines = np.zeros((rows, self._line // _WORD), np.int64)
        texts: list[tuple[bytes, list[int]]] = []
        edges = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=edges[1:])
        for k, (array, data_type) in enumerate(zip(columns, self._types, strict=True)):
            if array.null_count:
                there = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
            else:
                there = np.ones(rows, np.int64)
            lines[:, k // _BITS] |= there << (k % _BITS)
            word = lines[:, self._heads + k]
            if is_fixed(data_type):
                plain = array.dictionary_decode() if pt.is_dictionary(array.type) else array
                floats = pt.is_floating(data_type)
                word[:] = float_column(plain).view(np.int64) if floats else fixed_column(plain).values
                continue
            data, starts = _compact(array)
            word[:] = np.diff(starts)
            texts.append((data.tobytes(), starts[edges].tolist()))
        flat, cuts = lines.tobytes(), (edges * self._line).tolist()
        records = [flat[a:b] for a, b in pairwise(cuts)]
        if not self._texts:
            return records
        heads = counts.astype(np.int64).tobytes()
        parts = [[heads[i : i + _WORD] for i in range(0, len(heads), _WORD)], records]
        parts += [[data[a:b] for a, b in pairwise(at)] for data, at in texts]
        return [b"".join(fields) for fields in zip(*parts, strict=True)]

    def unpack(self, records: Sequence[bytes]) -> tuple[I64, list[pa.Array]]:
        """Return the number of rows of each record, and the columns of all."""
        if not self._texts:
            lines = np.frombuffer(b"".join(records), np.int64).reshape(-1, self._line // _WORD)
            sizes = np.fromiter(map(len, records), np.int64, len(records))
            return sizes // self._line, self._arrays(lines, [])
        counts = np.frombuffer(b"".join([record[:_WORD] for record in records]), np.int64)
        stops = (_WORD + counts * self._line).tolist()
        flat = b"".join([record[_WORD:stop] for record, stop in zip(records, stops, strict=True)])
        lines = np.frombuffer(flat, np.int64).reshape(-1, self._line // _WORD)
        firsts = np.cumsum(counts) - counts
        texts = []
        for k in self._texts:
            sizes = np.add.reduceat(lines[:, self._heads + k], firsts)
            ends = (np.array(stops, np.int64) + sizes).tolist()
            texts.append(b"".join([r[a:b] for r, a, b in zip(records, stops, ends, strict=True)]))
            stops = ends
        return counts, self._arrays(lines, texts)

    def _arrays(self, lines: I64, texts: list[bytes]) -> list[pa.Array]:
        arrays, data = [], iter(texts)
        for k, data_type in enumerate(self._types):
            there = ((lines[:, k // _BITS] >> (k % _BITS)) & 1).astype(np.uint8)
            valid = None if there.all() else there
            words = np.ascontiguousarray(lines[:, self._heads + k])
            if is_fixed(data_type):
                arrays.append(fixed_to_arrow(words, valid, data_type))
                continue
            offsets = np.zeros(len(words) + 1, np.int64)
            np.cumsum(words, out=offsets[1:])
            arrays.append(bytes_to_arrow(np.frombuffer(next(data), np.uint8), offsets, valid, data_type))
        return arrays


def _compact(array: pa.Array) -> tuple[U8, I64]:
    """Return the bytes of all rows without gaps, and the offset of each; a null has none."""
    column = key_column(array)
    assert isinstance(column, BytesColumn)  # noqa: S101 - what is not fixed is bytes
    rows = np.arange(len(array), dtype=np.int32)
    data = np.empty(int(kernels.bytes_of_rows(column.offsets, rows)), np.uint8)
    starts = np.zeros(len(array) + 1, np.int64)
    valid = np.empty(len(array), np.uint8)
    source = (column.data, column.offsets, column.bitmap)
    kernels.append_bytes(source, column.bit_offset, rows, 0, (data, starts, valid))
    return data[: starts[-1]], starts


def slot_batches(slots: I32, most: int) -> Iterator[I32]:
    """Yield evicted slots in batches of at most `most`: as bytes their rows take several times as much."""
    for first in range(0, len(slots), most):
        yield slots[first : first + most]


class SpillStore:
    """The cold store of one operator's row state, opened at the first eviction."""

    def __init__(self, open_store: Callable[[], ColdStore], limits: StateLimits = PRODUCTION) -> None:
        """Open nothing."""
        self._open = open_store
        self.limits = limits
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

    def close(self) -> None:
        """Close and remove the store."""
        store, self._store = self._store, None
        if store is not None:
            store.close()


@dataclass(frozen=True, slots=True)
class LoadedRows:
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

    def __init__(self, spill_store: SpillStore, types: Sequence[pa.DataType]) -> None:
        """Start without cold rows; `types` are those of a row's columns."""
        self._spill_store = spill_store
        self._number = spill_store.number()
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
        self._spill_store.store.put(rows.names, rows.values)
        self.count += len(rows.names)
        if self._spill_store.local is not None:
            self._spill_store.local.add(rows.hashes, _sizes_of(rows.values))

    def drop_range(self, part: HashRange) -> None:
        """Remove the keys in a hash range; `count` still includes them."""
        behind = bound(self._number + 1) if part.high == HASH_MAX else bound(self._number, part.high + 1)
        self._spill_store.store.delete_range(bound(self._number, part.low), behind)

    def take(self, keys: KeyView, slots: I32) -> LoadedRows | None:
        """Return and remove the rows of these distinct keys with one sorted read."""
        if self.count == 0 or len(slots) == 0:
            return None
        taken, there, values = self._read(keys, slots)
        if taken is not None:
            self._spill_store.store.delete(there)
            self.count -= len(there)
            if self._spill_store.local is not None:
                self._spill_store.local.add(keys.hashes[taken.slots], -_sizes_of(values))
        return taken

    def look_up(self, keys: KeyView, slots: I32) -> LoadedRows | None:
        """Return the rows of these keys as `take` does, without removing them."""
        return self._read(keys, slots)[0] if self.count else None

    def _read(self, keys: KeyView, slots: I32) -> tuple[LoadedRows | None, list[bytes], list[bytes]]:
        """Return the rows of keys in the store, with their names and records there."""
        slots = slots[np.argsort(keys.hashes[slots])]
        names = encode_keys(keys, slots, np.full(len(slots), self._number, np.int64))
        found, there, values = [], list[bytes](), list[bytes]()
        for place, value in enumerate(self._spill_store.store.get(names)):
            if value is not None:
                found.append(place)
                there.append(names[place])
                values.append(value)
        if not found:
            return None, there, values
        counts, columns = self._packer.unpack(values)
        return LoadedRows(slots[found], counts, columns), there, values

    def sweep(self, limit: int, deadline: int) -> list[bytes]:
        """Check the next `limit` keys, in turn, and remove those whose rows were all last accessed by `deadline`.

        The time of last access is the last column. Return the removed keys as records.
        """
        if self.count == 0:
            return []
        store = self._spill_store.store
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
            if self._spill_store.local is not None:
                self._spill_store.local.add(hashes_of(gone), -_sizes_of(list(compress(values, old))))
        return gone


def _sizes_of(records: Sequence[bytes]) -> I64:
    return np.fromiter(map(len, records), np.int64, len(records)) + RECORD_BYTES


_PREFIX = 8
#: Timers that a query reads between two checks of its limit.
_LOOKED_PIECE = 4096


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
        #: Lower bound of the names, so that a scan skips deleted ones.
        self._first = self._prefix
        #: Lower bound of the times; None: no timer.
        self.least: int | None = None
        #: Upper bound of the number of timers.
        self.count = 0

    def put(self, keys: KeyView, slots: I32, times: I64) -> None:
        """Store timers; storing one twice has no effect."""
        if len(slots) == 0:
            return
        names = self._names(keys, slots, times)
        self.spill_store.store.put(names, [b""] * len(names))
        self._first = min(self._first, *names)
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
        for names, _ in self.spill_store.store.scan(self._bound(self.least), self._stop, _LOOKED_PIECE):
            found = [name for name in names if name[2 * _PREFIX :] == key]
            times += decode_times(found).tolist()
            looked += len(names)
            if len(times) >= most:
                break
            if looked >= self.spill_store.limits.searched_timers:
                msg = f"the first {looked:,} timers of keys on disk do not include enough of this key"
                raise UsageError(msg, hint="take a savepoint and read its state (ps.snapshots.read)")
        return times[:most]

    def take(self, key_schema: pa.Schema, until: int, limit: int) -> DueTimers | None:
        """Return the first timers up to a time, about `limit`: all of a time, or a part of a single time."""
        if self.least is None or self.least > until:
            return None
        first = max(self._first, self._bound(self.least))
        names, _ = next(self.spill_store.store.scan(first, self._end_key(until), limit + 1), ([], []))
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
        self.spill_store.store.delete(names[:stop])
        self._first = names[stop - 1] + b"\0"
        self.count = max(0, self.count - stop)
        if len(names) <= limit:
            self._look(until)
        if stop < len(names):
            columns, hashes, times = decode_keys(key_schema, [name[_PREFIX:] for name in names[:stop]])
        return DueTimers(columns, hashes, times, reached, more)

    def _look(self, until: int) -> None:
        """Find the first timer after `until`, up to which there is none."""
        self.least = None
        if until < MAX_TIMESTAMP:
            names, _ = next(self.spill_store.store.scan(self._bound(until + 1), self._stop, 1), ([], []))
            if names:
                self.least = int(decode_times(names)[0])
        if self.least is None:
            self.count = 0

    def _names(self, keys: KeyView, slots: I32, times: I64) -> list[bytes]:
        return [self._prefix + name for name in encode_keys(keys, slots, times)]

    def _bound(self, time: int) -> bytes:
        return self._prefix + bound(time)[:_PREFIX]

    def _end_key(self, until: int) -> bytes:
        return self._stop if until == MAX_TIMESTAMP else self._bound(until + 1)


def decode_times(names: list[bytes]) -> I64:
    """Return the times of store keys."""
    raw = np.frombuffer(b"".join(name[_PREFIX : 2 * _PREFIX] for name in names), ">u8").astype(np.uint64)
    return (raw ^ np.uint64(1 << 63)).view(np.int64)
