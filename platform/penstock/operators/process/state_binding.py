"""The binding of a declared value state to its table, and what lists, maps and broadcast states need too.

Parameters, codec, migrations, and handles whose reads renew the time-to-live.
"""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from penstock.core.errors import StateMismatchError
from penstock.core.schema import schema_from_text
from penstock.functions.keyed_states import MISSING, ListState, MapState
from penstock.functions.process_function import ValueChanges, ValueState
from penstock.functions.state_calls import places_of_changes
from penstock.operators.rows.columns import ColumnError
from penstock.operators.rows.row_codec import RowEncoder, row_maker
from penstock.operators.rows.row_text import value_text
from penstock.operators.rows.user_functions import user_error
from penstock.state.log.row_spec import Migration

if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView

    from penstock.functions.migration import MigrateValues
    from penstock.functions.state_handles import Cells, Current
    from penstock.kernels.compiler.compile import I32
    from penstock.state.log.ttl import Ttl, TtlClock
    from penstock.state.tables.row_state import RowState
    from penstock.state.tables.value_table import ValueTable

T = TypeVar("T")
#: Lines that an error names.
_MOST_PLACES = 3


@dataclass(frozen=True, slots=True)
class StateConfig:
    """One state as described in the operator's config."""

    kind: str
    values: pa.Schema
    #: The columns of a map's keys.
    keys: pa.Schema | None
    #: Begins every error.
    where: str
    ttl: Ttl | None


@dataclass(frozen=True, slots=True)
class StateTypes:
    """Row types (None: a plain value) of values, and of a map's keys."""

    values: type | None
    keys: type | None


class BoundState(Protocol):
    """A state's handle over its table."""

    @property
    def handle(self) -> Any:
        """The handle that is passed to the function."""

    def begin(self, slots: I32) -> None:
        """Start a batch of these keys."""

    def begin_broadcast(self) -> None:
        """Start a batch of the broadcast stream, whose rows have no key."""

    def write_back(self) -> None:
        """Save the changes.

        Raises:
            ColumnError: a value does not fit; its `index` is that of its key in the batch.
        """


@dataclass(frozen=True, slots=True)
class BindingContext:
    """The stores and names that an operator's states share."""

    state: RowState
    current: Current
    clock: TtlClock
    where: str


class RenewingValueState(ValueState[Any]):
    """A value whose time-to-live restarts when it is read."""

    __slots__ = ()

    def value(self) -> Any:
        """Return the value, and write it back with the present time."""
        found = super().value()
        if found is not None and self._current.at not in self._changes.stale:
            self._marks[self._current.at] = 1
        return found


class RenewingListState(ListState[Any]):
    """A list whose elements' time-to-live restarts when it is read."""

    __slots__ = ()

    def _here(self) -> list[Any] | None:
        found = super()._here()
        if found:
            self._changes.read.add(self._current.at)
        return found


class RenewingMapState(MapState[Any, Any]):
    """A map whose entries' time-to-live restarts when they are read."""

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a map key and renew its entry."""
        found = super().get(key, MISSING)
        if found is MISSING:
            return default
        name = key if self._normal is None else self._normal(key)
        self._changes.read.setdefault(self._current.at, {})[name] = None
        return found

    def keys(self) -> KeysView[Any]:
        """Return the map keys and renew all entries."""
        self._read_all()
        return super().keys()

    def values(self) -> ValuesView[Any]:
        """Return the values and renew all entries."""
        self._read_all()
        return super().values()

    def items(self) -> ItemsView[Any, Any]:
        """Return the entries and renew all of them."""
        self._read_all()
        return super().items()

    def __iter__(self) -> Iterator[Any]:
        self._read_all()
        return super().__iter__()

    def _read_all(self) -> None:
        self._changes.read.setdefault(self._current.at, {}).update(dict.fromkeys(super().keys()))


class ValueCodec:
    """Values of one declared type: a row type of several columns, or one column."""

    def __init__(self, schema: pa.Schema, row_type: type | None, where: str) -> None:
        """Make a codec; `row_type` is None for a plain value, `tuple` for a plain tuple; `where` begins each error."""
        self._schema = schema
        self._where = where
        self._tuples = row_type is not None and issubclass(row_type, tuple)
        if row_type is tuple:
            self._make: Callable[[list[list[Any]]], Iterable[Any]] | None = lambda columns: zip(*columns, strict=True)
        else:
            self._make = None if row_type is None else row_maker(schema.names, row_type)
        self._encoder = RowEncoder(schema, where)

    def decode(self, columns: list[list[Any]]) -> list[Any]:
        """Return values decoded from columns."""
        return columns[0] if self._make is None else list(self._make(columns))

    def encode(self, values: Sequence[Any]) -> list[pa.Array]:
        """Return the columns of values, none of which is None.

        Raises:
            ColumnError: one does not fit its declared type.
        """
        if self._make is None:
            return [self._encoder.array(self._schema.field(0), values)]
        if not self._tuples:
            return self._encoder.columns(values)
        if not all(issubclass(kind, tuple | list) for kind in set(map(type, values))):
            raise self._no_tuple(values)
        try:
            columns = list(zip(*values, strict=True))
        except ValueError as error:
            raise self._no_tuple(values) from error
        if len(columns) != len(self._schema):
            raise self._no_tuple(values)
        return [self._encoder.array(field, column) for field, column in zip(self._schema, columns, strict=True)]

    def _no_tuple(self, values: Sequence[Any]) -> ColumnError:
        """Return the error of the first value that is no tuple of the declared length."""
        names = self._schema.names
        sizes = (len(value) if isinstance(value, tuple | list) else None for value in values)
        index, size = next((index, size) for index, size in enumerate(sizes) if size != len(names))
        found = "is no tuple" if size is None else f"has {size} fields"
        msg, shown = f"{self._where}: a value {found}", f"value: {value_text(values[index])}"
        return ColumnError(msg, hint=f"a value has: {', '.join(names)}", values=shown, index=index)


@contextmanager
def indexed_by_key(places: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Let the error of one value have the index of its key in the batch; `places` returns that of each value."""
    try:
        yield
    except ColumnError as error:
        if error.index is not None:
            error.index = places()[error.index]
        raise


def error_of_state(error: ColumnError, function: Any, state: str, row: str) -> ColumnError:
    """Return the error of a value with the lines of its function that change the state; `row` gave the value."""
    places = places_of_changes(function, state)
    more = " or others" if len(places) > _MOST_PLACES else ""
    set_at = f"; set at {' or '.join(places[:_MOST_PLACES])}{more}" if places else ""
    return ColumnError(f"{error.message}{set_at}", hint=error.hint, values=f"{error.values}\n{row}".rstrip())


def saved_state(saved: Callable[[], T], function: Any, state: str) -> T:
    """Return what `saved` makes of a state for a checkpoint; its error names the lines that change the state."""
    try:
        return saved()
    except ColumnError as error:
        raise error_of_state(error, function, state, "") from error


class BoundValue:
    """A `ValueState` over its table, for the keys of one batch after another."""

    def __init__(self, cells: Cells, table: ValueTable, codec: ValueCodec) -> None:
        """Make the handle that is passed to the function."""
        on_read = table.ttl is not None and table.ttl.on_read
        self._cells, self._changes = cells, ValueChanges()
        self.handle: ValueState[Any] = (RenewingValueState if on_read else ValueState)(self._cells, self._changes)
        self._table = table
        self._codec = codec
        self._slots: I32 = np.empty(0, np.int32)

    def begin(self, slots: I32) -> None:
        """Start a batch of these keys."""
        self._slots = slots
        self._cells.begin(self._load)
        self._changes.begin(len(slots))

    def begin_broadcast(self) -> None:
        """Start a batch of rows without keys."""
        self._cells.forbid()

    def write_back(self) -> None:
        """Write the changes."""
        found = self._cells.items
        if not found:
            return
        marks = bytes(self._changes.marks)
        values = list(itertools.compress(found, marks))
        slots = self._slots[np.frombuffer(marks, np.bool_)]
        if self._changes.cleared:
            removed = np.fromiter((value is None for value in values), np.bool_, len(values))
            self._table.clear(slots[removed])
            slots, values = slots[~removed], [value for value in values if value is not None]
        if values:
            with indexed_by_key(lambda: [at for at, mark in enumerate(marks) if mark and found[at] is not None]):
                columns = self._codec.encode(values)
            self._table.write(slots, columns)
        found.clear()

    def _load(self) -> list[Any]:
        table = self._table
        rows = table.rows_of(self._slots)
        if table.ttl is not None:
            expired = table.expired(rows)
            self._changes.stale = frozenset(np.flatnonzero(expired).tolist())
            if self._changes.stale:
                seen = self._decoded(rows) if table.ttl.return_expired else None
                table.clear(self._slots[expired])
                return self._decoded(table.rows_of(self._slots)) if seen is None else seen
        return self._decoded(rows)

    def _decoded(self, rows: I32) -> list[Any]:
        present = np.flatnonzero(rows >= 0)
        if len(present) == 0:
            return [None] * len(rows)
        if len(present) == len(rows):
            return self._codec.decode(self._table.values(rows))
        if 2 * len(present) > len(rows):  # set values one by one: there are fewer of them
            values = self._codec.decode(self._table.values(np.where(rows < 0, rows[present[0]], rows)))
            for place in np.flatnonzero(rows < 0).tolist():
                values[place] = None
            return values
        found = self._codec.decode(self._table.values(rows[present]))
        values = [None] * len(rows)
        for place, value in zip(present.tolist(), found, strict=True):
            values[place] = value
        return values


def require_all_kept(migration: Migration, where: str) -> Migration:
    """Return the migration of a list with a time-to-live, which must keep all elements: they expire in order."""
    convert = migration.convert

    def all_of(old: list[dict[str, Any]]) -> tuple[np.ndarray, list[pa.Array]]:
        stay, columns = convert(old)
        if not stay.all():
            msg = f"{where}: migration {migration.by} leaves out an element of a list with a time-to-live"
            raise StateMismatchError(msg, hint="return something in its place, and ignore that value when reading")
        return stay, columns

    return dataclasses.replace(migration, convert=all_of)


def migration_of(was: str | None, function: Any, codec: ValueCodec, where: str) -> Migration | None:
    """Return the migration of a state in its table's form; `was` are the old columns as text, None without one."""
    if was is None:
        return None
    made: MigrateValues = function

    def convert(old: list[dict[str, Any]]) -> tuple[np.ndarray, list[pa.Array]]:
        try:
            new = [made.function(value) for value in old]
        except Exception as error:
            raise user_error(f"{where}: migration {made.by}", error) from error
        stay = np.fromiter((value is not None for value in new), np.bool_, len(new))
        kept = [value for value in new if value is not None]
        return stay, codec.encode(kept) if kept else []

    columns = schema_from_text(was)
    return Migration(columns, made.by, tuple(columns.names), convert)
