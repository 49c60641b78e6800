"""Adding operators after streams, for the methods of `streams`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.api.building.call_site import call_site
from penstock.api.building.flow import Flow
from penstock.core.schema import schema_to_text
from penstock.graph.stream_graph import StreamNode, Upstream

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.graph.job_graph import OperatorSpec
    from penstock.graph.stream_graph import StreamGraphBuilder


class NewOperator(msgspec.Struct, frozen=True):
    """A checked operator to add, and the schema and options of its output."""

    spec: OperatorSpec
    schema: pa.Schema
    #: The class of the output's rows, if there is one.
    row_type: Any = None
    #: Tag -> schema as text.
    side_outputs: dict[str, str] = {}
    #: The only columns that are sent to it; None: all.
    edge: pa.Schema | None = None
    #: Whether rows may be combined before they are sent to it.
    combine: bool = False


def append_end(builder: StreamGraphBuilder, flow: Flow, spec: OperatorSpec) -> int:
    """Add an operator without output, and return its node."""
    return _append(builder, flow, StreamNode(id=0, operator=spec, where=call_site()))


def append_operator(builder: StreamGraphBuilder, flow: Flow, new: NewOperator) -> Flow:
    """Add an operator and return its output."""
    combine = new.spec.config if new.combine else None
    return _output(_append(builder, flow, _node(new), new.edge, combine), new)


def append_two_input(builder: StreamGraphBuilder, first: Flow, second: Flow, new: NewOperator) -> Flow:
    """Add an operator after two streams and return its output."""
    inputs = [[(u, schema_to_text(flow.schema)) for u in flow.upstreams] for flow in (first, second)]
    return _output(builder.add_two_input(_node(new), *inputs), new)


def _append(
    builder: StreamGraphBuilder,
    flow: Flow,
    node: StreamNode,
    edge: pa.Schema | None = None,
    combine: dict[str, Any] | None = None,
) -> int:
    text = schema_to_text(flow.schema if edge is None else edge)
    return builder.add(node, [(upstream, text) for upstream in flow.upstreams], combine)


def _node(new: NewOperator) -> StreamNode:
    spec = msgspec.structs.replace(new.spec, output_schema=schema_to_text(new.schema))
    return StreamNode(id=0, operator=spec, where=call_site(), side_outputs=new.side_outputs)


def _output(node: int, new: NewOperator) -> Flow:
    return Flow(upstreams=(Upstream(node=node),), schema=new.schema, row_type=new.row_type)
