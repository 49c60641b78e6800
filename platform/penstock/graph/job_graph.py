"""The job graph: chains of operators and the edges between them, its regions and slots, and its wire form.

A client submits it, the JobManager checks and persists it. `config` and `payload` belong to the operators.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.config.settings import MOST_SUBTASKS, JobSettings
from penstock.core.errors import UsageError
from penstock.core.structs import prepare
from penstock.graph.operator_kinds import properties_of


class Forward(msgspec.Struct, frozen=True, tag="forward"):
    """Subtask i sends to subtask i: same parallelism, one channel."""


class KeyGroup(msgspec.Struct, frozen=True, tag="key_group"):
    """Rows go to the owner of their key's group."""

    columns: tuple[str, ...]


class Rebalance(msgspec.Struct, frozen=True, tag="rebalance"):
    """Batches go round robin."""


class Broadcast(msgspec.Struct, frozen=True, tag="broadcast"):
    """Every row goes to every subtask."""


Partitioner = Forward | KeyGroup | Rebalance | Broadcast


class OperatorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One operator as a value; `graph.operator_kinds` has the properties of its `kind`."""

    uid: str
    name: str
    kind: str
    #: JSON-able configuration, read by the operator's factory.
    config: dict[str, Any] = {}
    #: cloudpickle of user code, unpickled only in a worker; empty for built-in operators.
    payload: bytes = b""
    #: Whether it calls Python functions for rows or batches: such subtasks share a worker's Python thread.
    python: bool = False
    #: Whether the operator keeps state that a restore must find again.
    stateful: bool = False
    #: Keyed states it declares: name -> schema of its files as text; empty if it was not derived
    #: (`snapshots.access.declared`).
    states: dict[str, str] = {}
    #: A user's own non-keyed states: name -> columns as text; for a map, those of its keys and values together.
    operator_states: dict[str, str] = {}
    #: Output schema as text (`core.schema.schema_to_text`), with `__ts` when event time is set; empty for sinks.
    output_schema: str = ""
    #: File and line of the user's call, for error messages.
    where: str = ""

    @property
    def place(self) -> str:
        """Return where a source reads or a sink writes; empty for other operators, or if the connector has no text."""
        spec = self.config.get("source") or self.config.get("sink")
        return str(spec.get("place", "")) if isinstance(spec, dict) else ""

    @property
    def keyed(self) -> bool:
        """Return whether it keeps keyed state and so takes a share of the slot's managed memory."""
        return self.stateful and properties_of(self.kind).keyed


class JobVertex(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of operators that runs as one task, `parallelism` times."""

    #: 32 hex digits, derived from the head operator's uid.
    id: str
    name: str
    operators: tuple[OperatorSpec, ...]
    parallelism: int
    slot_sharing_group: str = "default"
    #: The parallelism that the vertex is to have, if it runs with less because slots are missing; else 0.
    declared: int = 0

    @property
    def wanted(self) -> int:
        """The parallelism that the vertex has when there are slots for it."""
        return self.declared or self.parallelism

    @property
    def is_source(self) -> bool:
        """Return whether the chain begins with a source."""
        return self.operators[0].kind == "source"


class JobEdge(msgspec.Struct, frozen=True, kw_only=True):
    """Data of `source` flows to input `input_index` of `target`."""

    source: str
    target: str
    partitioner: Partitioner
    input_index: int = 0
    #: Schema on the edge as text.
    schema: str
    #: None: the main output; a tag name: that side output of the source vertex's last operator.
    side_output: str | None = None
    #: Configuration of the target if its rows may be combined before they are partitioned; else empty.
    combine: dict[str, Any] = {}


class JobGraph(msgspec.Struct, frozen=True, kw_only=True):
    """The submitted job; vertices are in topological order."""

    name: str
    vertices: tuple[JobVertex, ...]
    edges: tuple[JobEdge, ...]
    settings: JobSettings
    #: Hash of uids, kinds, state schemas and key columns, which must fit a snapshot.
    fingerprint: str = ""
    #: The name in the job file, if the job was submitted under another one.
    file_name: str = ""

    def vertex(self, vertex_id: str) -> JobVertex:
        """Return the vertex of that id."""
        return next(v for v in self.vertices if v.id == vertex_id)

    def stateful_operators(self) -> dict[str, tuple[int, str]]:
        """Return parallelism and vertex id of each operator with state, by uid: `operators` of a manifest."""
        return {o.uid: (v.parallelism, v.id) for v in self.vertices for o in v.operators if o.stateful}

    def in_edges(self, vertex_id: str) -> tuple[JobEdge, ...]:
        """Return the edges that end at the vertex, in input order."""
        return tuple(sorted((e for e in self.edges if e.target == vertex_id), key=lambda e: e.input_index))

    def out_edges(self, vertex_id: str) -> tuple[JobEdge, ...]:
        """Return the edges that begin at the vertex."""
        return tuple(e for e in self.edges if e.source == vertex_id)


prepare(JobGraph)


def encode_graph(graph: JobGraph) -> bytes:
    """Return the graph as JSON."""
    return msgspec.json.encode(graph)


def decode_graph(data: bytes) -> JobGraph:
    """Invert `encode_graph`; unpickles nothing."""
    return msgspec.json.decode(data, type=JobGraph)


Node = TypeVar("Node", bound=Hashable)


class SlotNeed(msgspec.Struct, frozen=True, kw_only=True):
    """One slot: the subtasks (vertex id, subtask index) of one sharing group that run in it together."""

    group: str
    index: int
    subtasks: tuple[tuple[str, int], ...]


def connected_components(nodes: Sequence[Node], edges: Iterable[tuple[Node, Node]]) -> tuple[tuple[Node, ...], ...]:
    """Return the connected parts, each in the order of `nodes`, ordered by their first node."""
    parent = {node: node for node in nodes}

    def root(node: Node) -> Node:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for left, right in edges:
        parent[root(right)] = root(left)
    parts: dict[Node, list[Node]] = {}
    for node in nodes:
        parts.setdefault(root(node), []).append(node)
    return tuple(tuple(part) for part in parts.values())


def regions(graph: JobGraph) -> tuple[tuple[str, ...], ...]:
    """Return the pipelined regions as vertex ids."""
    return connected_components([v.id for v in graph.vertices], [(e.source, e.target) for e in graph.edges])


def slots_of(graph: JobGraph) -> tuple[SlotNeed, ...]:
    """Return the slots the job needs: per group as many as its widest vertex; slot i holds subtask i of each."""
    groups: dict[str, list[list[tuple[str, int]]]] = {}
    for vertex in graph.vertices:
        slots = groups.setdefault(vertex.slot_sharing_group, [])
        for subtask in range(vertex.parallelism):
            if subtask == len(slots):
                slots.append([])
            slots[subtask].append((vertex.id, subtask))
    return tuple(
        SlotNeed(group=group, index=index, subtasks=tuple(subtasks))
        for group, slots in groups.items()
        for index, subtasks in enumerate(slots)
    )


def required_slots(graph: JobGraph) -> int:
    """Return how many slots the job needs: over its sharing groups, the sum of the largest parallelism."""
    widest: dict[str, int] = {}
    for vertex in graph.vertices:
        widest[vertex.slot_sharing_group] = max(widest.get(vertex.slot_sharing_group, 0), vertex.parallelism)
    return sum(widest.values())


def unbounded_sources(graph: JobGraph) -> tuple[str, ...]:
    """Return the names of the unbounded sources; a job without any ends when its input does."""
    heads = (vertex.operators[0] for vertex in graph.vertices if vertex.is_source)
    return tuple(head.name for head in heads if not head.config["source"]["bounded"])


#: Job names and uids are names of folders.
_NAME = re.compile(r"(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]{1,200}")
_VERTEX_ID = re.compile(r"[0-9a-f]{32}")
_HINT = "submit a graph of `penstock run` or env.execute, made by the same version of penstock"


def read_submitted(data: bytes) -> JobGraph:
    """Return the graph in `data`.

    Raises:
        UsageError: it is not a graph, or cannot be a job; names the fault.
    """
    try:
        graph = decode_graph(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"the job graph cannot be read: {error}"
        raise UsageError(msg, hint="client and JobManager must be of the same version") from error
    for fault in _faults(graph):
        msg = f"the job graph is malformed: {fault}"
        raise UsageError(msg, hint=_HINT)
    return graph


def _faults(graph: JobGraph) -> Iterator[str]:
    if not _NAME.fullmatch(graph.name):
        yield f"the job's name {graph.name[:100]!r} cannot be the name of a folder"
    if not graph.vertices:
        yield "it has no vertices"
    ids = [vertex.id for vertex in graph.vertices]
    if len(set(ids)) != len(ids):
        yield "two vertices have the same id"
    if graph.settings.fault:
        yield graph.settings.fault
    for vertex in graph.vertices:
        yield from _faults_of(vertex, graph.settings.key_groups)
    uids = [operator.uid for vertex in graph.vertices for operator in vertex.operators]
    if len(set(uids)) != len(uids):
        yield "two operators have the same uid"
    order = {vertex_id: place for place, vertex_id in enumerate(ids)}
    for edge in graph.edges:
        if edge.source not in order or edge.target not in order:
            yield (
                f"an edge connects {edge.source[:40]!r} and {edge.target[:40]!r}, which are not both "
                "vertices of the graph"
            )
        elif order[edge.source] >= order[edge.target]:
            yield f"the edge from {edge.source} to {edge.target} does not lead to a later vertex"


def _faults_of(vertex: JobVertex, key_groups: int) -> Iterator[str]:
    if not _VERTEX_ID.fullmatch(vertex.id):
        yield f"{vertex.id[:40]!r} is not a vertex id"
    if not vertex.operators:
        yield f"vertex {vertex.id} has no operators"
    if not 1 <= vertex.parallelism <= MOST_SUBTASKS:
        yield f"vertex {vertex.id} has parallelism {vertex.parallelism}"
    if vertex.parallelism > key_groups and any(operator.keyed for operator in vertex.operators):
        yield f"vertex {vertex.id} has more subtasks than there are key groups ({vertex.parallelism}, {key_groups})"
    for operator in vertex.operators:
        for name in (operator.uid, *operator.states, *operator.operator_states):
            if not _NAME.fullmatch(name):
                yield f"{name[:100]!r} cannot be the name of an operator or state"
        for part in ("source", "sink"):
            config = operator.config.get(part, {})
            if operator.kind == part and not (isinstance(config, dict) and isinstance(config.get("factory"), str)):
                yield f"{part} {operator.uid!r} does not name its connector"
