"""What the API asks of a connector's source and sink objects; connectors implement it without importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connector.sink import SinkSpec
    from penstock.connector.source import SourceSpec


class Source(Protocol):
    """A source as the user configures it.

    It may also have `side_outputs() -> dict[str, pa.Schema]`: the tags it can write (dead letters), with their schemas.
    """

    @property
    def row_schema(self) -> Any:
        """The row type (`ps.Schema`), or an Arrow schema, or None when rows have no type of their own."""

    def spec(self) -> SourceSpec:
        """Return the source as a value."""


class Sink(Protocol):
    """A sink as the user configures it."""

    def spec(self, input_schema: pa.Schema) -> SinkSpec:
        """Return the sink as a value; `input_schema` is that of the rows it will be given, without `__ts`."""
