"""A job as stages of a batch: the inputs and results of their tasks, and the form of rows between stages.

A row has its position and, in a separate struct, the columns of its edge: Spark can sort rows of any job. Pure;
used by driver and tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.connector.source import HistorySplit, SourceSpec, SourceSplit
from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN
from penstock.core.errors import UsageError
from penstock.core.keygroup import ALL_HASHES, HashRange, hash_range_of
from penstock.core.schema import schema_from_text
from penstock.core.snapshot import OperatorStateSnapshot, SubtaskSnapshot
from penstock.graph.job_graph import JobEdge, JobGraph, JobVertex

#: Kinds that keep the rows of a batch in order and have no state: their input may be read in parts.
_STATELESS = frozenset({"project", "key_selector", "constant_key", "map", "flat_map", "filter_rows", "sink"})


class SourceTask(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one task of a source: a split from its position to an end."""

    split: SourceSplit
    #: Index of the source's split, and whether the split has no rows.
    number: int
    empty: bool = False
    #: The source that reads it, if not the job's own.
    source: SourceSpec | None = None
    #: Whether its rows do not affect event time: their split is not known.
    quiet: bool = False


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One vertex of the job: the description that all its tasks share."""

    job_name: str
    run_id: str
    vertex: JobVertex
    #: Number of subtasks: key ranges, or for a source its parts.
    parts: int
    key_groups: int
    #: Edges that end here in the order of inputs, those that begin here, and the number of parts of each of these.
    inputs: tuple[JobEdge, ...]
    outputs: tuple[JobEdge, ...]
    #: For each input the index of its edge among the outputs of the vertex that feeds it.
    places: tuple[int, ...]
    targets: tuple[int, ...]
    #: Settings as JSON: `config.settings.JobSettings`.
    settings: bytes
    #: The store for the files.
    target_uri: str
    #: The final event time.
    watermark: int = MIN_TIMESTAMP
    pieces: tuple[SourceTask, ...] = ()
    accepted: tuple[str, ...] = ()
    memory_bytes: int = 1 << 30
    #: The layout of combined rows on each output and on each input (`combining.layout_of`); empty if there are none.
    combined: tuple[bytes, ...] = ()
    combined_inputs: tuple[bytes, ...] = ()
    python_path: tuple[str, ...] = ()

    def hashes(self, part: int) -> HashRange:
        """Return the key hashes of one part."""
        return ALL_HASHES if self.vertex.is_source else hash_range_of(part, self.parts, self.key_groups)


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one task: its part of the savepoint, and the event time after it."""

    vertex_id: str
    part: int
    snapshot: SubtaskSnapshot
    watermark: int
    rows_in: int
    #: Rows that operators dropped as late.
    late: int = 0
    #: Whether it does not affect event time.
    quiet: bool = False


def parts_of(vertex: JobVertex, parts: int, key_groups: int) -> int:
    """Return the number of parts of a vertex after a shuffle; a vertex with parallelism 1 keeps it."""
    keyed = any(operator.keyed for operator in vertex.operators)
    return min(parts, key_groups) if keyed or vertex.parallelism > 1 else 1


def is_splittable(vertex: JobVertex) -> bool:
    """Return whether several tasks may read the rows of one split: watermarks then depend on each part alone."""
    source, *behind = vertex.operators
    kind = (source.config.get("watermarks") or {"kind": "none"})["kind"]
    return kind in ("bounded", "none", "unmarked") and all(operator.kind in _STATELESS for operator in behind)


def source_tasks(history: Sequence[HistorySplit]) -> tuple[SourceTask, ...]:
    """Return the parts of all splits in the order of splits."""
    return tuple(
        SourceTask(split=piece, number=number, empty=piece.finished)
        for number, split in enumerate(history)
        for piece in split.pieces
    )


def places_of(graph: JobGraph, inputs: Iterable[JobEdge]) -> tuple[int, ...]:
    """Return `Stage.places` of edges that end at one vertex."""
    return tuple(graph.out_edges(edge.source).index(edge) for edge in inputs)


def watermark_after(results: Iterable[TaskResult], *, quiet_are_idle: bool) -> int:
    """Return the event time after a stage: that of its slowest part.

    `quiet_are_idle`: a part without rows does not hold back event time, like a split with an idle time-out.
    """
    heard_of = [r.watermark for r in results if not r.quiet]
    known = [mark for mark in heard_of if not (quiet_are_idle and mark == MIN_TIMESTAMP)]
    return min(known, default=MIN_TIMESTAMP)


def with_event_time(stage: Stage, results: Sequence[TaskResult]) -> list[TaskResult]:
    """Return the results of tasks without those that assign event time and had no row.

    Live, each subtask there has rows: their number follows from the input instead of `--parts`. Parts without rows
    would hold back event time forever.
    """
    uids = {operator.uid for operator in stage.vertex.operators if operator.kind == "assign_watermarks"}
    return [r if r.rows_in or not uids else _without_event_time(r, uids) for r in results]


def _without_event_time(result: TaskResult, uids: set[str]) -> TaskResult:
    left = tuple(state for state in result.snapshot.operator if state.uid not in uids)
    snapshot = msgspec.structs.replace(result.snapshot, operator=left)
    return msgspec.structs.replace(result, snapshot=snapshot, watermark=MIN_TIMESTAMP, quiet=True)


def source_snapshots(
    stage: Stage, history: Sequence[HistorySplit], results: Sequence[TaskResult], *, quiet_are_idle: bool
) -> list[SubtaskSnapshot]:
    """Return one subtask per split, where the live job continues, with the combined state of its parts."""
    found = []
    uid = stage.vertex.operators[0].uid
    for number, split in enumerate(history):
        own = [r for r in results if stage.pieces[r.part].number == number]
        watermark = max((r.watermark for r in own if not r.quiet), default=MIN_TIMESTAMP)
        rest = msgspec.structs.replace(split.rest, watermark=None if watermark == MIN_TIMESTAMP else watermark)
        states = [
            OperatorStateSnapshot(uid=uid, name="splits", mode="split", items=(msgspec.to_builtins(rest),)),
            *_last_states(uid, own),
        ]
        if watermark != MIN_TIMESTAMP or not quiet_are_idle:
            states.append(OperatorStateSnapshot(uid=uid, name="watermark", mode="union", items=(watermark,)))
        outputs = tuple(c for r in own for c in r.snapshot.committables)
        part = SubtaskSnapshot(vertex_id=stage.vertex.id, subtask=number, operator=tuple(states), committables=outputs)
        found.append(part)
    return found


def _last_states(uid: str, own: Sequence[TaskResult]) -> list[OperatorStateSnapshot]:
    """Return the state of operators chained to the source, in which case there is one part."""
    return [state for r in own[-1:] for state in r.snapshot.operator if state.uid != uid]


PART, TIME, EDGE, ORIGIN, SEQ, RESULT = "__part", "__time", "__edge", "__origin", "__seq", "__result"
#: Sort order of rows within a task: the canonical order, with ties decided by the origin of a row.
ORDER = (PART, TIME, EDGE, ORIGIN, SEQ)
_PLACE = [
    pa.field(PART, pa.int32()),
    pa.field(TIME, pa.int64()),
    pa.field(EDGE, pa.int32()),
    pa.field(ORIGIN, pa.int64()),
    pa.field(SEQ, pa.int64()),
]
#: Value of `__edge` in result rows and in rows that only make a part run.
NO_EDGE = -1
#: Added to the number of an edge in `__edge` if its rows are combined.
COMBINED = 1 << 16


def output_schema(stage: Stage) -> pa.Schema:
    """Return the output columns of a stage's tasks."""
    return _schema("e", [edge.schema for edge in stage.outputs], stage.combined)


def input_schema(stage: Stage) -> pa.Schema:
    """Return the input columns of a stage's tasks, sorted by `ORDER`."""
    return _schema("i", [edge.schema for edge in stage.inputs], stage.combined_inputs)


def _schema(prefix: str, texts: Sequence[str], combined: Sequence[bytes]) -> pa.Schema:
    structs = [pa.field(f"{prefix}{i}", wire_type(schema_from_text(text))) for i, text in enumerate(texts)]
    structs += [pa.field(f"c{i}", wire_type(combined_layout(data))) for i, data in enumerate(combined) if data]
    return pa.schema([*_PLACE, *structs, pa.field(RESULT, pa.binary())])


def combined_layout(data: bytes) -> pa.Schema:
    """Return the columns of combined rows."""
    return pa.ipc.read_schema(pa.py_buffer(data))


def wire_type(schema: pa.Schema) -> pa.DataType:
    """Return an edge's columns as a struct.

    Raises:
        UsageError: a column's type cannot be sent between stages.
    """
    return pa.struct([pa.field(field.name, _carried(field.name, field.type)) for field in schema])


def _carried(name: str, kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(kind) or types.is_time64(kind) or types.is_duration(kind) or types.is_date64(kind):
        return pa.int64()
    if types.is_unsigned_integer(kind):
        return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]
    if types.is_large_string(kind) or types.is_string(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    plain = types.is_boolean(kind) or types.is_signed_integer(kind) or types.is_date32(kind)
    if plain or types.is_float32(kind) or types.is_float64(kind) or types.is_decimal128(kind):
        return kind
    if (types.is_list(kind) or types.is_large_list(kind)) and _carried(name, kind.value_type) == kind.value_type:
        return pa.list_(kind.value_type)
    if types.is_struct(kind) and all(_carried(name, f.type) == f.type for f in kind):
        return kind
    msg = f"column {name!r} of type {kind} cannot be sent between the stages of a backfill"
    raise UsageError(msg, hint="cast it to a plain type before the shuffle")


def _to_wire(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if kind.id in (pa.int8().id, pa.int16().id, pa.int32().id, pa.int64().id) and not pa.types.is_signed_integer(
        array.type
    ):
        return array.view(kind)
    return array.cast(kind)


def _from_wire(array: pa.Array, field: pa.Field) -> pa.Array:
    kind = field.type
    if array.type == kind:
        return array
    if pa.types.is_signed_integer(array.type) and not pa.types.is_signed_integer(kind):
        return array.view(kind)
    return array.cast(kind)


class Outbox:
    """The output rows of one task: collected by edge, returned as batches of the stage's columns."""

    def __init__(self, stage: Stage, origin: int) -> None:
        """Collect rows of task `origin`, whose number decides ties between rows of one time."""
        self._schema = output_schema(stage)
        self._first = len(_PLACE)
        self._origin = origin
        self._seq = 0
        self._ready: list[pa.RecordBatch] = []

    def add(self, edge: int, batch: pa.RecordBatch, parts: np.ndarray[Any, Any], *, combined: bool = False) -> None:
        """Add rows of one edge, each with its target part in the next stage; the time of a combined row is its pane."""
        count = batch.num_rows
        index = batch.schema.get_field_index(TS_COLUMN)
        times = batch.column(index).to_numpy() if index >= 0 else np.full(count, MIN_TIMESTAMP)
        position = self._schema.get_field_index(f"{'c' if combined else 'e'}{edge}")
        kind = self._schema.field(position).type
        columns = [_to_wire(batch.column(field.name), field.type) for field in kind]
        struct = pa.StructArray.from_arrays(columns, fields=list(kind))
        place = [
            pa.array(parts.astype(np.int32)),
            pa.array(times),
            pa.array(np.full(count, edge + (COMBINED if combined else 0), np.int32)),
            pa.array(np.full(count, self._origin, np.int64)),
            pa.array(np.arange(self._seq, self._seq + count)),
        ]
        self._seq += count
        self._ready.append(self._batch(place, {position: struct}, count))

    def result(self, data: bytes) -> None:
        """Add the result of the task."""
        place = [pa.array([value], field.type) for value, field in zip((0, 0, NO_EDGE, 0, 0), _PLACE, strict=True)]
        self._ready.append(self._batch(place, {len(self._schema) - 1: pa.array([data], pa.binary())}, 1))

    def take(self) -> list[pa.RecordBatch]:
        """Return the collected rows."""
        ready, self._ready = self._ready, []
        return ready

    def _batch(self, place: list[pa.Array], filled: dict[int, pa.Array], count: int) -> pa.RecordBatch:
        rest = [
            filled[position] if position in filled else pa.nulls(count, self._schema.field(position).type)
            for position in range(self._first, len(self._schema))
        ]
        return pa.RecordBatch.from_arrays([*place, *rest], schema=self._schema)


def column_of(prefix: str, number: int) -> str:
    """Return the column of an edge's rows: `prefix` is `i` for inputs and `e` for outputs."""
    return f"c{number - COMBINED}" if number >= COMBINED else f"{prefix}{number}"


def rows_of(batch: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of one edge (its value of `__edge`) of a batch with rows of that edge only."""
    names = batch.schema.names
    struct = batch.column(next(name for name in (column_of("i", number), column_of("e", number)) if name in names))
    arrays = [_from_wire(array, field) for array, field in zip(struct.flatten(), schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def runs(values: np.ndarray[Any, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield (value, start, stop) of each run of equal values."""
    if not len(values):
        return
    bounds = np.flatnonzero(np.diff(values)) + 1
    starts = [0, *bounds.tolist()]
    for start, stop in zip(starts, [*starts[1:], len(values)], strict=True):
        yield int(values[start]), start, stop


def part_markers(stage: Stage) -> pa.RecordBatch:
    """Return a row for each part of a stage, so that parts without input rows run too."""
    schema, count = input_schema(stage), stage.parts
    place = [
        pa.array(np.arange(count, dtype=np.int32)),
        pa.array(np.full(count, MIN_TIMESTAMP)),
        pa.array(np.full(count, NO_EDGE, np.int32)),
        pa.array(np.zeros(count, np.int64)),
        pa.array(np.zeros(count, np.int64)),
    ]
    rest = [pa.nulls(count, field.type) for field in list(schema)[len(_PLACE) :]]
    return pa.RecordBatch.from_arrays([*place, *rest], schema=schema)
