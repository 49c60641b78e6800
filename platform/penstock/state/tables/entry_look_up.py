"""Lookup of the live elements of a list or entries of a map, as columns of a segment, for state queries.

Used by `EntryTable.look_up`, which `penstock.task.drive.state_queries` calls between two batches.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.state.log.segment_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.state.log.row_spec import RowSpec
    from penstock.state.tables.entry_codec import EntryCodec


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
