"""Key, value and entry columns of a state of the row path, and user-defined migrations of its values.

Made from the declarations of a process function; read by the tables, the segment writer and restore.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.evolution import (
    ENTRY_IDS,
    EVOLVES,
    FIRST_VALUE_ID,
    LAST_ID,
    MIGRATES,
    MIGRATES_BY,
    NULL,
    UNSAVED,
    WINDOW,
    Evolution,
    field_id,
)
from penstock.core.schema import schema_to_text
from penstock.state.log.segment_columns import (
    LAST_ACCESS,
    ROW,
    rows_of,
    segment_field,
    state_schema,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.kernels.compiler.compile import I32
    from penstock.state.keys.key_index import KeyView


@dataclass(frozen=True)
class Migration:
    """The conversion of values with the columns `was`."""

    #: Columns of the old values, as in the segments of that version.
    was: pa.Schema
    #: The function's name.
    by: str
    #: Names of the fields; a segment has other names for those that clash with a key column.
    fields: tuple[str, ...]
    #: Values as dictionaries -> a mask of those to keep, and their new columns if there are any.
    convert: Callable[[list[dict[str, Any]]], tuple[np.ndarray, list[pa.Array]]]

    def rows(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Convert rows with the snapshot's columns to the current columns; dropped rows become deletions.

        A file that is older than the snapshot may have other columns; call `evolution.conform_table` first.
        """
        saved = [table.schema.names[place] for place, field in enumerate(table.schema) if is_value(field)]
        deleted = table.column("__deleted").to_numpy(zero_copy_only=False).copy()
        live = np.flatnonzero(~deleted)
        columns = [table.column(name).take(pa.array(live)).to_pylist() for name in saved]
        stay, arrays = self.convert([dict(zip(self.fields, row, strict=True)) for row in zip(*columns, strict=True)])
        deleted[live[~stay]] = True
        places = np.full(table.num_rows, -1, np.int64)
        places[live[stay]] = np.arange(int(stay.sum()))
        chosen = pa.array(places, mask=places < 0)
        given = {name: table.column(name).combine_chunks() for name in table.schema.names if name not in saved}
        given["__deleted"] = pa.array(deleted)
        values = [field.name for field in schema if is_value(field)]
        if arrays:
            given |= {name: array.take(chosen) for name, array in zip(values, arrays, strict=True)}
        return rows_of(schema, given, table.num_rows)


def is_value(field: pa.Field) -> bool:
    """Return whether a column of a segment belongs to the value."""
    return field_id(field) >= FIRST_VALUE_ID


#: Prefix of the names of timer states; the rest of the name of those of sessions.
TIMERS, SESSION_TIMERS = "__timers_", "due"
#: The entry column of a list or of a map with plain keys; prefix of the names for other maps.
ENTRY = "__entry"


@dataclass(frozen=True)
class RowSpec:
    """The key columns and value columns of one state."""

    key_schema: pa.Schema
    #: Value columns that the function declares; in a segment all are nullable (a deleted row has no value).
    values: tuple[pa.Field, ...] = ()
    #: Columns that distinguish the rows of one key: the index of a list, the key of a map.
    entries: tuple[pa.Field, ...] = ()
    #: Whether every row has the time of its last access.
    ttl: bool = False
    #: Whether the value columns may differ from the saved ones (`core.evolution`).
    evolves: bool = False
    #: What the value columns take over from a snapshot.
    evolution: Evolution = UNSAVED
    #: User-defined migration from an older version's columns, where schema evolution does not apply.
    migration: Migration | None = None
    #: The window definition, for state of a window operator.
    window: str = ""
    #: Metadata of a join (`core.evolution`), whose rows are distinguished by their time and a number; None: no join.
    join: tuple[tuple[bytes, bytes], ...] | None = None

    @property
    def stored(self) -> tuple[pa.Field, ...]:
        """The value columns, followed by the time of last access."""
        return (*self.values, pa.field(LAST_ACCESS, pa.int64())) if self.ttl else self.values

    @property
    def stored_names(self) -> tuple[str, ...]:
        """The names of `stored` in a segment."""
        return (*self.value_names, LAST_ACCESS) if self.ttl else self.value_names

    @property
    def row_fields(self) -> tuple[pa.Field, ...]:
        """The columns of a row without its key: entry columns, then `stored`."""
        return (*self.entries, *self.stored)

    @property
    def row_names(self) -> tuple[str, ...]:
        """The names of `row_fields` in a segment."""
        return (*(field.name for field in self.entries), *self.stored_names)

    @cached_property
    def segment_schema(self) -> pa.Schema:
        """The columns of this state's Parquet files; field ids are in the metadata `id` and in Parquet's own."""
        ids = self.evolution.ids or range(FIRST_VALUE_ID, FIRST_VALUE_ID + len(self.values))
        carried = self.evolution.carried or ({},) * len(self.values)
        values = [
            segment_field(name, f.type, number, nullable=True, more={**self._evolution_metadata(f), **more})
            for name, f, number, more in zip(self.value_names, self.values, ids, carried, strict=True)
        ]
        entries = [segment_field(f.name, f.type, ENTRY_IDS[i], nullable=True) for i, f in enumerate(self.entries)]
        access = [segment_field(LAST_ACCESS, pa.int64(), 6, nullable=True)] if self.ttl else []
        number = [] if self.join is None else [segment_field(ROW, pa.int64(), 5, nullable=True)]
        last = max([self.evolution.last_id, *ids], default=0)
        said = {**({WINDOW: self.window.encode()} if self.window else {}), **dict(self.join or ())}
        metadata = {EVOLVES: b"1", LAST_ID: str(last).encode()} if self.evolves else said or None
        return state_schema(self.key_schema, [*number, *entries, *values, *access], metadata)

    @property
    def declared_schema(self) -> pa.Schema:
        """The columns as in `segment_schema`, with the data on migrations that `penstock check` needs."""
        schema, migration = self.segment_schema, self.migration
        if migration is None:
            return schema
        more = {MIGRATES: schema_to_text(migration.was).encode(), MIGRATES_BY: migration.by.encode()}
        return schema.with_metadata({**(schema.metadata or {}), **more})

    def rows_of_key(self, key: tuple[KeyView, I32], given: dict[str, pa.Array], rows: int) -> pa.Table:
        """Return rows of a single key, a slot of a view, with the given columns as columns of a segment."""
        view, slots = key
        owners = pa.array(np.zeros(rows, np.int64))
        own = dict(zip(self.key_schema.names, (column.take(owners) for column in view.gather(slots)), strict=True))
        return rows_of(self.segment_schema, own | given, rows)

    def _evolution_metadata(self, field: pa.Field) -> dict[bytes, bytes]:
        """Return the metadata of a value column for later versions of the job."""
        if not self.evolves:
            return {}
        return {**(field.metadata or {}), **({NULL: b"1"} if field.nullable else {})}

    @cached_property
    def value_names(self) -> tuple[str, ...]:
        """The value columns' names in a segment; the name of a key column gets an underscore."""
        taken = set(self.key_schema.names)
        names = []
        for field in self.values:
            name = field.name
            while name in taken:
                name += "_"
            taken.add(name)
            names.append(name)
        return tuple(names)
