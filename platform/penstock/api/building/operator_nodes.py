"""Operators of the stream graph under construction: adding them after streams, their options, the user's line.

Called by the methods of `api.streams`; `OperatorHandle` is the common part of streams and sinks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from penstock.api.building.flow import Flow, require_whole_keys
from penstock.core.errors import GraphError, call_site
from penstock.core.schema import schema_to_text
from penstock.graph.job_graph import KeyGroup
from penstock.graph.stream_graph import StreamNode, Upstream
from penstock.graph.validation import require_name

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from penstock.graph.job_graph import JobGraph, OperatorSpec
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
    #: Operators between the stream and this one that are parts of it, in order.
    before: tuple[NewOperator, ...] = ()
    #: The columns by which rows are sent to it; none: as the stream sends them.
    by: tuple[str, ...] = ()


def append_end(builder: StreamGraphBuilder, flow: Flow, spec: OperatorSpec, where: str = "") -> int:
    """Add an operator without output, and return its node; `where`: its place, if it is not the caller's."""
    require_whole_keys(flow, spec.name)
    return _append(builder, flow, StreamNode(id=0, operator=spec, where=where or call_site()))


def append_operator(builder: StreamGraphBuilder, flow: Flow, new: NewOperator) -> Flow:
    """Add an operator and return its output."""
    if new.before:
        return _append_parts(builder, flow, new)
    require_whole_keys(flow, new.spec.name)
    return _output(_add(builder, flow, new), new)


def _append_parts(builder: StreamGraphBuilder, flow: Flow, new: NewOperator) -> Flow:
    """Add an operator and the parts before it, which take its uid and options, or their input's without a key."""
    parallelism = builder.node(flow.upstreams[0].node).parallelism
    parts, flow = [], flow.before_shuffle()
    for part in new.before:
        node = _add(builder, flow, part)
        flow = _output(node, part)
        if part.by:
            parts.append(node)
        else:
            builder.update(node, parallelism=parallelism)
    whole = _add(builder, flow, new)
    for node in parts:
        builder.update(node, part_of=whole)
    return _output(whole, new)


def _add(builder: StreamGraphBuilder, flow: Flow, new: NewOperator) -> int:
    sent = flow.partitioned(KeyGroup(new.by)) if new.by else flow
    return _append(builder, sent, _node(new), new.edge, new.spec.config if new.combine else None)


def append_two_input(builder: StreamGraphBuilder, first: Flow, second: Flow, new: NewOperator) -> Flow:
    """Add an operator after two streams and return its output."""
    for flow in (first, second):
        require_whole_keys(flow, new.spec.name)
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


class JobBuilder(Protocol):
    """The job that streams are parts of: a `ps.Environment`."""

    #: Whether operators with state need a uid.
    require_uids: bool

    @property
    def builder(self) -> StreamGraphBuilder:
        """The graph built so far."""

    def job_graph(self, name: str = "job", *, only: Collection[int] | None = None) -> JobGraph:
        """Return the chained graph; with `only`, just these operators and their inputs."""


class OperatorHandle:
    """An operator of the stream graph under construction."""

    def __init__(self, environment: JobBuilder, node: int | None) -> None:
        """Make a handle; `node` is None if the last call made no operator (a union, a re-partitioning)."""
        self.environment = environment
        self._node = node
        #: Later operators that are part of it.
        self.followers: tuple[int, ...] = ()
        #: The reason why it has a single subtask; empty: it may have any number.
        self.single = ""

    def uid(self, uid: str) -> Self:
        """Set the operator's uid, under which its state is found again; it must stay the same when the job changes."""
        require_name(uid, "uid")
        self.environment.builder.update_operator(self._operator("uid"), uid=uid)
        return self

    def name(self, name: str) -> Self:
        """Set the operator's name for display in `explain`, metrics and logs."""
        self.environment.builder.update_operator(self._operator("name"), name=name)
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Run the operator in this many subtasks instead of the environment's parallelism."""
        node = self._operator("set_parallelism")
        given: Any = parallelism
        if not isinstance(given, int) or given < 1:
            msg = f"parallelism {parallelism!r} is not a number of subtasks"
            raise GraphError(msg, hint="use 1 or more")
        if self.single and parallelism != 1:
            raise GraphError(f"parallelism {parallelism}: {self.single}", hint="remove .set_parallelism(...)")
        for each in (node, *self.followers):
            self.environment.builder.update(each, parallelism=parallelism)
        return self

    def slot_sharing_group(self, group: str) -> Self:
        """Run the operator (and those after it) only in slots with others of that group."""
        node = self._operator("slot_sharing_group")
        self.environment.builder.update(node, slot_sharing_group=group)
        return self

    def disable_chaining(self) -> Self:
        """Run the operator in a separate task."""
        self.environment.builder.update(self._operator("disable_chaining"), chaining=False)
        return self

    def _operator(self, call: str) -> int:
        if self._node is None:
            msg = f".{call}(...) must directly follow the operator that it applies to"
            raise GraphError(msg, hint="key_by, rebalance, broadcast, union and side_output make no operator")
        return self._node


class StreamSink(OperatorHandle):
    """The end of a stream."""
