"""Adding operators after a stream; called by the modules of this package that define a stream's methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.api.call_site import call_site
from penstock.api.flow import Flow
from penstock.core.schema import schema_to_text
from penstock.graph.stream_graph import StreamNode, Upstream

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.api.data_stream import DataStream
    from penstock.api.process import Process
    from penstock.graph.job_graph import OperatorSpec


def append_node(
    stream: DataStream, node: StreamNode, edge: pa.Schema | None = None, combine: dict[str, Any] | None = None
) -> int:
    """Add a node after a stream and return its id; the edge carries the columns of `edge`, by default all."""
    text = schema_to_text(stream.flow.schema if edge is None else edge)
    return stream.environment.builder.add(node, [(upstream, text) for upstream in stream.flow.upstreams], combine)


def append_operator(
    stream: DataStream,
    spec: OperatorSpec,
    schema: pa.Schema,
    row_type: Any = None,
    *,
    edge: pa.Schema | None = None,
    combine: bool = False,
) -> DataStream:
    """Add an operator after a stream and return its output; `edge`: the only columns it is sent.

    `combine`: its rows may be combined before they are sent to it.
    """
    from penstock.api.data_stream import DataStream

    spec = msgspec.structs.replace(spec, output_schema=schema_to_text(schema))
    made = StreamNode(id=0, operator=spec, where=call_site())
    node = append_node(stream, made, edge, spec.config if combine else None)
    flow = Flow(upstreams=(Upstream(node=node),), schema=schema, row_type=row_type)
    return DataStream(stream.environment, flow, node)


def append_process(stream: DataStream, made: Process) -> DataStream:
    """Add a process function with its side outputs after a stream."""
    output = append_operator(stream, made.spec, made.schema, made.row_type)
    if made.sides:
        stream.environment.builder.update(output.flow.upstreams[0].node, side_outputs=made.sides)
    return output
