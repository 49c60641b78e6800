"""The job graph: chains of operators and the edges between them.

A client submits it and the JobManager persists it. Made by `penstock.graph.chaining` from the stream graph; read by the
planner (`execution_graph`) and by restore checks. The JobManager does not read `config` and `payload`: they belong to
the operators.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.config.settings import JobSettings


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


#: Kinds of operators that have no output.
ENDS = frozenset({"sink", "collect", "print"})
#: Kinds without keyed state.
_UNKEYED_KINDS = frozenset({"source", "sink", "window_top", "map_async", "plain_process", "assign_watermarks"})


class OperatorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One operator as a value: `kind` names it in `penstock.operators.registry`."""

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
    def keyed(self) -> bool:
        """Return whether it keeps keyed state and so takes a share of the slot's managed memory."""
        return self.stateful and self.kind not in _UNKEYED_KINDS


class JobVertex(msgspec.Struct, frozen=True, kw_only=True):
    """A chain of operators that runs as one task, `parallelism` times."""

    #: 32 hex digits, derived from the head operator's uid.
    id: str
    name: str
    operators: tuple[OperatorSpec, ...]
    parallelism: int
    slot_sharing_group: str = "default"

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

    def vertex(self, vertex_id: str) -> JobVertex:
        """Return the vertex of that id."""
        return next(v for v in self.vertices if v.id == vertex_id)

    def in_edges(self, vertex_id: str) -> tuple[JobEdge, ...]:
        """Return the edges that end at the vertex, in input order."""
        return tuple(sorted((e for e in self.edges if e.target == vertex_id), key=lambda e: e.input_index))

    def out_edges(self, vertex_id: str) -> tuple[JobEdge, ...]:
        """Return the edges that begin at the vertex."""
        return tuple(e for e in self.edges if e.source == vertex_id)


def encode_graph(graph: JobGraph) -> bytes:
    """Return the graph as JSON."""
    return msgspec.json.encode(graph)


def decode_graph(data: bytes) -> JobGraph:
    """Invert `encode_graph`; unpickles nothing."""
    return msgspec.json.decode(data, type=JobGraph)
