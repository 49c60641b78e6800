"""Conversion between columns and the objects of lists and maps: the protocol of the row path's codecs.

Implemented in `penstock.operators`; used by `state.tables.entry_table` and, for evicted keys,
`state.tables.entry_cold`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


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
