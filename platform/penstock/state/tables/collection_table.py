"""`CollectionTable`: a list or a map by key, the state of a `ListState` or `MapState`.

Functions use Python lists and dicts, one for each slot that has elements, kept between batches: repeated reads need no
decoding. When memory is full, the least recently used ones become bytes: parts of records, as of evicted keys. Changes
are written to a log as columns after every batch, so a barrier has nothing left to encode. Owned by one subtask thread.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, compress, islice, repeat
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.kernels.keys.key_types import is_fixed
from penstock.kernels.rows.python_values import plain_values
from penstock.state.keys.key_index import KeyCounts, KeyIndex
from penstock.state.log.segment_columns import DELETED, keyed_batch
from penstock.state.log.segments import last_entries
from penstock.state.log.ttl import EntryStamps
from penstock.state.memory.slot_arrays import pieces, with_room
from penstock.state.tables.changes import ChangeLog
from penstock.state.tiers.cold_records import KeyRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.log.frozen import FrozenSource, FrozenTable
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.log.ttl import Ttl
    from penstock.state.tables.changes import FrozenChanges
    from penstock.state.tables.key_space import KeySpace

#: Bytes of an empty list or dict with the capacity for the first few elements.
_CONTAINER_BYTES = 200
#: Bytes of a place in a list; of a place in a dict with the free capacity.
_LIST_PLACE, _DICT_PLACE = 10, 54
#: Bytes of a slot in all arrays; of a part without its content.
_SLOT_BYTES, _PART_BYTES = 13, 40


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
    def plain(self) -> bool:
        """Whether keys and values are the Python values of one column each."""

    @property
    def object_bytes(self) -> int:
        """The bytes of a key and its value as objects, without the text of strings."""

    def text_bytes(self, columns: Sequence[pa.Array]) -> int:
        """Return the bytes that the strings of entry and value columns take as objects; 0 for types without any."""

    def measured(self, container: Any) -> int:
        """Return the bytes that the strings of a list or dict take."""


class CollectionTable:
    """Lists or maps by slot; the slots are those of the key index that all states of an operator share."""

    def __init__(
        self,
        source: FrozenSource[RowSpec],
        state: KeySpace,
        codec: EntryCodec,
        ttl: Ttl | None = None,
        *,
        lists: bool,
    ) -> None:
        """Create an empty table; `load` fills it during a restore."""
        self.source = source
        source.ttl = ttl
        #: With a time-to-live: the times of last access.
        self.stamps = None if ttl is None else EntryStamps(ttl, lists=lists)
        self.spec = source.spec
        self.lists = lists
        self._state = state
        self._codec = codec
        self._log = ChangeLog(source.spec, source.log)
        self._packer = state.register(source)
        #: Whether parts have the elements or entries as functions use them.
        self._plain = codec.plain and self._packer.plain and ttl is None
        self._has_text = not all(is_fixed(field.type) for field in source.spec.row_fields)
        #: Evicted keys whose lists expired since the last freeze.
        self._expired: KeyIndex | None = None
        self._limits = source.limits
        first = self._limits.first_slots
        #: A list or dict, the part of a record with its elements or entries (`RowPacker`), or None.
        self._held = np.full(first, None, object)
        self._is_object = np.zeros(first, np.bool_)
        #: The number of elements or entries of an object; 1 for a part.
        self._lengths: I32 = np.zeros(first, np.int32)
        #: For a list: the index after its last element; it restarts only when no element is left anywhere.
        self._ends: I64 = np.zeros(first if lists else 0, np.int64)
        #: Of those that are objects.
        self._containers = self._entries = self._text = 0
        self._part_bytes = 0
        #: Strings are measured again at this size: double the last result, plus a constant.
        self._measure_at = self._limits.measured_bytes

    # --- entries ----------------------------------------------------------------------------------------------------

    def containers(self, slots: I32) -> list[Any]:
        """Return the list or dict of every slot, None if it has none; the function changes them in place.

        Expired elements and entries are removed first, unless they may still be read: then call `remove_expired` later.
        """
        self._unpack(slots)
        if self.stamps is not None and not self.stamps.ttl.return_expired:
            self.remove_expired(slots)
        found: list[Any] = self._held[slots].tolist()
        return found

    def ends(self, slots: I32) -> I64:
        """Return the next index of the lists of slots."""
        self._fit_slots()
        return self._ends[slots]

    def look_up(self, keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
        """Return the first `most` live elements or entries of one key; see `state.store.StateTable`."""
        peek = partial(self._peek, most=most)
        return self._state.live_rows(self.source, self._packer, (keys, hashes), most, peek)

    def counts(self) -> KeyCounts:
        """Return how many elements or entries every key has."""
        hashes = self._state.index.hashes
        self._fit_slots()
        lengths = self._lengths[: len(hashes)].copy()
        packed = np.flatnonzero((lengths > 0) & ~self._is_object[: len(hashes)])
        lengths[packed] = list(map(len, self._packer.decode(self._held[packed].tolist())))
        return KeyCounts(hashes, lengths, ((self._state.index.view(), len(hashes)),))

    def changed(self, slots: I32, containers: Sequence[Any]) -> None:
        """Set the lists or dicts of the slots; empty ones are dropped."""
        self._state.note_changed(slots)
        held = [container or None for container in containers]
        self._hold(slots, held, np.fromiter(map(len, containers), np.int32, len(slots)))

    def _hold(self, slots: I32, held: Iterable[Any], lengths: I32, *, objects: bool = True) -> None:
        """Set the lists or dicts of distinct slots, or their parts, and the numbers of elements or entries."""
        were = self._is_object[slots]
        before, now = self._lengths[slots[were]], lengths if objects else lengths[:0]
        self._entries += int(now.sum(dtype=np.int64)) - int(before.sum(dtype=np.int64))
        self._containers += int(np.count_nonzero(now)) - len(before)
        self._part_bytes -= 0 if were.all() else _bytes_of(self._held[slots[~were]].tolist())
        self._held[slots] = np.fromiter(held, object, len(slots))
        self._lengths[slots], self._is_object[slots] = lengths, (lengths > 0) & objects

    def clear(self, slots: I32) -> None:
        """Record that the slots were cleared, before their new entries."""
        self._log.clear(slots)

    def remove(self, slots: I32, entries: Sequence[pa.Array]) -> None:
        """Record that an entry of each of the slots was removed."""
        self._log.remove(slots, entries)

    def put(self, slots: I32, entries: Sequence[pa.Array], values: Sequence[pa.Array]) -> None:
        """Record a new or changed entry of each of the slots."""
        if self.stamps is not None:
            values = [*values, pa.array(np.full(len(slots), self.stamps.ttl.clock.now))]
        self._log.put(slots, entries, values)
        self._text += self._codec.text_bytes([*entries, *values])
        if self._text > self._measure_at:
            self._measure()

    def remove_expired(self, slots: I32) -> None:
        """Remove the expired elements and entries of these distinct slots."""
        stamps = self.stamps
        if stamps is None:
            return
        slots = self._unpack_expired(slots, stamps.ttl.deadline)
        whole, owners, keys = [], [], []
        touched = []
        for slot in slots.tolist():
            expired = stamps.expired(slot)
            if not expired:
                continue
            container = self._held[slot]
            touched.append(slot)
            if len(expired) == len(container):
                whole.append(slot)
            else:
                owners += [slot] * len(expired)
                first = int(self._ends[slot]) - len(container) if self.lists else 0
                keys += [first + place for place in expired] if self.lists else expired
            stamps.forget(slot, expired)
            if self.lists:
                del container[: len(expired)]
            else:
                for key in expired:
                    del container[key]
        if touched:
            self.clear(np.array(whole, np.int32))
            if keys:
                self.remove(np.array(owners, np.int32), self._codec.encode_keys(keys))
            self.changed(np.array(touched, np.int32), self._held[touched].tolist())

    def set_ends(self, slots: I32, ends: I64) -> None:
        """Set the indices of the next elements of these lists."""
        self._ends[slots] = ends

    # --- snapshots --------------------------------------------------------------------------------------------------

    def freeze(self) -> FrozenTable:
        """Freeze the table."""
        return self.source.frozen(self.unsaved())

    def unsaved(self) -> tuple[FrozenChanges, ...]:
        """Return the unsaved changes, which count as saved then."""
        changes = (self._freeze_expired(), self._log.freeze(self._state.index.view()))
        return tuple(some for some in changes if some is not None)

    def load(self, table: pa.Table, *, unsaved: bool = False) -> None:
        """Add the newest rows of some keys, deletions included, to those restored from earlier checkpoints.

        With `unsaved` no segment has them with the current columns.
        """
        batch, keys, hashes = keyed_batch(table, self.spec.key_schema)
        slots, numbers = np.unique(self._state.upsert(keys, hashes), return_inverse=True)
        columns, entries = [batch.column(name) for name in self.spec.row_names], len(self.spec.entries)
        deleted = batch.column(DELETED).to_numpy(zero_copy_only=False)
        known, last = self._packer.unpack(self.parts_at(slots)), np.arange(len(numbers))
        if known.counts.any():
            self.forget_rows(slots)
            before = [column.cast(new.type) for column, new in zip(known.columns, columns, strict=True)]
            columns = [pa.concat_arrays([old, new]) for old, new in zip(before, columns, strict=True)]
            numbers = np.concatenate([np.repeat(np.arange(len(slots)), known.counts), numbers])
            deleted = np.concatenate([np.zeros(len(before[0]), np.bool_), deleted])
            last = last_entries(numbers.astype(np.int32), columns[:entries])
        last = last[~deleted[last]]
        if len(last) < len(numbers):
            numbers, columns = numbers[last], [column.take(pa.array(last)) for column in columns]
        if self.stamps is not None:
            columns[-1] = pa.array(self.stamps.ttl.clock.restored(columns[-1].to_numpy()))
        rows = KeyRows.of(columns, numbers, len(slots), by_first=self.lists)
        if unsaved:
            self._log.put(np.repeat(slots, rows.counts), rows.columns[:entries], rows.columns[entries:])
        self.load_parts(slots, self._packer.pack(rows))
        self._state.note_changed(slots)
        self._state.settle_load()

    @property
    def hot_bytes(self) -> int:
        """The bytes of the objects in CPython, and of the changes in memory."""
        place = _LIST_PLACE if self.lists else _DICT_PLACE
        if self.stamps is not None:
            place *= 2
        objects = self._containers * _CONTAINER_BYTES + self._entries * (place + self._codec.object_bytes)
        expired = 0 if self._expired is None else self._expired.memory_bytes
        by_slot = _SLOT_BYTES * len(self._held) + self._ends.nbytes
        return objects + self._text + self._part_bytes + self._log.nbytes + expired + by_slot

    # --- eviction ---------------------------------------------------------------------------------------------------

    @property
    def objects(self) -> np.ndarray:
        """A mask of the slots whose lists or dicts are objects."""
        self._fit_slots()
        return self._is_object

    def pack(self, slots: I32) -> None:
        """Replace the lists or dicts of slots by their parts, which take a tenth of the memory."""
        self._fit_slots()
        slots = slots[self._is_object[slots]]
        if len(slots):
            parts = self._parts_of(slots, self._held[slots].tolist())
            self._release(slots)
            self._hold_parts(slots, parts)

    def _parts_of(self, slots: I32, containers: Sequence[Any]) -> list[bytes]:
        """Return the parts of slots, all with lists or dicts that are not empty."""
        if not self._plain:
            return self._packer.pack(self._rows_of(slots, containers))
        if not self.lists:
            return self._packer.encode(map(dict.items, containers))
        firsts = (self._ends[slots] - self._lengths[slots]).tolist()
        return self._packer.encode(map(enumerate, containers, firsts))

    def _unpack(self, slots: I32) -> None:
        """Replace the parts of slots by lists or dicts."""
        self._fit_slots()
        slots = slots[(self._lengths[slots] > 0) & ~self._is_object[slots]]
        if len(slots) == 0:
            return
        parts = self._held[slots].tolist()
        containers = self._plain_containers(slots, parts) if self._plain else self._decoded(slots, parts)
        self._hold(slots, containers, np.fromiter(map(len, containers), np.int32, len(slots)))
        if self._has_text:
            self._text += sum(map(self._codec.measured, containers))

    def _plain_containers(self, slots: I32, parts: Sequence[bytes]) -> list[Any]:
        """Return the lists or dicts of slots whose elements or entries are in parts as they are."""
        rows = self._packer.decode(parts)
        if not self.lists:
            return list(map(dict, rows))
        found = list(rows)
        self._ends[slots] = [own[-1][0] + 1 for own in found]
        return [[value for _, value in own] for own in found]

    def _decoded(self, slots: I32, parts: Sequence[bytes]) -> list[Any]:
        """Return the lists or dicts of slots, after their times of last access were set."""
        rows, entries = self._packer.unpack(parts), len(self.spec.entries)
        own, sizes = rows.columns[: entries + len(self.spec.values)], rows.counts.tolist()
        names = self._codec.decode_keys([plain_values(array) for array in own[:entries]])
        values = self._codec.decode_values([plain_values(array) for array in own[entries:]])
        if self.lists:
            self._ends[slots] = own[0].to_numpy()[np.cumsum(rows.counts) - 1] + 1
        if self.stamps is not None:
            times = rows.columns[-1].to_numpy().tolist()
            for slot, known in zip(slots.tolist(), self._grouped(names, times, sizes), strict=True):
                self.stamps.put(slot, known)
        return list(self._grouped(names, values, sizes))

    def _grouped(self, names: Sequence[Any], values: Sequence[Any], sizes: list[int]) -> Iterator[Any]:
        """Yield the list of so many values each, or the dict by name."""
        if self.lists:
            some = iter(values)
            return (list(islice(some, size)) for size in sizes)
        pairs = zip(names, values, strict=True)
        return (dict(islice(pairs, size)) for size in sizes)

    def _unpack_expired(self, slots: I32, deadline: int) -> I32:
        """Unpack the slots that have an expired element or entry; return those that are objects."""
        self._fit_slots()
        packed = slots[(self._lengths[slots] > 0) & ~self._is_object[slots]]
        for piece in pieces(packed, self._limits.sweep_keys):
            rows = self._packer.unpack(self._held[piece].tolist())
            oldest = np.minimum.reduceat(rows.columns[-1].to_numpy(), np.cumsum(rows.counts) - rows.counts)
            self._unpack(piece[oldest <= deadline])
        return slots[self._is_object[slots]]

    def _peek(self, slots: I32, most: int) -> KeyRows:
        """Return the first elements or entries of one slot, `most` of them live; a part stays one."""
        self._fit_slots()
        held, stamps = self._held[slots[0]], self.stamps
        if held is None or isinstance(held, bytes):
            return self._packer.unpack([held or b""])
        most += 0 if stamps is None else len(stamps.expired(int(slots[0])))
        return self._rows_of(slots, [held[:most] if self.lists else dict(islice(held.items(), most))])

    def _rows_of(self, slots: I32, containers: Sequence[Any]) -> KeyRows:
        """Return the elements or entries of slots, all in lists or dicts that are not empty."""
        counts = np.fromiter(map(len, containers), np.int64, len(containers))
        names: Any
        if self.lists:
            firsts = self._ends[slots] - self._lengths[slots]
            names = np.arange(counts.sum()) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
            values = list(chain.from_iterable(containers))
        else:
            names = list(chain.from_iterable(containers))
            values = list(chain.from_iterable(map(dict.values, containers)))
        columns = [*self._codec.encode_keys(names), *self._codec.encode_values(values)]
        if self.stamps is None:
            return KeyRows(counts, columns)
        times = list[int]()
        for slot, container in zip(slots.tolist(), containers, strict=True):
            known = self.stamps.times(slot)
            times += known[: len(container)] if self.lists else [known[name] for name in container]
        return KeyRows(counts, [*columns, pa.array(times, pa.int64())])

    def parts_at(self, slots: I32) -> list[bytes]:
        """Return the elements or entries of slots as parts of their keys' records."""
        self.pack(slots)
        return [part or b"" for part in self._held[slots].tolist()]

    def forget_rows(self, slots: I32) -> None:
        """Drop the elements or entries of slots from memory; all changes are saved already."""
        self._fit_slots()
        self._release(slots[self._is_object[slots]])
        self._hold(slots, repeat(None), np.zeros(len(slots), np.int32), objects=False)

    def _release(self, slots: I32) -> None:
        """Drop the text and the times of last access of lists or dicts."""
        self._text -= self._text * int(self._lengths[slots].sum()) // max(1, self._entries)
        if self.stamps is not None:
            for slot in slots.tolist():
                self.stamps.drop(slot)

    def load_parts(self, slots: I32, parts: Sequence[bytes]) -> None:
        """Add the elements or entries of slots, which have none in memory, as parts of their keys' records."""
        self._fit_slots()
        self._hold_parts(slots, parts)

    def _hold_parts(self, slots: I32, parts: Sequence[bytes]) -> None:
        there = np.fromiter(map(bool, parts), np.int32, len(parts))
        self._hold(slots, [part or None for part in parts], there, objects=False)
        self._part_bytes += _bytes_of(parts)

    def note_expired(self, keys: KeyColumns, hashes: I64) -> None:
        """Record evicted keys whose lists expired: the log has to clear them.

        The indices of a new list of its key start at 0 again, and must not mix with saved elements.
        """
        if self.lists:
            self._expired = self._expired or KeyIndex(self.spec.key_schema)
            self._expired.upsert(keys, hashes)

    def _freeze_expired(self) -> FrozenChanges | None:
        """Return changes that clear the evicted lists that expired since the last call; None: no list has expired.

        They precede all later changes in memory: the keys had nothing there when they expired.
        """
        expired, self._expired = self._expired, None
        if expired is None:
            return None
        log = ChangeLog(self.spec, self.source.log)
        log.clear(np.arange(expired.count, dtype=np.int32))
        return log.freeze(expired.view())

    # --- slots ------------------------------------------------------------------------------------------------------

    def mark_used(self, used: np.ndarray) -> None:
        """Set the slots that have elements or unsaved changes."""
        self._fit_slots()
        used |= self._lengths[: len(used)] > 0
        self._log.mark_used(used)

    def renumber(self, numbers: I32) -> None:
        """Renumber slots: slot s becomes `numbers[s]`, in the same order; numbers of unused slots are negative."""
        self._fit_slots()
        kept = np.flatnonzero(numbers >= 0)
        size = max(self._limits.first_slots, 2 * len(kept))
        self._held = with_room(self._held[kept], size, None)
        self._lengths, self._is_object = (with_room(array[kept], size) for array in (self._lengths, self._is_object))
        if self.lists:
            self._ends = with_room(self._ends[kept], size)
        if self.stamps is not None:
            self.stamps.renumber(numbers)
        self._log.renumber(numbers)

    def _fit_slots(self) -> None:
        self._lengths = with_room(self._lengths, self._state.index.count)
        self._is_object = with_room(self._is_object, self._state.index.count)
        if self.lists:
            self._ends = with_room(self._ends, self._state.index.count)
        self._held = with_room(self._held, self._state.index.count, None)

    def _measure(self) -> None:
        """Measure the strings again, without those that were replaced."""
        self._text = sum(self._codec.measured(container) for container in compress(self._held, self._is_object))
        self._measure_at = 2 * self._text + self._limits.measured_bytes


def _bytes_of(parts: Sequence[bytes | None]) -> int:
    """Return the bytes of parts as objects; empty ones have none."""
    found = list(filter(None, parts))
    return sum(map(len, found)) + _PART_BYTES * len(found)
