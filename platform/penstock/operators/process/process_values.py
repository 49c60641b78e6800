"""Conversion of a process function's values to columns and back, and the handle of a value bound to its table.

Called by `penstock.operators.process.keyed_process`, once a batch for each value that the function has used.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.functions.process_function import ValueChanges, ValueState
from penstock.functions.state_handles import Cells, Current
from penstock.operators.process.read_states import ReadValueState
from penstock.operators.rows.columns import ColumnError
from penstock.operators.rows.rows import RowEncoder, row_maker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.kernels.compiler.compile import I32
    from penstock.state.tables.value_table import RowTable


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
            raise self._unfit("a value is no tuple")
        try:
            columns = list(zip(*values, strict=True))
        except (TypeError, ValueError) as error:
            raise self._unfit(str(error)) from error
        if len(columns) != len(self._schema):
            raise self._unfit(f"a value has {len(columns)} fields")
        return [self._encoder.array(field, column) for field, column in zip(self._schema, columns, strict=True)]

    def _unfit(self, text: str) -> ColumnError:
        return ColumnError(f"{self._where}: {text}", hint=f"a value has: {', '.join(self._schema.names)}")


class BoundValue:
    """A `ValueState` over its table, for the keys of one batch after another."""

    def __init__(self, current: Current, table: RowTable, codec: ValueCodec) -> None:
        """Make the handle that is passed to the function."""
        on_read = table.ttl is not None and table.ttl.on_read
        self._cells, self._changes = Cells(current), ValueChanges()
        self.handle: ValueState[Any] = (ReadValueState if on_read else ValueState)(self._cells, self._changes)
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
        found.clear()
        slots = self._slots[np.frombuffer(marks, np.bool_)]
        if self._changes.cleared:
            gone = np.fromiter((value is None for value in values), np.bool_, len(values))
            self._table.clear(slots[gone])
            slots, values = slots[~gone], [value for value in values if value is not None]
        if values:
            self._table.write(slots, self._codec.encode(values))

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
