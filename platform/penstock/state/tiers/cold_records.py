"""Keys that are not in memory, in RocksDB: a record for each with its rows of all states.

With remote state, records are made from the rows in the object store when their key is used. Used by the tables of
`state.tables.row_state` and by sessions, in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.core.keygroup import HashRange
from penstock.kernels.keys.key_types import is_fixed
from penstock.kernels.rows.python_values import plain_values
from penstock.state.keys.key_index import KeyIndex
from penstock.state.keys.sorted_keys import bound, bounds, encode_keys, second_numbers
from penstock.state.log.row_spec import RowSpec
from penstock.state.log.segment_columns import keyed_batch
from penstock.state.memory.limits import PRODUCTION, StateLimits
from penstock.state.tiers.range_fetcher import RangeFetcher
from penstock.state.tiers.rocksdb import RECORD_BYTES, LocalBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.cells.accumulators import PaneTableSpec
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSource
    from penstock.state.tiers.remote_log import OpenLog, RemoteLog
    from penstock.state.tiers.rocksdb import SortedStore

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


@dataclass(frozen=True, slots=True)
class _RemoteRows:
    """One state whose rows are fetched, and the columns of its rows in a record."""

    log: RemoteLog
    #: Selects the columns of a record's rows from those of a segment.
    columns: Callable[[pa.RecordBatch], list[pa.Array]]
    #: Whether the rows of a key are sorted by the first of these columns.
    by_first: bool

    def of_keys(self, batch: pa.RecordBatch, slots: I32, count: int) -> KeyRows:
        """Return the rows of `count` keys in the order of their slots."""
        if batch.num_rows == 0:
            return KeyRows(np.zeros(count, np.int64), [])
        return KeyRows.of(self.columns(batch), slots, count, by_first=self.by_first)


class SpillStore:
    """The keys of one operator that are not in memory: a record for each key, with its rows of all states.

    A record stays when its key is loaded, and is out of date from then on: the next eviction replaces it, and its owner
    deletes that of a key without rows. The store is opened at the first eviction. Timers are in it as well
    (`ColdTimers`). With remote state it is one `range_fetcher.RemoteTable`.
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
        #: Opens the logs of remote states, and fetches their keys, whose local records may be dropped; None: all keys
        #: are local.
        self.open_log: OpenLog | None = None
        self.fetcher: RangeFetcher[PackedKeys] | None = None
        self._local: LocalBytes | None = None
        self._remote: list[_RemoteRows] = []
        self._key_schema = pa.schema([])

    def fetch_with(self, open_log: OpenLog, owned: HashRange, limit_bytes: int) -> RangeFetcher[PackedKeys]:
        """Let keys be remote, before the first state is added; about `limit_bytes` may be taken on the local disk."""
        self.open_log, self._local = open_log, LocalBytes(owned, self.limits.regions)
        regions, rows = self._local.regions, self.limits.prefetched_rows
        self.fetcher = RangeFetcher(self, regions, limit_bytes, self.limits, rows)
        return self.fetcher

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

    def add(
        self,
        types: Sequence[pa.DataType],
        source: FrozenSource[RowSpec] | FrozenSource[PaneTableSpec] | None = None,
        columns: Callable[[pa.RecordBatch], list[pa.Array]] | None = None,
    ) -> RowPacker:
        """Add a state whose rows have columns of these types; return the packer of its part of a record.

        All are added before the first key is used. Remote rows are those of `source`; `columns` selects the columns of
        a record's rows from those of a segment, unless they are the same.
        """
        self.packers.append(RowPacker(types, len(self.packers)))
        if self.fetcher is not None and self.open_log is not None and source is not None:
            log, spec = self.open_log(source), source.spec
            index = isinstance(spec, RowSpec) and [field.type for field in spec.entries] == [pa.int64()]  # of a list
            self._remote.append(_RemoteRows(log, columns or partial(_record_columns, source), index))
            self.fetcher.logs.append(log)
            self._key_schema = spec.key_schema
            log.start_clock()
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
        if self._local is not None:
            self._local.add(rows.hashes, _sizes_of(rows.values))

    def load(self, keys: KeyView, slots: I32) -> Iterator[tuple[I32, list[list[bytes]]]]:
        """Yield those of these distinct keys that have a record, in hash order, and their parts of each state.

        Local keys are read with one sorted read; of remote ones the records may be dropped when the next ones are
        fetched. Raises as `RangeFetcher.ensure`.
        """
        whole = (np.arange(len(slots)),) if len(slots) else ()
        for places in whole if self.fetcher is None else self.fetcher.local_parts(keys.hashes[slots]):
            found, values = self._read(keys, slots[places])
            if len(found) == 0:
                continue
            if self._local is not None:
                self._local.add(keys.hashes[found], -_sizes_of(values))
            yield found, self._parts(values)

    def look_up(self, keys: KeyView, slots: I32, packer: RowPacker) -> KeyRows | None:
        """Return the rows of one key in one state without removing them; None: it has none; raises as `load`."""
        if self.fetcher is not None:
            self.fetcher.ensure(keys.hashes[slots])
        values = self._read(keys, slots)[1]
        part = self._parts(values)[packer.number] if values else [b""]
        return packer.unpack(part) if any(part) else None

    def _read(self, keys: KeyView, slots: I32) -> tuple[I32, list[bytes]]:
        """Return the keys that have a record, in hash order, and the records."""
        if not self._used:
            return slots[:0], []
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
        if self._local is not None:
            hashes = second_numbers(names)
            self._local.add(hashes[changed], -_sizes_of([values[place] for place in changed.tolist()]))
            self._local.add(hashes[kept], _sizes_of(written))

    # --- remote keys ------------------------------------------------------------------------------------------------

    def every_key(self) -> Iterator[tuple[KeyColumns, I64]]:
        """Yield the remote keys of all states and their hashes in batches; a key is repeated for each of its rows."""
        for state in self._remote:
            for part in state.log.source.hash_range.split(1 + state.log.rows // self.limits.fetched_rows):
                rows = state.log.merged(state.log.current([part]))
                if rows.num_rows:
                    _, keys, hashes = keyed_batch(rows, self._key_schema)
                    yield keys, hashes

    @property
    def local_bytes(self) -> I64:
        """The approximate bytes of each region on the local disk."""
        return np.empty(0, np.int64) if self._local is None else self._local.sizes

    def current(self, ranges: Sequence[HashRange]) -> list[Iterable[pa.Table]]:
        """Return the current rows of each state in some hash ranges."""
        return [state.log.current(ranges) for state in self._remote]

    def merged(self, tables: Sequence[Iterable[pa.Table]]) -> PackedKeys:
        """Return rows of each state, oldest first, as records of their keys."""
        index, found = KeyIndex(self._key_schema), []
        for state, rows in zip(self._remote, tables, strict=True):
            batch, keys, hashes = keyed_batch(state.log.merged(rows), self._key_schema)
            found.append((state, batch, index.upsert(keys, hashes).copy()))
        rows_of = [state.of_keys(batch, slots, index.count) for state, batch, slots in found]
        parts = [packer.pack(rows) for packer, rows in zip(self.packers, rows_of, strict=True)]
        return self.packed(index.view(), np.arange(index.count, dtype=np.int32), parts)

    def put_fetched(self, rows: PackedKeys, wanted: Callable[[I64], np.ndarray]) -> None:
        """Store the records of the wanted hashes."""
        chosen = wanted(rows.hashes)
        self.put_packed(rows if chosen.all() else rows.chosen(chosen))

    def drop(self, region: int) -> None:
        """Drop the local records of a region."""
        if self._local is not None:
            self.store.delete_range(*bounds(self._prefix, self._local.regions[region]))
            self._local.sizes[region] = 0

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


def _record_columns(source: FrozenSource[Any], batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the columns of a record's rows from those of a segment that are the same."""
    found = [batch.column(name) for name in source.spec.row_names]
    if source.ttl is not None:
        # expired values stay until their key is used: their removal belongs in the log
        found[-1] = pa.array(source.ttl.clock.bounded(found[-1].to_numpy()))
    return found
