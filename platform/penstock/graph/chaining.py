"""Chaining: operators that can run in one task become one vertex; the stream graph becomes the job graph.

The job graph has a fingerprint of the parts that must fit a snapshot. Called by `penstock.api.environment`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.core.errors import GraphError
from penstock.graph.job_graph import Forward, JobEdge, JobGraph, JobVertex, KeyGroup, OperatorSpec
from penstock.graph.operator_kinds import properties_of
from penstock.graph.stream_graph import StreamEdge, StreamGraph, StreamNode
from penstock.graph.validation import validate

#: Slot sharing group of operators without one, also of unconnected pipelines: they share slots.
DEFAULT_GROUP = "default"


def build_job_graph(graph: StreamGraph, *, complete: bool = True) -> JobGraph:
    """Validate the stream graph and fuse it into chains; without `complete`, sinks may be missing (for display only).

    Raises:
        GraphError: the graph cannot run; the message names the operator and a solution.
    """
    validate(graph, complete=complete)
    groups = slot_sharing_groups(graph)
    if complete:
        _check_resources(graph, set(groups.values()))
    chain_of: dict[int, int] = {}
    chains: dict[int, list[StreamNode]] = {}
    for node in graph.nodes:
        edge = _chained_input(graph, node, groups)
        head = node.id if edge is None else chain_of[edge.source]
        chain_of[node.id] = head
        chains.setdefault(head, []).append(node)
    vertices = tuple(_vertex(graph, chain, groups[chain[0].id]) for chain in chains.values())
    ids = dict(zip(chains, (v.id for v in vertices), strict=True))
    edges = tuple(
        JobEdge(
            source=ids[chain_of[edge.source]],
            target=ids[chain_of[edge.target]],
            partitioner=graph.partitioner(edge),
            input_index=edge.input_index,
            schema=_edge_schema(edge.schema),
            side_output=edge.side_output,
            combine=edge.combine,
        )
        for edge in graph.edges
        if chain_of[edge.source] != chain_of[edge.target]
    )
    return JobGraph(
        name=graph.name,
        vertices=vertices,
        edges=edges,
        settings=graph.settings,
        fingerprint=fingerprint(vertices, edges),
    )


def _check_resources(graph: StreamGraph, groups: set[str]) -> None:
    """Raise GraphError for resources of a group that no operator has, or for two profiles of one."""
    names = [profile.group for profile in graph.settings.slot_resources]
    for name in names:
        if name not in groups:
            msg = f"slot_resources: no operator is in the slot sharing group {name!r}"
            raise GraphError(msg, hint=f"there are: {', '.join(sorted(groups))}")
        if names.count(name) > 1:
            msg = f"slot_resources has {names.count(name)} profiles of the slot sharing group {name!r}"
            raise GraphError(msg, hint="give one profile to a group")


def _edge_schema(schema: str) -> str:
    """Return the schema of an edge between tasks, without views.

    A view would take its whole pool along with every batch.
    """
    if not schema:
        return schema
    from penstock.core.schema import (
        schema_from_text,
        schema_to_text,
    )  # imports Pydantic, which the JobManager seldom needs
    from penstock.core.views import plain_schema

    declared = schema_from_text(schema)
    plain = plain_schema(declared)
    return schema if plain is declared else schema_to_text(plain)


def slot_sharing_groups(graph: StreamGraph) -> dict[int, str]:
    """Return node id -> slot sharing group: as written, else the inputs' common one, else the default."""
    groups: dict[int, str] = {}
    for node in graph.nodes:
        inherited = {groups[e.source] for e in graph.in_edges(node.id)}
        groups[node.id] = node.slot_sharing_group or (inherited.pop() if len(inherited) == 1 else DEFAULT_GROUP)
    return groups


def vertex_id_of(head_uid: str) -> str:
    """Return the 32 hex digits of the vertex whose chain begins with `head_uid`."""
    return hashlib.blake2b(head_uid.encode(), digest_size=16, person=b"penstock.vertex").hexdigest()


def _chained_input(graph: StreamGraph, node: StreamNode, groups: dict[int, str]) -> StreamEdge | None:
    """Return the edge over which `node` is fused to its input, or None if it begins a chain."""
    inputs = graph.in_edges(node.id)
    if len(inputs) != 1:
        return None
    edge = inputs[0]
    source = graph.node(edge.source)
    fits = (
        isinstance(graph.partitioner(edge), Forward)
        and edge.side_output is None
        # a chain is linear: an operator that is read twice, or by its side output, ends its chain
        and len(graph.out_edges(source.id)) == 1
        and graph.parallelism(source) == graph.parallelism(node)
        and groups[source.id] == groups[node.id]
        and source.chaining
        and node.chaining
    )
    return edge if fits else None


def _vertex(graph: StreamGraph, chain: Sequence[StreamNode], group: str) -> JobVertex:
    return JobVertex(
        id=vertex_id_of(chain[0].operator.uid),
        name=" -> ".join(n.operator.name for n in chain),
        operators=tuple(msgspec.structs.replace(n.operator, where=n.where) for n in chain),
        parallelism=graph.parallelism(chain[0]),
        slot_sharing_group=group,
    )


def fingerprint(vertices: Sequence[JobVertex], edges: Sequence[JobEdge]) -> str:
    """Return 32 hex digits over uids, kinds, state schemas and key columns of the stateful operators."""
    keys = {e.target: list(e.partitioner.columns) for e in edges if isinstance(e.partitioner, KeyGroup)}
    parts = [
        [*_state_of(operator), keys.get(vertex.id, []) if operator is vertex.operators[0] else []]
        for vertex in vertices
        for operator in vertex.operators
        if operator.stateful
    ]
    text = msgspec.json.encode(sorted(parts, key=str), order="sorted")
    return hashlib.blake2b(text, digest_size=16, person=b"penstock.graph").hexdigest()


def _state_of(operator: OperatorSpec) -> list[Any]:
    config = operator.config
    kind = properties_of(operator.kind)
    if kind.state_config:
        shape: Any = {key: config.get(key) for key in kind.state_config}
        shape |= {key: config[key] for key in kind.added_state_config if key in config}
        fields = _fields(operator.output_schema)
        if operator.kind == "deduplicate":  # the other columns are not in its state
            kept = {*config.get("key", ()), config.get("by")}
            fields = [field for field in fields if field.rpartition(": ")[0] in kept]
        return [operator.uid, operator.kind, shape, fields]
    connector = config.get("source") or config.get("sink") or {}
    return [operator.uid, operator.kind, connector.get("factory", ""), connector.get("delivery", "")]


def _fields(schema: str) -> list[str]:
    """Return `name: type` of each column; the text form of a schema itself may differ between Arrow versions."""
    if not schema:
        return []
    from penstock.core.schema import schema_from_text

    return [f"{field.name}: {field.type}" for field in schema_from_text(schema)]
