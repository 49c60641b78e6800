"""The engine interface, which runs the stages of a backfill, and the engine in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from penstock.backfill.stages import (
    COMBINED,
    EDGE,
    NO_EDGE,
    ORDER,
    RESULT,
    Stage,
    TaskResult,
    column_of,
    input_schema,
    part_markers,
)
from penstock.backfill.task import run_parts, run_source

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Called with the number of finished tasks and of all tasks.
Progress = Callable[[Stage, int, int], None]
_BATCH_ROWS = 32_768


class Engine(Protocol):
    """Runs one stage after the other; it keeps the output of a stage until it is closed."""

    def run(self, stage: Stage, progress: Progress) -> list[TaskResult]:
        """Run all tasks of a stage whose inputs have run; return their results by part.

        Raises:
            PenstockError: a task failed.
        """

    def close(self) -> None:
        """Free the output of stages."""


class LocalEngine:
    """Runs one task after the other in this process, with rows between stages in memory.

    For small histories and tests.
    """

    def __init__(self, batch_rows: int = _BATCH_ROWS) -> None:
        """Start without output; a task of a stage with inputs receives `batch_rows` at a time."""
        self._batch_rows = batch_rows
        self._given: dict[tuple[str, int], list[pa.RecordBatch]] = {}

    def run(self, stage: Stage, progress: Progress) -> list[TaskResult]:
        """Run all tasks of a stage; see `Engine`."""
        results: list[TaskResult] = []
        tasks: Sequence[Iterable[pa.RecordBatch]]
        if stage.vertex.is_source:
            tasks = [run_source(stage, number) for number in range(stage.parts)]
        else:
            tasks = [run_parts(stage, self._input(stage))]
        for done, task in enumerate(tasks, 1):
            for batch in task:
                results += self._keep(stage, batch)
            progress(stage, done, len(tasks))
        return sorted(results, key=lambda result: result.part)

    def close(self) -> None:
        """Drop all rows."""
        self._given.clear()

    def _keep(self, stage: Stage, batch: pa.RecordBatch) -> list[TaskResult]:
        edges = batch.column(EDGE).to_numpy()
        if edges[0] == NO_EDGE:
            return [msgspec.msgpack.decode(data, type=TaskResult) for data in batch.column(RESULT).to_pylist()]
        self._given.setdefault((stage.vertex.id, int(edges[0])), []).append(batch)
        return []

    def _input(self, stage: Stage) -> Iterator[pa.RecordBatch]:
        schema = input_schema(stage)
        batches = [part_markers(stage)]
        for number, (vertex_id, index) in enumerate(feeds(stage)):
            for more in (0, COMBINED):
                given = self._given.get((vertex_id, index + more), ())
                batches += [as_input(batch, index + more, number + more, schema) for batch in given]
        table = pa.Table.from_batches(batches, schema=schema)
        keys = [table.column(name).to_numpy() for name in reversed(ORDER)]
        ordered = table.take(pa.array(np.lexsort(keys))).combine_chunks()
        return iter(ordered.to_batches(max_chunksize=self._batch_rows))


def feeds(stage: Stage) -> list[tuple[str, int]]:
    """Return for each input of a stage the vertex that feeds it and the edge's index among that vertex's outputs."""
    return [(edge.source, place) for edge, place in zip(stage.inputs, stage.places, strict=True)]


def as_input(batch: pa.RecordBatch, index: int, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of an output of a stage as rows of an input of the next one; both by their value of `__edge`."""
    count = batch.num_rows
    target, source = column_of("i", number), column_of("e", index)
    columns = []
    for field in schema:
        if field.name == EDGE:
            columns.append(pa.array(np.full(count, number, np.int32)))
        elif field.name == target:
            columns.append(batch.column(source))
        elif field.name in batch.schema.names and field.name in ORDER:
            columns.append(batch.column(field.name))
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
