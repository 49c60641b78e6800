"""Lists and maps as columns: the codec's protocol, restored rows, rows of evicted keys, and look-ups.

The codecs are in `penstock.operators`; used by `state.tables.collection_table` in the owner's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.state.log.segment_columns import DELETED, rows_of
from penstock.state.tables.value_table import plain_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.state.log.row_spec import RowSpec


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


def decoded_entries(columns: list[pa.Array], spec: RowSpec, codec: EntryCodec) -> tuple[list[Any], list[Any]]:
    """Return map keys or indices, and values, from the columns of a record's rows."""
    entries = len(spec.entries)
    names = codec.decode_keys([plain_values(array) for array in columns[:entries]])
    values = codec.decode_values([plain_values(array) for array in columns[entries : entries + len(spec.values)]])
    return names, values
