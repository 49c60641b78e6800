"""A user-defined migration: converts values that an older version of the job saved to the current form.

Declared with `ps.migrate`, built by `penstock.functions.migration`, applied by `penstock.state.store` to the rows that
it restores. The next checkpoint saves all migrated rows again, so that no snapshot contains rows of both forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.evolution import FIRST_VALUE_ID, field_id
from penstock.state.log.segment_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable


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

        A file that is older than the snapshot may have other columns; call `evolution.conform` first.
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
