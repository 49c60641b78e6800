"""The keyed states that a job's operators declare, with their columns: each operator is opened without state or rows.

Called by clients before a job starts from a savepoint, and by `penstock check`; the JobManager compares the result with
the snapshot. User functions are loaded, but their `open` is not called.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.clock import SystemClock
from penstock.core.keygroup import ALL_HASHES
from penstock.core.schema import schema_from_text, schema_to_text
from penstock.graph.job_graph import JobGraph, JobVertex, OperatorSpec
from penstock.operators.operator import OperatorContext, OperatorMetrics
from penstock.operators.registry import create_operator
from penstock.state.memory.budget import MemoryBudget
from penstock.state.state_backend import KeyedStateRequest
from penstock.state.store import KeyedState

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.config.settings import JobSettings

_MEMORY_BYTES = 1 << 30


class _Declared(Exception):  # noqa: N818 - no error: all states are declared
    """Raised when all states are known, to stop the operator's opening."""


class _NoState(KeyedState):
    """A state of an operator that is opened only to declare it."""

    def check_all_declared(self) -> None:
        raise _Declared


def with_states(graph: JobGraph) -> JobGraph:
    """Return the graph with `OperatorSpec.states` of every operator that keeps keyed state.

    Raises:
        GraphError: an operator's configuration does not fit its input.
    """
    return msgspec.structs.replace(graph, vertices=tuple(_vertex(graph, vertex) for vertex in graph.vertices))


def _vertex(graph: JobGraph, vertex: JobVertex) -> JobVertex:
    by_input = {edge.input_index: edge.schema for edge in graph.in_edges(vertex.id)}
    schemas = tuple(schema_from_text(text) for _, text in sorted(by_input.items()) if text)
    operators = []
    for operator in vertex.operators:
        states = declared_states(operator, schemas, graph.settings) if operator.keyed else {}
        texts = {name: schema_to_text(schema) for name, schema in states.items()}
        operators.append(msgspec.structs.replace(operator, states=texts))
        schemas = (schema_from_text(operator.output_schema),) if operator.output_schema else ()
    return msgspec.structs.replace(vertex, operators=tuple(operators))


def declared_states(
    operator: OperatorSpec, input_schemas: tuple[pa.Schema, ...], settings: JobSettings
) -> dict[str, pa.Schema]:
    """Return the states one keyed operator declares: name -> columns of its files."""
    settings = msgspec.structs.replace(settings, state_backend="hashmap")
    with tempfile.TemporaryDirectory(prefix="penstock-check-") as folder:
        state = _NoState(
            KeyedStateRequest(
                uid=operator.uid,
                snapshots=(),
                hash_range=ALL_HASHES,
                settings=settings,
                read=_nothing,
                directory=Path(folder),
                writer="check",
                budget=MemoryBudget(_MEMORY_BYTES),
            )
        )
        made = create_operator(operator.kind)
        try:
            made.open(_context(operator, input_schemas, settings, state))
        except _Declared:
            pass
        else:
            made.close()
        found = state.declared()
        state.close()
    return found


def _context(
    operator: OperatorSpec, input_schemas: tuple[pa.Schema, ...], settings: JobSettings, state: KeyedState
) -> OperatorContext:
    return OperatorContext(
        spec=operator,
        job_id="",
        job_name="",
        run_id="",
        generation=0,
        subtask=0,
        attempt=0,
        parallelism=1,
        hash_range=ALL_HASHES,
        settings=settings,
        clock=SystemClock(),
        metrics=OperatorMetrics(),
        input_schemas=input_schemas,
        keyed_state=state,
        restored=(),
        wake=_nothing,
        run_async=_nothing,
        run_waiting=_nothing,
        report_published=_nothing,
        read_file=_nothing,
    )


def _nothing(*_arguments: Any) -> Any:
    """Replace functions that are never called while an operator opens."""
    raise NotImplementedError
