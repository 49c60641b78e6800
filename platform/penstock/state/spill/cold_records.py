"""Evicted state by key in RocksDB: a record for each key with its rows of all states, an entry for each timer.

Timers are in time order until they are due. A timer may also be in memory, if its key returned. It is the same timer
and fires once, because a deletion removes it in both places. Used by the tables of `state.tables.row_state` and by
sessions, in the owner's thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.elements import MAX_TIMESTAMP
from penstock.core.errors import UsageError
from penstock.kernels.keys.key_columns import FixedColumn, bytes_to_arrow, fixed_to_arrow, value_column
from penstock.kernels.keys.key_types import is_fixed
from penstock.state.keys.column_store import BytesStore, new_store
from penstock.state.keys.sorted_keys import bound, bounds, decode_keys, encode_keys, second_numbers
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.spill.rocksdb import RECORD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.keygroup import HashRange
    from penstock.kernels.compiler.compile import I32, I64, U8
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.key_index import KeyView
    from penstock.state.spill.rocksdb import LocalBytes, RocksStore

#: A record of a key from its parts, and back; parts of states that were added later are missing.
_JOINED, _PARTED = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(list[bytes]).decode
#: Precedes the lines of a part: the number of its layout, and of its rows.
_HEAD = np.dtype([("layout", "<u2"), ("rows", "<u4")])
_VALID = "valid"


class RowPacker:
    """A packer of the rows of keys in one state, a part of their records; dictionaries are returned plain.

    A part is empty if its key has no rows. A row is a line of integers as narrow as all values so far allow: a value of
    a fixed type, or the bytes of a text. The validity of the columns precedes them once there was a null.
    """

    def __init__(self, types: Sequence[pa.DataType], number: int = 0) -> None:
        """Prepare for columns of `types`; without any, a part says only how many rows exist.

        `number` is the place among the parts of a record.
        """
        self.number = number
        self._types = tuple(t.value_type if pt.is_dictionary(t) else t for t in types)
        self._texts = [k for k, data_type in enumerate(self._types) if not is_fixed(data_type)]
        self._widths = [1] * len(self._types)
        self._nulls = not self._types
        #: Those in parts; the last one is in use.
        self._layouts = [self._layout()]
        self._widening = threading.Lock()

    def _layout(self) -> np.dtype[Any]:
        valid = [(_VALID, "u1", (max(1, -(-len(self._types) // 8)),))] if self._nulls else []
        return np.dtype([*valid, *((f"c{k}", f"<i{width}") for k, width in enumerate(self._widths))])

    def _fitting(self, words: Sequence[I64], *, nulls: bool) -> tuple[int, np.dtype[Any]]:
        """Return the number and layout for rows, after it was widened if these values do not fit it; any thread."""
        least = list(map(_width_of, words))
        with self._widening:
            widths = [max(pair) for pair in zip(self._widths, least, strict=True)]
            if widths != self._widths or (nulls and not self._nulls):
                self._widths, self._nulls = widths, self._nulls or nulls
                self._layouts.append(self._layout())
            return len(self._layouts) - 1, self._layouts[-1]

    def pack(self, rows: KeyRows) -> list[bytes]:
        """Return the part of each key."""
        columns, counts, total = rows.columns, rows.counts, int(rows.counts.sum())
        if total == 0:
            return [b""] * len(counts)
        words: list[I64] = []
        texts: list[list[bytes]] = []
        for array, data_type in zip(columns, self._types, strict=True):
            column = value_column(array)
            if isinstance(column, FixedColumn):
                words.append(column.values)
                continue
            store = new_store(data_type, total, 0)
            assert isinstance(store, BytesStore)  # noqa: S101 - as its values
            store.append(column, np.arange(total, dtype=np.int32), 0)  # without gaps; a null has no bytes
            words.append(np.diff(store.starts))
            texts.append(_cut(store.data[: store.starts[-1]].tobytes(), store.starts[_edges(counts)]))
        number, layout = self._fitting(words, nulls=any(array.null_count for array in columns))
        lines = np.zeros(total, layout)
        for k, word in enumerate(words):
            lines[f"c{k}"] = word
        if columns and _has_valid(layout):
            valid = [array.is_valid().to_numpy(zero_copy_only=False) for array in columns]
            lines[_VALID] = np.packbits(np.column_stack(valid), axis=1, bitorder="little")
        there = counts > 0
        heads = np.empty(int(there.sum()), _HEAD)
        heads["layout"], heads["rows"] = number, counts[there]
        edges = _edges(there * (_HEAD.itemsize + counts * layout.itemsize))
        data = np.empty(edges[-1], np.uint8)
        data[_spans(edges[:-1][there], _HEAD)] = heads.view(np.uint8).reshape(-1, _HEAD.itemsize)
        data[_line_spans(edges[:-1], counts, layout)] = lines.view(np.uint8).reshape(total, -1)
        parts = _cut(data.tobytes(), edges)
        return list(map(b"".join, zip(parts, *texts, strict=True))) if texts else parts

    def counts(self, parts: Sequence[bytes]) -> I64:
        """Return the number of rows of each key."""
        return _opened(parts)[2]["rows"].astype(np.int64)

    def unpack(self, parts: Sequence[bytes]) -> KeyRows:
        """Return the rows of keys from their parts."""
        data, starts, heads = _opened(parts)
        counts = heads["rows"].astype(np.int64)
        words = np.empty((len(self._types), int(counts.sum())), np.int64)
        valid = np.ones((words.shape[1], len(self._types)), np.uint8) if self._nulls else None
        stops = np.empty(len(parts), np.int64)
        for number in np.unique(heads["layout"]).tolist():
            layout, which = self._layouts[number], heads["layout"] == number
            stops[which] = _HEAD.itemsize + counts[which] * layout.itemsize
            lines = data[_line_spans(starts[which], counts[which], layout)].view(layout)[:, 0]
            places = slice(None) if which.all() else np.repeat(which, counts)
            for k in range(len(words)):
                words[k, places] = lines[f"c{k}"]
            if valid is not None and _has_valid(layout):
                valid[places] = np.unpackbits(lines[_VALID], axis=1, count=len(words), bitorder="little")
        rows, texts = _edges(counts), list[bytes]()
        for k in self._texts:
            begins, stops = stops, stops + np.diff(_edges(words[k])[rows])
            spans = zip(parts, begins.tolist(), stops.tolist(), strict=True)
            texts.append(b"".join([part[begin:stop] for part, begin, stop in spans]))
        return KeyRows(counts, self._arrays(words, valid, texts))

    def _arrays(self, words: I64, valid: np.ndarray | None, texts: list[bytes]) -> list[pa.Array]:
        arrays, data = [], iter(texts)
        for k, data_type in enumerate(self._types):
            there = None if valid is None or valid[:, k].all() else np.ascontiguousarray(valid[:, k])
            if is_fixed(data_type):
                arrays.append(fixed_to_arrow(words[k], there, data_type))
                continue
            text = np.frombuffer(next(data), np.uint8)
            arrays.append(bytes_to_arrow(text, _edges(words[k]), there, data_type))
        return arrays


def _has_valid(layout: np.dtype[Any]) -> bool:
    return layout.names is not None and _VALID in layout.names


def _width_of(words: I64) -> int:
    """Return the bytes of the narrowest integers that have these values."""
    bits = max(int(words.max()), -1 - int(words.min())).bit_length() + 1
    return next(width for width in (1, 2, 4, 8) if bits <= 8 * width)


def _spans(starts: I64, item: np.dtype[Any]) -> I64:
    """Return the places of the bytes of items with these starts, a line for each."""
    spans: I64 = starts[:, None] + np.arange(item.itemsize)
    return spans


def _line_spans(starts: I64, counts: I64, layout: np.dtype[Any]) -> I64:
    """Return the places of the bytes of all lines, from the start of each part and its number of lines."""
    numbers = np.arange(counts.sum()) - np.repeat(_edges(counts)[:-1], counts)
    return _spans(np.repeat(starts + _HEAD.itemsize, counts) + numbers * layout.itemsize, layout)


def _opened(parts: Sequence[bytes]) -> tuple[U8, I64, np.ndarray]:
    """Return the bytes of parts, the start of each in them, and the heads; that of an empty part is zero."""
    data = np.frombuffer(b"".join(parts), np.uint8)
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    starts, heads, there = _edges(sizes)[:-1], np.zeros(len(parts), _HEAD), sizes > 0
    heads[there] = data[_spans(starts[there], _HEAD)].view(_HEAD)[:, 0]
    return data, starts, heads


def _edges(counts: I64) -> I64:
    """Return the end of each one of a number of items in a row, after a zero."""
    edges = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=edges[1:])
    return edges


def _cut(data: bytes, edges: I64) -> list[bytes]:
    return [data[a:b] for a, b in pairwise(edges.tolist())]


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

    def __init__(self, open_store: Callable[[], RocksStore], limits: StateLimits = PRODUCTION) -> None:
        """Open nothing."""
        self._open = open_store
        self.limits = limits
        self._store: RocksStore | None = None
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
    def store(self) -> RocksStore:
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
            keys.hashes[slots[there]], self._names(keys, slots[there]), list(map(_JOINED, compress(records, there)))
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
                written.append(_JOINED(left))
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

    def keys_until(self, key_schema: pa.Schema, until: int) -> Iterator[tuple[KeyColumns, I64]]:
        """Yield the keys of timers up to a time and their hashes in batches, without removing the timers."""
        for names, _ in () if self.least is None else self.spill_store.store.scan(*self._span(self.least, until)):
            keys, hashes, _ = decode_keys(key_schema, [name[_PREFIX:] for name in names])
            yield keys, hashes

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
