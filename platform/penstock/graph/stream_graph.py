"""The stream graph: the job as written, one node per operator, before chaining; and its builder.

A `StreamGraph` is a frozen value. `penstock.api` fills a `StreamGraphBuilder` while the job file runs. The builder
replaces nodes and never changes them, so that a node returned earlier stays valid.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from penstock.config.settings import JobSettings
from penstock.core.errors import GraphError
from penstock.graph.job_graph import Forward, OperatorSpec, Partitioner, Rebalance

#: Job names and uids that can be part of paths and transactional ids.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
#: The end of the uid of a part of an operator.
PART_SUFFIX = ".partial"


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """An input of an operator: the main or a side output of another operator, and the partitioner."""

    node: int
    #: None: forward when both sides have the same parallelism, else rebalance.
    partitioner: Partitioner | None = None
    side_output: str | None = None


class StreamNode(msgspec.Struct, frozen=True, kw_only=True):
    """One operator as written."""

    id: int
    #: Its `uid` is empty until the user gives one; `build` gives stateless operators a generated one.
    operator: OperatorSpec
    #: None: the environment's parallelism.
    parallelism: int | None = None
    #: None: that of the inputs, else the default one.
    slot_sharing_group: str | None = None
    chaining: bool = True
    #: Side outputs the operator can write: tag -> schema as text.
    side_outputs: dict[str, str] = {}
    #: Whether they may stay unread, because the operator keeps those rows elsewhere too.
    side_outputs_optional: bool = False
    #: File and line of the user's call, for error messages.
    where: str = ""
    #: The node whose uid (with a suffix) and options it has, because it is a part of the same call; 0: none.
    part_of: int = 0

    @property
    def label(self) -> str:
        """Return the operator's name in error messages."""
        name = repr(self.operator.uid) if self.operator.uid and self.operator.stateful else self.operator.name
        return f"{name} ({self.where})" if self.where else name


class StreamEdge(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of `source` flow to input `input_index` of `target`.

    After a union each of its streams has its own index; a side of a join has one index for all its streams.
    """

    source: int
    target: int
    input_index: int
    partitioner: Partitioner | None
    #: Schema on the edge as text.
    schema: str
    side_output: str | None = None
    #: As in `JobEdge`.
    combine: dict[str, Any] = {}


class StreamGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The job as written; nodes are in topological order."""

    name: str
    nodes: tuple[StreamNode, ...]
    edges: tuple[StreamEdge, ...]
    settings: JobSettings

    def node(self, node_id: int) -> StreamNode:
        """Return the node of that id."""
        return next(n for n in self.nodes if n.id == node_id)

    def parallelism(self, node: StreamNode) -> int:
        """Return how many subtasks the operator has."""
        return node.parallelism or self.settings.parallelism

    def in_edges(self, node_id: int) -> tuple[StreamEdge, ...]:
        """Return the edges that end at the node, in input order."""
        return tuple(e for e in self.edges if e.target == node_id)

    def out_edges(self, node_id: int) -> tuple[StreamEdge, ...]:
        """Return the edges that begin at the node."""
        return tuple(e for e in self.edges if e.source == node_id)

    def partitioner(self, edge: StreamEdge) -> Partitioner:
        """Return the partitioner of the edge: as written, else forward or rebalance by parallelism."""
        if edge.partitioner is not None:
            return edge.partitioner
        same = self.parallelism(self.node(edge.source)) == self.parallelism(self.node(edge.target))
        return Forward() if same else Rebalance()


class StreamGraphBuilder:
    """Collects nodes and edges while a job file runs."""

    def __init__(self) -> None:
        """Start without any node."""
        self._last_id = 0
        self._nodes: dict[int, StreamNode] = {}
        self._edges: list[StreamEdge] = []

    def add(
        self, node: StreamNode, inputs: Iterable[tuple[Upstream, str]] = (), combine: dict[str, Any] | None = None
    ) -> int:
        """Add an operator after `inputs` (with the schema on each edge); return its id (that of `node` is ignored).

        `combine`: as in `JobEdge`.
        """
        return self._enter(node, [(index, *given) for index, given in enumerate(inputs)], combine or {})

    def add_two_input(
        self, node: StreamNode, first: Iterable[tuple[Upstream, str]], second: Iterable[tuple[Upstream, str]]
    ) -> int:
        """Add an operator with two distinct inputs: all of `first` is input 0, all of `second` input 1."""
        return self._enter(node, [*((0, *given) for given in first), *((1, *given) for given in second)], {})

    def _enter(self, node: StreamNode, inputs: Iterable[tuple[int, Upstream, str]], combine: dict[str, Any]) -> int:
        self._last_id += 1
        node_id = self._last_id
        self._nodes[node_id] = msgspec.structs.replace(node, id=node_id)
        for index, upstream, schema in inputs:
            edge = StreamEdge(
                source=upstream.node,
                target=node_id,
                input_index=index,
                partitioner=upstream.partitioner,
                schema=schema,
                side_output=upstream.side_output,
                combine=combine,
            )
            self._edges.append(edge)
        return node_id

    def remove(self, node_id: int) -> None:
        """Remove a node that has no downstream operators."""
        del self._nodes[node_id]
        self._edges = [edge for edge in self._edges if edge.target != node_id]

    def node(self, node_id: int) -> StreamNode:
        """Return the present version of a node."""
        return self._nodes[node_id]

    def with_parts(self, node_id: int) -> list[StreamNode]:
        """Return a node and the nodes that are parts of it."""
        return [node for node in self._nodes.values() if node_id in (node.id, node.part_of)]

    def update(self, node_id: int, **changes: Any) -> None:
        """Replace fields of a node."""
        self._nodes[node_id] = msgspec.structs.replace(self._nodes[node_id], **changes)

    def update_operator(self, node_id: int, **changes: Any) -> None:
        """Replace fields of a node's operator."""
        self.update(node_id, operator=msgspec.structs.replace(self._nodes[node_id].operator, **changes))

    def build(
        self, name: str, settings: JobSettings, *, only: Collection[int] | None = None, require_uids: bool = True
    ) -> StreamGraph:
        """Return the graph; with `only`, these nodes and everything upstream of them.

        Without `require_uids`, stateful operators get generated uids too; a changed job then does not find its state
        again.

        Raises:
            GraphError: there is nothing to run.
        """
        kept = set(self._nodes) if only is None else self._ancestors(only)
        if not kept:
            msg = f"job {name!r} has no operator"
            raise GraphError(msg, hint="begin with env.from_source(...) and end with .sink_to(...)")
        found = [self._with_options(self._nodes[i]) for i in sorted(kept)]
        given = {node.operator.uid for node in found}
        nodes = tuple(self._with_uid(node, given, require_uids) for node in found)
        edges = tuple(e for e in self._edges if e.source in kept and e.target in kept)
        return StreamGraph(name=name, nodes=nodes, edges=edges, settings=settings)

    def _ancestors(self, ends: Collection[int]) -> set[int]:
        kept: set[int] = set()
        waiting = list(ends)
        while waiting:
            node_id = waiting.pop()
            if node_id not in kept:
                kept.add(node_id)
                waiting.extend(e.source for e in self._edges if e.target == node_id)
        return kept

    def _with_options(self, node: StreamNode) -> StreamNode:
        """Return a part with the uid and options of the operator that it belongs to."""
        if not node.part_of:
            return node
        whole = self._nodes[node.part_of]
        uid = f"{whole.operator.uid}{PART_SUFFIX}" if whole.operator.uid else ""
        return msgspec.structs.replace(
            node,
            operator=msgspec.structs.replace(node.operator, uid=uid),
            parallelism=whole.parallelism,
            slot_sharing_group=whole.slot_sharing_group,
        )

    @staticmethod
    def _with_uid(node: StreamNode, given: Collection[str], require_uids: bool) -> StreamNode:
        """Give a stateless operator a uid by its place; a stateful one keeps none, and `validate` rejects it."""
        if node.operator.uid or (node.operator.stateful and require_uids):
            return node
        uid = f"{node.operator.kind}-{node.id}"
        if node.operator.kind == "print" and NAME.fullmatch(shown := f"{node.operator.config['name']}-{node.id}"):
            uid = shown
        while uid in given:
            uid += "_"
        return msgspec.structs.replace(node, operator=msgspec.structs.replace(node.operator, uid=uid))
