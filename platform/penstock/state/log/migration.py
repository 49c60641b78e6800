"""A migration registered for a state: values as an older version of the job kept them become those of today.

Declared with `ps.migrate`, made by `penstock.functions.migration`, applied by `penstock.state.store` to the rows that
it restores. What was migrated is saved anew by the next checkpoint, so that no snapshot names rows of both kinds.
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
    """What becomes of values with the columns `was`."""

    #: Columns that the values had, as they stand in the segments of that time.
    was: pa.Schema
    #: The function's name.
    by: str
    #: The names of the fields, where a segment has others because of a key column.
    fields: tuple[str, ...]
    #: Values as dictionaries -> which of them stay, and the columns of these if there are any.
    convert: Callable[[list[dict[str, Any]]], tuple[np.ndarray, list[pa.Array]]]

    def rows(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return rows with the columns of their snapshot as rows of today; deleted ones stay so, as do those that go.

        A file that is older than the snapshot may have others: `evolution.conform` comes before.
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
    """Whether a column of a segment is one of a value."""
    return field_id(field) >= FIRST_VALUE_ID
