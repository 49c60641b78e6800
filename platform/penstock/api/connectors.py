"""What the API asks of a connector's source and sink objects; connectors implement it without importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.core.errors import GraphError
from penstock.core.views import plain_schema
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validate import require_name

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connector.sink import SinkSpec
    from penstock.connector.source import SourceSpec


class Source(Protocol):
    """A source as the user configures it.

    Where `row_schema` is an Arrow schema, it may also have `row_type`: the class that row functions are given. Options
    in the config of its spec that the API knows: `on_bad_record="dead-letter"` opens a side output, which must be read
    unless `dead_letter_topic` says where else those records go.
    """

    @property
    def row_schema(self) -> Any:
        """The row type (`ps.Schema`), or an Arrow schema, or None when rows have no type of their own."""

    def spec(self) -> SourceSpec:
        """Return the source as a value."""


class Sink(Protocol):
    """A sink as the user configures it.

    One whose writer reads Arrow's view types says so by an attribute `takes_views = True`: then `input_schema`, and
    with it the rows, have them where the stream has; else they are plain strings and binaries. Staged rows (delivery
    `exactly-once`) are plain all the same.
    """

    def spec(self, input_schema: pa.Schema) -> SinkSpec:
        """Return the sink as a value; `input_schema` is that of the rows it will be given, without `__ts`."""


def sink_operator(sink: Sink, schema: pa.Schema, uid: str) -> OperatorSpec:
    """Return the operator that writes rows to a sink.

    Raises:
        GraphError: it is no sink, or does not take such rows.
    """
    if not callable(getattr(sink, "spec", None)):
        msg = f"sink_to: {sink!r} is not a sink"
        raise GraphError(msg, hint="use a connector, for example penstock_connectors.kafka.KafkaSink")
    if uid:
        require_name(uid, "uid")
    given = schema if getattr(sink, "takes_views", False) else plain_schema(schema)
    return OperatorSpec(
        uid=uid,
        name=f"Sink: {uid or type(sink).__name__}",
        kind="sink",
        config={"sink": msgspec.to_builtins(sink.spec(given))},
        stateful=True,
    )


def print_operator(name: str) -> OperatorSpec:
    """Return the operator that prints rows. Raises GraphError."""
    require_name(name, "name")
    return OperatorSpec(uid="", name=f"Print: {name}", kind="print", config={"name": name})
