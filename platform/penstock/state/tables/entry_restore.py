"""Conversion of restored rows of lists or maps to Python objects; called by `state.tables.entry_table`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.state.log.segment_columns import DELETED
from penstock.state.tables.value_columns import plain_values

if TYPE_CHECKING:
    from penstock.state.log.row_spec import RowSpec
    from penstock.state.tables.entry_codec import EntryCodec


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
