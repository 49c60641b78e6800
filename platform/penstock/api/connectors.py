"""The interface of a connector's source and sink objects for the API; connectors implement it without importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.core.errors import GraphError
from penstock.core.views import plain_schema
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.validation import require_name

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.connector.sink import SinkSpec
    from penstock.connector.source import SourceSpec


class Source(Protocol):
    """A source as configured by the user.

    If `row_schema` is an Arrow schema, there may also be a `row_type`: the class of rows for row functions. The API
    reads these options in the config of its spec: `on_bad_record="dead-letter"` opens a side output, which must be read
    unless `dead_letter_topic` names another destination of those records. A `created_at`, if there is one, is the
    `file:line` for messages (`core.errors.call_site` in the constructor); by default it is that of `from_source`.
    """

    @property
    def row_schema(self) -> Any:
        """The row type (`ps.Schema`), or an Arrow schema, or None if rows have no type."""

    def spec(self) -> SourceSpec:
        """Return the source's specification."""


class Sink(Protocol):
    """A sink as configured by the user.

    An attribute `takes_views = True` declares that the writer reads Arrow's view types: `input_schema` and the rows
    then have the stream's view types; by default they have plain strings and binaries. Staged rows (delivery
    `exactly-once`) are always plain. `created_at` is as of a source.
    """

    def spec(self, input_schema: pa.Schema) -> SinkSpec:
        """Return the sink's specification; `input_schema` is that of the rows it will receive, without `__ts`."""


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
