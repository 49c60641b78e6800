"""Handles of list and map states, bound to their tables; changes are written once per batch.

Called by `penstock.operators.process.keyed_process`, as `state_binding` is for values.
"""

from __future__ import annotations

import datetime as dt
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.functions.keyed_states import ListChanges, ListState, MapChanges, MapState
from penstock.functions.state_handles import cells_of
from penstock.kernels.rows.python_values import plain_values
from penstock.operators.process.state_binding import (
    RenewingListState,
    RenewingMapState,
    ValueCodec,
    indexed_by_key,
    migration_of,
    require_all_kept,
)
from penstock.state.log.row_spec import ENTRY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.functions.state_handles import Cells
    from penstock.kernels.compiler.compile import I32
    from penstock.operators.process.state_binding import BindingContext, StateConfig, StateTypes
    from penstock.state.tables.collection_table import CollectionTable

#: Arrow types whose Python values are of one type and equal to the values decoded from columns.
_PLAIN: dict[pa.DataType, type] = {
    pa.int64(): int,
    pa.float64(): float,
    pa.bool_(): bool,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): dt.date,
}
#: Index in the batch, the map, the map key.
_Change: TypeAlias = tuple[int, dict[Any, Any], Any]
#: Memory of a number or date, and of a tuple or row, without referenced objects.
_SCALAR_BYTES, _ROW_BYTES = 40, 64


class ObjectCodec:
    """Objects of one declared type, as kept in memory between batches."""

    def __init__(self, schema: pa.Schema, row_type: type | None, where: str) -> None:
        """Make a codec; parameters as in `ValueCodec`."""
        self._codec = ValueCodec(schema, row_type, where)
        self.decode = self._codec.decode
        #: Columns of values that were decoded from columns, or are equal to such.
        self.columns = self._codec.encode
        self._plain = {_PLAIN.get(schema.field(0).type)} if row_type is None else set()
        if row_type is None and schema.field(0).nullable:
            self._plain.add(type(None))
        self._texts = [i for i, f in enumerate(schema) if not pt.is_primitive(f.type)]
        self._names = [schema.names[i] for i in self._texts]
        #: Whether an object is the Python value of one column.
        self.plain = row_type is None
        self._tuples = row_type is not None and issubclass(row_type, tuple)
        self.object_bytes = len(schema) * _SCALAR_BYTES + (0 if row_type is None else _ROW_BYTES)

    def encode(self, values: Sequence[Any]) -> tuple[list[pa.Array], list[Any] | None]:
        """Return the columns of values; and the values as decoded from these columns, None if they are equal.

        Raises:
            ColumnError: one does not fit its declared type.
        """
        arrays = self._codec.encode(values)
        if set(map(type, values)) <= self._plain:
            return arrays, None
        return arrays, self.decode([plain_values(array) for array in arrays])

    def text_bytes(self, arrays: Sequence[pa.Array]) -> int:
        """Return the bytes of the strings among the columns."""
        return sum(arrays[i].nbytes for i in self._texts)

    def measured(self, values: Any) -> int:
        """Return the bytes of the strings of values."""
        if not self._texts:
            return 0
        if self.plain:
            return sum(map(sys.getsizeof, values))
        if self._tuples:
            return sum(sys.getsizeof(value[i]) for value in values for i in self._texts)
        return sum(sys.getsizeof(getattr(value, name)) for value in values for name in self._names)


class MapCodec:
    """Map keys (of a list: indices) and values."""

    def __init__(self, keys: ObjectCodec | None, values: ObjectCodec, width: int) -> None:
        """Make a codec.

        `keys` is None for a list; `width` entry columns precede the value's columns.
        """
        self.keys = keys
        self.values = values
        self._width = width
        self.plain = values.plain and (keys is None or keys.plain)
        self.object_bytes = values.object_bytes + (0 if keys is None else keys.object_bytes)

    def decode_keys(self, columns: list[list[Any]]) -> list[Any]:
        """Return map keys or indices."""
        return columns[0] if self.keys is None else self.keys.decode(columns)

    def encode_keys(self, keys: Sequence[Any]) -> list[pa.Array]:
        """Return the entry columns of map keys or indices."""
        return [pa.array(keys, pa.int64())] if self.keys is None else self.keys.columns(keys)

    def decode_values(self, columns: list[list[Any]]) -> list[Any]:
        """Return values."""
        return self.values.decode(columns)

    def encode_values(self, values: Sequence[Any]) -> list[pa.Array]:
        """Return the value columns of values."""
        return self.values.columns(values)

    def text_bytes(self, columns: Sequence[pa.Array]) -> int:
        """Return the bytes of the strings of entry and value columns."""
        keys = 0 if self.keys is None else self.keys.text_bytes(columns[: self._width])
        return keys + self.values.text_bytes(columns[self._width :])

    def measured(self, container: Any) -> int:
        """Return the bytes of the strings of a list or dict."""
        if self.keys is None:
            return self.values.measured(container)
        return self.keys.measured(container) + self.values.measured(container.values())


def bind_collection(
    name: str, declared: StateConfig, types: StateTypes, binding: BindingContext, migrates: tuple[str | None, Any]
) -> Any:
    """Declare (and so restore) a list or map and return it bound; `migrates`: old columns and the migration."""
    values = ObjectCodec(declared.values, types.values, declared.where)
    keys = None if declared.keys is None else ObjectCodec(declared.keys, types.keys, f"{declared.where}: map key")
    fields = (
        (pa.field(ENTRY, pa.int64()),) if declared.keys is None else _collection_key_fields(declared.keys, types.keys)
    )
    codec = MapCodec(keys, values, len(fields))
    whole = keys is None and declared.ttl is not None
    migration = migration_of(*migrates, ValueCodec(declared.values, types.values, declared.where), declared.where)
    if migration is not None and whole:
        migration = require_all_kept(migration, declared.where)
    table = binding.state.entries(
        name, (fields, tuple(declared.values)), codec, declared.ttl, migration, lists=keys is None
    )
    cells = cells_of(binding.current, f"self.{name}")
    return BoundList(cells, table, codec) if keys is None else BoundMap(cells, table, codec)


def _collection_key_fields(schema: pa.Schema, row_type: type | None) -> tuple[pa.Field, ...]:
    if row_type is None:
        return (schema.field(0).with_name(ENTRY),)
    return tuple(field.with_name(f"{ENTRY}_{field.name}") for field in schema)


class BoundList:
    """A `ListState` over its table, for the keys of one batch after another."""

    def __init__(self, cells: Cells, table: CollectionTable, codec: MapCodec) -> None:
        """Make the handle that is passed to the function."""
        self._cells, self._changes = cells, ListChanges()
        self.handle: ListState[Any] = (RenewingListState if _on_read(table) else ListState)(self._cells, self._changes)
        self._table = table
        self._codec = codec
        self._slots: I32 = np.empty(0, np.int32)

    def begin(self, slots: I32) -> None:
        """Start a batch of these keys."""
        self._slots = slots
        self._cells.begin(self._load)

    def begin_broadcast(self) -> None:
        """Start a batch of rows without keys."""
        self._cells.forbid()

    def write_back(self) -> None:
        """Save the changes."""
        changes, table = self._changes, self._table
        places, starts = self._cells.take(), changes.starts
        if not places:
            return
        for at in changes.read:
            if places[at]:
                starts.setdefault(at, len(places[at]))
        if starts:
            self._save(places)
        changes.read.clear()
        changes.cleared.clear()
        starts.clear()
        if table.stamps is not None and table.stamps.ttl.return_expired:
            table.remove_expired(self._slots)

    def _save(self, places: list[Any]) -> None:
        changes, table = self._changes, self._table
        starts = np.fromiter(changes.starts.values(), np.int64, len(changes.starts))
        lists = [places[at] or [] for at in changes.starts]
        slots = self._slots[list(changes.starts)]
        if changes.cleared:
            table.clear(self._slots[list(changes.cleared)])
        firsts = [self._first(at, start) for at, start in changes.starts.items()]
        saved = [found[first:] for found, first in zip(lists, firsts, strict=True)]
        values = [value for part in saved for value in part]
        if values:
            with indexed_by_key(lambda: [at for at, part in zip(changes.starts, saved, strict=True) for _ in part]):
                arrays, normalized = self._codec.values.encode(values)
            if normalized is not None:
                _replace(lists, firsts, normalized)
            counts = np.fromiter(map(len, saved), np.int64, len(saved))
            ends, cumulative = table.ends(slots), np.cumsum(counts)
            lowest = ends - starts + np.array(firsts, np.int64)
            indices = np.arange(len(values)) + np.repeat(lowest - (cumulative - counts), counts)
            table.put(np.repeat(slots, counts), [pa.array(indices)], arrays)
            table.set_ends(slots, lowest + counts)
        if table.stamps is not None:
            for at, slot, first, found in zip(changes.starts, slots.tolist(), firsts, lists, strict=True):
                if at in changes.cleared:
                    table.stamps.drop(slot)
                if found:
                    table.stamps.touch_list(slot, first, len(found))
        table.changed(slots, lists)

    def _first(self, at: int, start: int) -> int:
        """Return the index of the first element to save: the first new one; for a read list the first live one."""
        stamps = self._table.stamps
        if stamps is None or at not in self._changes.read or at in self._changes.cleared:
            return start
        return len(stamps.expired(int(self._slots[at])))

    def _load(self) -> list[Any]:
        return self._table.containers(self._slots)


class BoundMap:
    """A `MapState` over its table, for the keys of one batch after another."""

    def __init__(self, cells: Cells, table: CollectionTable, codec: MapCodec) -> None:
        """Make the handle that is passed to the function."""
        self._cells, self._changes, normal = cells, MapChanges(), _normal(table.spec.entries)
        kind = RenewingMapState if _on_read(table) else MapState
        self.handle: MapState[Any, Any] = kind(self._cells, self._changes, normal)
        self._table = table
        assert codec.keys is not None  # noqa: S101 - a map has keys
        self._keys, self._values = codec.keys, codec.values
        self._slots: I32 = np.empty(0, np.int32)

    def begin(self, slots: I32) -> None:
        """Start a batch of these keys."""
        self._slots = slots
        self._cells.begin(self._load)

    def begin_broadcast(self) -> None:
        """Start a batch of rows without keys."""
        self._cells.forbid()

    def write_back(self) -> None:
        """Save the changes."""
        changes, table = self._changes, self._table
        places, changed = self._cells.take(), changes.changed
        if not places:
            return
        if changes.read:
            self._access(places)
        if changed:
            self._save(places)
        changes.cleared.clear()
        changed.clear()
        if table.stamps is not None and table.stamps.ttl.return_expired:
            table.remove_expired(self._slots)

    def _access(self, places: list[Any]) -> None:
        """Write entries that were read again, with the present time, except expired ones."""
        stamps = self._table.stamps
        assert stamps is not None  # noqa: S101 - only with a time-to-live
        for at, keys in self._changes.read.items():
            entries = places[at] or {}
            expired = set(stamps.expired(int(self._slots[at])))
            alive = [key for key in keys if key in entries and key not in expired]
            if alive:
                self._changes.changed.setdefault(at, {}).update(dict.fromkeys(alive))
        self._changes.read.clear()

    def _save(self, places: list[Any]) -> None:
        changes, table = self._changes, self._table
        if changes.cleared:
            table.clear(self._slots[list(changes.cleared)])
        maps = [places[at] or {} for at in changes.changed]
        removed: list[_Change] = []
        put: list[_Change] = []
        for at, entries, keys in zip(changes.changed, maps, changes.changed.values(), strict=True):
            for key in keys:
                (put if key in entries else removed).append((at, entries, key))
        if removed:
            table.remove(self._slots[[at for at, *_ in removed]], self._keys.encode([key for *_, key in removed])[0])
        names = self._put(put) if put else []
        if table.stamps is not None:
            for at in changes.cleared:
                table.stamps.drop(int(self._slots[at]))
            for at, _, key in removed:
                table.stamps.forget(int(self._slots[at]), (key,))
            for (at, *_), name in zip(put, names, strict=True):
                table.stamps.touch_map(int(self._slots[at]), (name,))
        table.changed(self._slots[list(changes.changed)], maps)

    def _put(self, put: list[_Change]) -> list[Any]:
        """Save entries; return their map keys as they are kept."""
        given = [key for *_, key in put]
        with indexed_by_key(lambda: [at for at, *_ in put]):
            names, normalized_keys = self._keys.encode(given)
            values, normalized_values = self._values.encode([entries[key] for _, entries, key in put])
        self._table.put(self._slots[[at for at, *_ in put]], names, values)
        if normalized_values is not None:
            for (_, entries, key), value in zip(put, normalized_values, strict=True):
                entries[key] = value
        if normalized_keys is not None:
            for (_, entries, key), name in zip(put, normalized_keys, strict=True):
                entries[name] = entries.pop(key)
        return given if normalized_keys is None else normalized_keys

    def _load(self) -> list[Any]:
        return self._table.containers(self._slots)


def _on_read(table: CollectionTable) -> bool:
    return table.stamps is not None and table.stamps.ttl.on_read


def _replace(lists: list[list[Any]], starts: Any, normalized: list[Any]) -> None:
    first = 0
    for found, start in zip(lists, starts, strict=True):
        stop = first + len(found) - start
        found[start:] = normalized[first:stop]
        first = stop


def _normal(fields: Sequence[pa.Field]) -> Callable[[Any], Any] | None:
    """Return a function that unifies map keys that are equal as columns: naive times and UTC times."""
    if not any(pt.is_timestamp(field.type) for field in fields):
        return None
    if len(fields) == 1:
        return _utc

    def normal(key: Any) -> Any:
        parts = map(_utc, key)
        return key._make(parts) if hasattr(key, "_make") else tuple(parts)

    return normal


def _utc(part: Any) -> Any:
    return part.replace(tzinfo=dt.UTC) if isinstance(part, dt.datetime) and part.tzinfo is None else part
