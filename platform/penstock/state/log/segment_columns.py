"""Names and field ids of the columns that every segment has besides its keys and values.

Used by the specs of the states, by the tables, by the log, and by the offline tools that read segments.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

KEY_HASH, NAMESPACE, DELETED, SEQ = "__key_hash", "__namespace", "__deleted", "__seq"
#: Distinguishes rows of one key and time in states that hold several.
ROW = "__row"
#: Microseconds since the epoch, in states with a time-to-live.
LAST_ACCESS = "__ttl"
#: Field ids from here to 1000 are columns that distinguish the rows of one key and namespace.
FIRST_ENTRY = 501
#: Field ids of the columns of a key.
KEY_IDS = range(101, FIRST_ENTRY)


class StateSpec(Protocol):
    """The row description that the log of any state needs."""

    @property
    def segment_schema(self) -> pa.Schema:
        """The columns of the state's Parquet files."""


def segment_field(
    name: str, data_type: pa.DataType, number: int, *, nullable: bool = False, more: dict[bytes, bytes] | None = None
) -> pa.Field:
    """Return a column of a segment with its field id, in the metadata `id` and in Parquet's own."""
    own = {b"id": str(number).encode(), b"PARQUET:field_id": str(number).encode()}
    return pa.field(name, data_type, nullable, {**(more or {}), **own})
