"""`ValueTable`: one value by key, the state of a `ValueState`.

It is a log of rows in memory: a write appends, `where` has the newest row of a slot, and no row is overwritten. So a
freeze keeps references and copies no rows, regardless of their number. When the log is full, superseded rows that are
saved are dropped. Owned by one subtask thread; a frozen part may be encoded in any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.kernels.keys.key_columns import value_column
from penstock.kernels.rows.python_values import plain_values
from penstock.state.keys.column_store import FixedStore, grown, new_store
from penstock.state.keys.key_index import KeyCounts
from penstock.state.log.segment_columns import DELETED, keyed_batch, segment_table
from penstock.state.memory.slot_arrays import with_room
from penstock.state.tiers.cold_records import KeyRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.kernels.compiler.compile import I32, I64
    from penstock.kernels.keys.key_columns import KeyColumns
    from penstock.state.keys.column_store import ColumnStore
    from penstock.state.keys.key_index import KeyView
    from penstock.state.log.frozen import FrozenSource, FrozenTable
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.log.ttl import Ttl
    from penstock.state.tables.key_space import KeySpace


@dataclass(frozen=True, slots=True)
class FrozenLog:
    """The rows appended between two freezes."""

    spec: RowSpec
    table_of: ValueTable
    keys: KeyView
    first: int
    slots: I32
    deleted: np.ndarray
    #: Whether a row was loaded from the cold store, so that it is saved already.
    clean: np.ndarray
    columns: tuple[ColumnStore, ...]

    @property
    def memory_bytes(self) -> int:
        """The bytes of the rows, after their table has dropped them; until then they count for the table."""
        if self.table_of.holds(self.slots):
            return 0
        return int(self.slots.nbytes + 2 * self.deleted.nbytes) + 8 * len(self.columns) * len(self.slots)

    def whole(self) -> Iterator[pa.Table]:
        """Yield the newest row of every key as columns of a segment, sorted by hash."""
        newest = last_by_slot(self.slots)
        newest = newest[~self.clean[newest]]
        hashes = self.keys.hashes[self.slots[newest]]
        newest = newest[np.argsort(hashes)]
        slots = self.slots[newest]
        rows = (newest + self.first).astype(np.int32)
        values = [column.array(rows) for column in self.columns]
        yield segment_table(self.spec, self.keys, slots, values=values, deleted=self.deleted[newest])


def last_by_slot(slots: I32) -> I64:
    """Return the position of the last row of every slot, ascending."""
    if len(slots) == 0:
        return np.empty(0, np.int64)
    last = np.full(int(slots.max()) + 1, -1, np.int64)
    last[slots] = np.arange(len(slots))  # for equal slots the last assignment wins
    return np.sort(last[last >= 0])


class ValueTable:
    """One value by slot; the slots are those of the key index that all states of an operator share."""

    def __init__(self, source: FrozenSource[RowSpec], state: KeySpace, ttl: Ttl | None = None) -> None:
        """Create an empty table; `load` fills it during a restore."""
        self.source = source
        self.spec = source.spec
        self.ttl = ttl
        source.ttl = ttl
        self._packer = state.register(source)
        self._state = state
        self._limits = source.limits
        rows, first_bytes = self._limits.first_rows, self._limits.first_bytes
        self._slots: I32 = np.empty(rows, np.int32)
        self._deleted = np.empty(rows, np.bool_)
        self._clean = np.empty(rows, np.bool_)
        self._columns = tuple(new_store(field.type, rows, first_bytes) for field in source.spec.stored)
        self._end = 0
        #: Rows from this one on are not in a segment yet.
        self._dirty_from = 0
        self._where: I32 = np.full(rows, -1, np.int32)

    # --- rows -------------------------------------------------------------------------------------------------------

    def rows_of(self, slots: I32) -> I32:
        """Return the newest row of every slot, negative if it has no value."""
        self._fit_slots()
        return self._where[slots]

    def values(self, rows: I32) -> list[list[Any]]:
        """Return the value columns of rows as Python objects."""
        return [plain_values(column.array(rows)) for column in self._columns[: len(self.spec.values)]]

    def arrays(self, rows: I32) -> list[pa.Array]:
        """Return the value columns of rows."""
        return [column.array(rows) for column in self._columns]

    def look_up(self, keys: KeyColumns, hashes: I64, most: int) -> pa.Table:
        """Return the live value of one key, if it has one; see `state.store.StateTable`."""
        return self._state.live_rows(self.source, self._packer, (keys, hashes), most, self.rows_at)

    def counts(self) -> KeyCounts:
        """Return which keys have a value."""
        hashes = self._state.index.hashes
        self._fit_slots()
        return KeyCounts(hashes, self._where[: len(hashes)] >= 0, ((self._state.index.view(), len(hashes)),))

    def write(self, slots: I32, arrays: Sequence[pa.Array]) -> None:
        """Set the values of distinct slots, accessed now."""
        if self.ttl is not None:
            arrays = [*arrays, pa.array(np.full(len(slots), self.ttl.clock.now))]
        self._put(slots, arrays)

    def _put(self, slots: I32, arrays: Sequence[pa.Array], *, clean: bool = False) -> None:
        first = self._append(slots, deleted=False)
        self._clean[first : self._end] = clean
        if not clean:
            self._state.note_changed(slots)
        rows = np.arange(len(slots), dtype=np.int32)
        for column, array in zip(self._columns, arrays, strict=True):
            column.append(value_column(array), rows, first)  # type: ignore[arg-type]
        self._where[slots] = np.arange(first, self._end, dtype=np.int32)

    def clear(self, slots: I32) -> None:
        """Remove the values of distinct slots; a slot without a value does not change."""
        self._fit_slots()
        slots = slots[self._where[slots] >= 0]
        if len(slots):
            first = self._append(slots, deleted=True)
            self._state.note_changed(slots)
            for column in self._columns:
                column.append_nulls(first, len(slots))
            self._where[slots] = -1

    # --- time-to-live -----------------------------------------------------------------------------------------------

    def expired(self, rows: I32) -> np.ndarray:
        """Return a mask of the rows with an expired value (a negative row has no value)."""
        if self.ttl is None:
            return np.zeros(len(rows), np.bool_)
        stamps = self._columns[-1]
        assert isinstance(stamps, FixedStore)  # noqa: S101 - times
        found: np.ndarray = (rows >= 0) & (stamps.words[rows] <= self.ttl.deadline)
        return found

    def remove_expired(self, slots: I32) -> None:
        """Remove the expired values of these distinct slots."""
        self.clear(slots[self.expired(self.rows_of(slots))])

    # --- snapshots --------------------------------------------------------------------------------------------------

    def freeze(self) -> FrozenTable:
        """Freeze the table."""
        return self.source.frozen(self.unsaved())

    def load(self, table: pa.Table, *, unsaved: bool = False) -> None:
        """Add restored rows, newest last; with `unsaved` no segment has them with the current columns."""
        batch, keys, hashes = keyed_batch(table, self.spec.key_schema)
        slots = self._state.upsert(keys, hashes)
        self._fit_slots()
        deleted = batch.column(DELETED).to_numpy(zero_copy_only=False)
        self._where[slots[deleted]] = -1
        self._state.note_changed(slots)
        kept = np.flatnonzero(~deleted)
        arrays = [batch.column(name) for name in self.spec.stored_names]
        if len(kept) < len(slots):
            arrays = [array.take(pa.array(kept)) for array in arrays]
        if self.ttl is not None:
            arrays[-1] = pa.array(self.ttl.clock.restored(arrays[-1].to_numpy()))
        if len(kept):
            self._put(slots[kept], arrays)
        if not unsaved:
            self._dirty_from = self._end
        self._state.settle_load()

    @property
    def hot_bytes(self) -> int:
        """The bytes of the rows in memory."""
        return int(self._where.nbytes) + 6 * self._end + sum(column.bytes_of(self._end) for column in self._columns)

    def unsaved(self) -> tuple[FrozenLog, ...]:
        """Return the unsaved changes, which count as saved then."""
        part = slice(self._dirty_from, self._end)
        columns = tuple(column.frozen() for column in self._columns)
        rows = FrozenLog(
            spec=self.spec,
            table_of=self,
            keys=self._state.index.view(),
            first=part.start,
            slots=self._slots[part],
            deleted=self._deleted[part],
            clean=self._clean[part],
            columns=columns,
        )
        self._dirty_from = self._end
        return () if rows.clean.all() else (rows,)

    def holds(self, rows: I32) -> bool:
        """Return whether frozen rows are still in the table's own memory."""
        return rows.base is self._slots

    # --- eviction ---------------------------------------------------------------------------------------------------

    def rows_at(self, slots: I32) -> KeyRows:
        """Return the values of slots."""
        rows = self.rows_of(slots)
        there = rows >= 0
        return KeyRows(there.astype(np.int64), self.arrays(rows[there]))

    def parts_at(self, slots: I32) -> list[bytes]:
        """Return the values of slots as parts of their keys' records."""
        return self._packer.pack(self.rows_at(slots))

    def forget_rows(self, slots: I32) -> None:
        """Drop the values of slots from memory; all changes are saved already."""
        self._fit_slots()
        self._where[slots] = -1

    def load_parts(self, slots: I32, parts: list[bytes]) -> None:
        """Add the values of slots, which have none in memory."""
        rows = self._packer.unpack(parts)
        if rows.counts.any():
            self._put(slots[rows.counts > 0], rows.columns, clean=True)

    # --- slots ------------------------------------------------------------------------------------------------------

    def mark_used(self, used: np.ndarray) -> None:
        """Set the slots that have a value or an unsaved change."""
        self._fit_slots()
        used |= self._where[: len(used)] >= 0
        used[self._slots[self._dirty_from : self._end]] = True

    def renumber(self, numbers: I32) -> None:
        """Renumber slots: slot s becomes `numbers[s]`; numbers of unused slots are negative."""
        self._compact()
        old = np.flatnonzero(self._where >= 0)
        where = np.full(max(self._limits.first_rows, 2 * int((numbers >= 0).sum())), -1, np.int32)
        where[numbers[old]] = self._where[old]
        self._where = where
        self._slots[: self._end] = numbers[self._slots[: self._end]]

    def _fit_slots(self) -> None:
        self._where = with_room(self._where, self._state.index.count, -1)

    def _append(self, slots: I32, *, deleted: bool) -> int:
        self._fit_slots()
        if self._end + len(slots) > len(self._slots):
            self._compact(len(slots))
        first, self._end = self._end, self._end + len(slots)
        self._slots[first : self._end] = slots
        self._deleted[first : self._end] = deleted
        self._clean[first : self._end] = False
        return first

    def _compact(self, room: int = 0) -> None:
        """Move the effective rows into new arrays, twice as large as needed for them and for `room` more."""
        rows = self._kept_rows()
        capacity = max(self._limits.first_rows, 2 * (len(rows) + room))
        places = np.empty(self._end, np.int32)
        places[rows] = np.arange(len(rows), dtype=np.int32)
        live = np.flatnonzero(self._where >= 0)
        self._where[live] = places[self._where[live]]
        self._slots, self._deleted, self._clean = (
            grown(array[rows], capacity) for array in (self._slots, self._deleted, self._clean)
        )
        self._columns = tuple(column.moved(rows, capacity) for column in self._columns)
        self._dirty_from = int(np.searchsorted(rows, self._dirty_from))
        self._end = len(rows)

    def _kept_rows(self) -> I32:
        """Return the newest row of each slot, and unsaved deletions, in order."""
        kept = np.zeros(self._end, np.bool_)
        kept[self._where[self._where >= 0]] = True
        newest = last_by_slot(self._slots[self._dirty_from : self._end]) + self._dirty_from
        kept[newest[self._deleted[newest]]] = True
        return np.flatnonzero(kept).astype(np.int32)
