"""The columns that every segment has besides those of its keys and values: their names, their field ids.

Used by the specs of the states, by the tables, by the log, and by the offline tools that read segments.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

KEY_HASH, NAMESPACE, DELETED, SEQ = "__key_hash", "__namespace", "__deleted", "__seq"
#: Tells rows of one key and time apart, where a state holds several.
ROW = "__row"
#: Microseconds since the epoch, in states with a time-to-live.
LAST_ACCESS = "__ttl"
#: Field ids from here to 1000 are columns that tell the rows of one key and namespace apart.
FIRST_ENTRY = 501
#: Field ids of the columns of a key.
KEY_IDS = range(101, FIRST_ENTRY)


class StateSpec(Protocol):
    """What the log of any state knows of its rows."""

    @property
    def segment_schema(self) -> pa.Schema:
        """Columns of the state's Parquet files."""


def segment_field(
    name: str, data_type: pa.DataType, number: int, *, nullable: bool = False, more: dict[bytes, bytes] | None = None
) -> pa.Field:
    """Return a column of a segment: its field id is in the metadata `id` and where Parquet wants it."""
    own = {b"id": str(number).encode(), b"PARQUET:field_id": str(number).encode()}
    return pa.field(name, data_type, nullable, {**(more or {}), **own})
