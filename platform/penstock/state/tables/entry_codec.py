"""How the objects of lists and maps become columns and come back: what the tables ask of the row path's codecs.

Implemented in `penstock.operators`; used by `state.tables.entry_table` and, for keys that leave memory,
`state.tables.entry_cold`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


class EntryCodec(Protocol):
    """From columns to what functions see, and what that takes in memory."""

    def decode_keys(self, columns: list[list[Any]]) -> list[Any]:
        """Return map keys (of a list: indices) of their columns."""

    def encode_keys(self, keys: Sequence[Any]) -> list[pa.Array]:
        """Return the entry columns of map keys or indices."""

    def decode_values(self, columns: list[list[Any]]) -> list[Any]:
        """Return values of their columns."""

    def encode_values(self, values: Sequence[Any]) -> list[pa.Array]:
        """Return the value columns of values."""

    @property
    def object_bytes(self) -> int:
        """Bytes of a key and its value as objects, without what strings hold."""

    def text_bytes(self, columns: Sequence[pa.Array]) -> int:
        """Return the bytes that the strings of entry and value columns take as objects; 0 for types without any."""

    def measured(self, container: Any) -> int:
        """Return the bytes that the strings of a list or dict take."""
