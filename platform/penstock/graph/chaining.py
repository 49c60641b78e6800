"""Chaining: operators that can run in one task become one vertex; the stream graph becomes the job graph.

Called by `penstock.api.environment` (and by tests); the result is what is submitted and persisted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from penstock.graph.fingerprint import fingerprint
from penstock.graph.job_graph import Forward, JobEdge, JobGraph, JobVertex
from penstock.graph.regions import connected
from penstock.graph.stream_graph import StreamEdge, StreamGraph, StreamNode
from penstock.graph.validate import validate

#: Slot sharing group of a job's first region; further regions are `region-2`, `region-3`...
DEFAULT_GROUP = "default"


def build_job_graph(graph: StreamGraph, *, complete: bool = True) -> JobGraph:
    """Validate the stream graph and fuse it into chains; without `complete`, sinks may be missing (for display only).

    Raises:
        GraphError: the graph cannot run; the message names the operator and a solution.
    """
    validate(graph, complete=complete)
    groups = slot_sharing_groups(graph)
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
            schema=_as_sent(edge.schema),
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


def _as_sent(schema: str) -> str:
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
    """Return node id -> slot sharing group: as written, else the inputs' common one, else the region's own."""
    regions = connected([n.id for n in graph.nodes], [(e.source, e.target) for e in graph.edges])
    own = {
        node: DEFAULT_GROUP if index == 0 else f"region-{index + 1}"
        for index, region in enumerate(regions)
        for node in region
    }
    groups: dict[int, str] = {}
    for node in graph.nodes:
        inherited = {groups[e.source] for e in graph.in_edges(node.id)}
        groups[node.id] = node.slot_sharing_group or (inherited.pop() if len(inherited) == 1 else own[node.id])
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
