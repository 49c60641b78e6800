"""Two streams into one operator: what `interval_join`, `join` and `connect` have in common.

Called by `penstock.api.keyed_stream` and its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.api.call_site import call_site
from penstock.config.settings import parse_duration_ms
from penstock.core.errors import GraphError
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import OperatorSpec
from penstock.graph.stream_graph import StreamNode, Upstream

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.data_stream import DataStream
    from penstock.api.keyed_stream import KeyedStream


def require_partner(stream: DataStream, other: Any, where: str) -> None:
    """Check that another stream can be the second input.

    Raises:
        GraphError: it is no stream, or one of another environment.
    """
    from penstock.api.data_stream import DataStream

    if not isinstance(other, DataStream):
        raise GraphError(f"{where}: {other!r} is not a stream", hint="give the stream to join with")
    if other.environment is not stream.environment:
        msg = f"{where}: the streams belong to different environments"
        raise GraphError(msg, hint="build them from one ps.Environment")


def require_keyed(other: Any, where: str) -> KeyedStream:
    """Return the other stream if it is keyed.

    Raises:
        GraphError: it is not.
    """
    from penstock.api.keyed_stream import KeyedStream

    if not isinstance(other, KeyedStream):
        raise GraphError(f"{where}: the other stream has no key", hint="key it too: other.key_by(...)")
    return other


def append_two_input(
    first: DataStream, second: DataStream, spec: OperatorSpec, schema: pa.Schema, row_type: Any = None
) -> DataStream:
    """Add an operator behind both streams and return its output."""
    from penstock.api.data_stream import DataStream, Flow

    spec = msgspec.structs.replace(spec, output_schema=schema_to_text(schema))
    inputs = [
        [(upstream, schema_to_text(stream.flow.schema)) for upstream in stream.flow.upstreams]
        for stream in (first, second)
    ]
    node = first.environment.builder.add_two_input(StreamNode(id=0, operator=spec, where=call_site()), *inputs)
    flow = Flow(upstreams=(Upstream(node=node),), schema=schema, row_type=row_type)
    return DataStream(first.environment, flow, node)


def signed_us(duration: str | float, what: str) -> int:
    """Return the microseconds of a duration that may be negative: `"-5s"`, or seconds.

    Raises:
        UsageError: not a duration.
    """
    if isinstance(duration, str) and duration.lstrip().startswith("-"):
        return -1000 * parse_duration_ms(duration.lstrip()[1:], what)
    return 1000 * parse_duration_ms(duration, what)
