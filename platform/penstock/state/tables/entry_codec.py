"""Lists and maps as columns: the codec's protocol, restored rows, rows of evicted keys, and look-ups.

A record of an evicted key holds all elements of a list (with their indices) or all entries of a map, with their times
of last access. A list that expires there is also cleared in the log. The indices of a new list of its key start at 0
again, and must not mix with saved elements. The codecs are in `penstock.operators`; used by
`state.tables.collection_table` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.state.keys.key_index import KeyIndex
from penstock.state.keys.sorted_keys import decode_keys
from penstock.state.log.segment_columns import DELETED, rows_of
from penstock.state.spill.cold_records import ColdRecords
from penstock.state.tables.entry_log import EntryLog
from penstock.state.tables.value_table import plain_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.kernels.compiler.compile import I32
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.log.segment_log import SegmentLog
    from penstock.state.log.ttl import EntryStamps
    from penstock.state.spill.cold_records import LoadedRows, SpillStore
    from penstock.state.tables.entry_log import FrozenEntries


class EntryCodec(Protocol):
    """Codec between columns and the objects that functions use, with their sizes in memory."""

    def decode_keys(self, columns: list[list[Any]]) -> list[Any]:
        """Return map keys (for a list: indices) from their columns."""

    def encode_keys(self, keys: Sequence[Any]) -> list[pa.Array]:
        """Return the entry columns of map keys or indices."""

    def decode_values(self, columns: list[list[Any]]) -> list[Any]:
        """Return values from their columns."""

    def encode_values(self, values: Sequence[Any]) -> list[pa.Array]:
        """Return the value columns of values."""

    @property
    def object_bytes(self) -> int:
        """The bytes of a key and its value as objects, without the text of strings."""

    def text_bytes(self, columns: Sequence[pa.Array]) -> int:
        """Return the bytes that the strings of entry and value columns take as objects; 0 for types without any."""

    def measured(self, container: Any) -> int:
        """Return the bytes that the strings of a list or dict take."""


@dataclass(frozen=True, slots=True)
class RestoredEntries:
    """Restored rows in order."""

    #: Map keys or indices; None: the row clears all earlier entries of its key.
    names: list[Any]
    #: Values; None for a deletion.
    values: list[Any]
    deleted: np.ndarray
    #: The entry columns of all rows.
    entries: list[pa.Array]
    #: The bytes of strings.
    text_bytes: int


def restored_entries(batch: pa.RecordBatch, spec: RowSpec, codec: EntryCodec) -> RestoredEntries:
    """Return the rows of a segment's batch, which has the columns of `spec`."""
    deleted = batch.column(DELETED).to_numpy(zero_copy_only=False)
    entries = [batch.column(field.name) for field in spec.entries]
    live = np.flatnonzero(~deleted)
    found = [batch.column(name) for name in spec.value_names]
    if len(live) < batch.num_rows:
        found = [array.take(pa.array(live)) for array in found]
    values: list[Any] = [None] * batch.num_rows
    for place, value in zip(live.tolist(), codec.decode_values([plain_values(a) for a in found]), strict=True):
        values[place] = value
    names = codec.decode_keys([plain_values(a) for a in entries])
    if entries[0].null_count:
        for place in np.flatnonzero(entries[0].is_null().to_numpy(zero_copy_only=False)).tolist():
            names[place] = None
    return RestoredEntries(names, values, deleted, entries, codec.text_bytes([*entries, *found]))


def alive_entries(container: Any, first: int, expired: Sequence[Any], most: int) -> list[tuple[Any, Any]]:
    """Return the first `most` live elements of a list (by index, from `first` upwards) or entries of a map.

    `expired` has map keys, or positions at the front of the list.
    """
    if isinstance(container, list):
        return list(islice(enumerate(container, first), len(expired), len(expired) + most))
    dead = set(expired)
    return list(islice(((key, value) for key, value in container.items() if key not in dead), most))


def entry_rows(spec: RowSpec, codec: EntryCodec, key: list[pa.Array], found: list[tuple[Any, Any]]) -> pa.Table:
    """Return elements or entries of one key as rows of a segment."""
    if not found:
        return spec.segment_schema.empty_table()
    arrays = [
        *(array.take(pa.array([0] * len(found))) for array in key),
        *codec.encode_keys([name for name, _ in found]),
        *codec.encode_values([value for _, value in found]),
    ]
    names = [*spec.key_schema.names, *(field.name for field in spec.entries), *spec.value_names]
    return rows_of(spec.segment_schema, dict(zip(names, arrays, strict=True)), len(found))


@dataclass(frozen=True, slots=True)
class LoadedEntries:
    """The elements or entries that return to one slot."""

    slot: int
    #: Map keys; for a list: indices.
    names: list[Any]
    values: list[Any]
    #: Times of last access; empty without a time-to-live.
    times: list[int]


class ColdEntries:
    """The elements and entries of one state by key."""

    def __init__(self, spill_store: SpillStore, spec: RowSpec, codec: EntryCodec, *, lists: bool) -> None:
        """Start without cold keys."""
        self._spec = spec
        self._codec = codec
        self._entries, self._values, self._stamped = len(spec.entries), len(spec.values), spec.ttl
        self._lists = lists
        self.records = ColdRecords(spill_store, [field.type for field in (*spec.entries, *spec.stored)])
        #: Keys of lists that expired since the last freeze.
        self._expired: KeyIndex | None = None

    @property
    def memory_bytes(self) -> int:
        """The bytes of the keys to be cleared."""
        return 0 if self._expired is None else self._expired.memory_bytes

    def put(self, keys: KeyView, slots: I32, held: Iterable[tuple[Any, int]], stamps: EntryStamps | None) -> None:
        """Store the elements or entries of slots, at least one each, and move their times out of `stamps`.

        `held` has for each slot a list and the index of its first element, or a dict by map key or index.
        """
        names: list[Any] = []
        values: list[Any] = []
        times: list[int] = []
        counts = np.zeros(len(slots), np.int64)
        for place, (slot, (container, first)) in enumerate(zip(slots.tolist(), held, strict=True)):
            by_name = isinstance(container, dict)
            order = (sorted(container) if self._lists else list(container)) if by_name else range(len(container))
            counts[place] = len(order)
            names += order if by_name else range(first, first + len(order))
            values += [container[name] for name in order]
            if stamps is not None:
                known = stamps.take(slot)
                times += [known[name] for name in order]
        columns = [*self._codec.encode_keys(names), *self._codec.encode_values(values)]
        if stamps is not None:
            columns.append(pa.array(times, pa.int64()))
        self.records.put(keys, slots, counts, columns)

    def take(self, keys: KeyView, slots: I32) -> tuple[list[LoadedEntries], int]:
        """Return and remove the elements or entries of slots; also return the bytes of their strings."""
        taken = self.records.take(keys, slots)
        return ([], 0) if taken is None else self._loaded_entries(taken)

    def look_up(self, keys: KeyView, slots: I32, stamps: EntryStamps | None, most: int) -> list[tuple[Any, Any]]:
        """Return the first `most` live elements or entries of one key, without removing them."""
        taken = self.records.look_up(keys, slots)
        if taken is None:
            return []
        ((found,), _) = self._loaded_entries(taken)
        alive = [True] * len(found.names) if stamps is None else [time > stamps.ttl.deadline for time in found.times]
        return list(islice(compress(zip(found.names, found.values, strict=True), alive), most))

    def _loaded_entries(self, taken: LoadedRows) -> tuple[list[LoadedEntries], int]:
        columns = taken.columns[: self._entries + self._values]
        names = self._codec.decode_keys([plain_values(array) for array in columns[: self._entries]])
        values = self._codec.decode_values([plain_values(array) for array in columns[self._entries :]])
        times = taken.columns[-1].to_numpy().tolist() if self._stamped else []
        stops = np.cumsum(taken.counts)
        edges = zip(taken.slots.tolist(), (stops - taken.counts).tolist(), stops.tolist(), strict=True)
        reloaded = [LoadedEntries(slot, names[a:b], values[a:b], times[a:b]) for slot, a, b in edges]
        return reloaded, self._codec.text_bytes(columns)

    def sweep(self, limit: int, deadline: int) -> None:
        """Remove expired records as `ColdRecords.sweep` does, and record the keys of expired lists."""
        gone = self.records.sweep(limit, deadline)
        if gone and self._lists:
            keys, hashes, _ = decode_keys(self._spec.key_schema, gone)
            self._expired = self._expired or KeyIndex(self._spec.key_schema)
            self._expired.upsert(keys, hashes)

    def freeze_expired(self, saved: SegmentLog) -> FrozenEntries | None:
        """Return changes that clear the lists expired here since the last call; None: no list has expired.

        They precede all later changes in memory: the keys had nothing there when they expired.
        """
        expired, self._expired = self._expired, None
        if expired is None:
            return None
        log = EntryLog(self._spec, saved)
        log.clear(np.arange(expired.count, dtype=np.int32))
        return log.freeze(expired.view())
