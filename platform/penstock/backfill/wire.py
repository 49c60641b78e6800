"""Rows between the stages of a backfill: one batch form that Spark can sort, for any columns of a job.

A row has its position (`__part`, `__time`, `__origin`, `__seq`) and, in a separate struct, the columns of its edge. The
result of a task travels as one more row (`__result`). Times and unsigned numbers go as integers with the same bits,
since Spark would change their zone or has no such type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.core.elements import MIN_TIMESTAMP, TS_COLUMN
from penstock.core.errors import UsageError
from penstock.core.schema import schema_from_text

if TYPE_CHECKING:
    from penstock.backfill.stages import Stage

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


def output_schema(stage: Stage) -> pa.Schema:
    """Return the output columns of a stage's tasks."""
    return _schema("e", [edge.schema for edge in stage.outputs])


def input_schema(stage: Stage) -> pa.Schema:
    """Return the input columns of a stage's tasks, sorted by `ORDER`."""
    return _schema("i", [edge.schema for edge in stage.inputs])


def _schema(prefix: str, texts: Sequence[str]) -> pa.Schema:
    structs = [pa.field(f"{prefix}{i}", wire_type(schema_from_text(text))) for i, text in enumerate(texts)]
    return pa.schema([*_PLACE, *structs, pa.field(RESULT, pa.binary())])


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
    if types.is_large_binary(kind) or types.is_binary(kind):
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

    def add(self, edge: int, batch: pa.RecordBatch, parts: np.ndarray[Any, Any]) -> None:
        """Add rows of one edge, each with its target part in the next stage."""
        count = batch.num_rows
        index = batch.schema.get_field_index(TS_COLUMN)
        times = batch.column(index).to_numpy() if index >= 0 else np.full(count, MIN_TIMESTAMP)
        kind = self._schema.field(self._first + edge).type
        columns = [_to_wire(batch.column(field.name), field.type) for field in kind]
        struct = pa.StructArray.from_arrays(columns, fields=list(kind))
        place = [
            pa.array(parts.astype(np.int32)),
            pa.array(times),
            pa.array(np.full(count, edge, np.int32)),
            pa.array(np.full(count, self._origin, np.int64)),
            pa.array(np.arange(self._seq, self._seq + count)),
        ]
        self._seq += count
        self._ready.append(self._batch(place, {self._first + edge: struct}, count))

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


def rows_of(batch: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of input `number` of a batch with rows of that input only."""
    struct = batch.column(len(_PLACE) + number)
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


def nudges(stage: Stage) -> pa.RecordBatch:
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
