"""Arrow helpers that the operators share: conversion to a declared schema, separation of event time and rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.core.elements import TS_COLUMN
from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The field `__ts` of each schema with event time.
TS_FIELD = pa.field(TS_COLUMN, pa.int64(), nullable=False)


class ColumnError(PenstockError):
    """A column does not fit the schema that was declared for it."""

    def __init__(self, message: str, *, hint: str = "", values: str = "", index: int | None = None) -> None:
        """`index`: that of the wrong value among those of the column, if one alone is wrong."""
        super().__init__(message, hint=hint, values=values)
        self.index = index


def without_ts(schema: pa.Schema) -> pa.Schema:
    """Return the schema without `__ts`."""
    index = schema.get_field_index(TS_COLUMN)
    return schema if index < 0 else schema.remove(index)


def with_ts(schema: pa.Schema) -> pa.Schema:
    """Return the schema with `__ts` as its last field."""
    return without_ts(schema).append(TS_FIELD)


def visible(schema: pa.Schema, computed: Sequence[str]) -> pa.Schema:
    """Return the schema without the columns of a computed key, which rows carry but functions do not see."""
    return pa.schema([field for field in schema if field.name not in computed]) if computed else schema


def ts_of(batch: pa.RecordBatch) -> pa.Array | None:
    """Return the event times of a batch, or None when it has none."""
    index = batch.schema.get_field_index(TS_COLUMN)
    return None if index < 0 else batch.column(index)


def conform(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Return the columns of `schema`, in its order and types; without a copy if the batch already has exactly these.

    Raises:
        ColumnError: a column is missing, cannot be cast without loss, or holds null where none is allowed.
    """
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            msg = f"{where}: column {field.name!r} is missing"
            raise ColumnError(msg, hint=f"there are: {', '.join(batch.schema.names)}")
        arrays.append(conform_array(batch.column(index), field, where))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def conform_array(array: pa.Array, field: pa.Field, where: str) -> pa.Array:
    """Return the array in the field's type, checked for nulls. Raises ColumnError."""
    if array.type != field.type:
        try:
            array = array.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            msg = f"{where}: column {field.name!r} is {array.type} and does not fit {field.type}: {error}"
            raise ColumnError(msg, hint="correct the declared output type or cast in the expression") from error
    if not field.nullable and array.null_count:
        msg = f"{where}: column {field.name!r} must not be null, but {array.null_count} of {len(array)} rows are"
        raise ColumnError(msg, hint="declare the field as `T | None` or drop those rows before")
    return array


def assemble(columns: Sequence[pa.Array], schema: pa.Schema, ts: pa.Array | None) -> pa.RecordBatch:
    """Return a batch of `columns` under `schema` (without `__ts`), with event time appended when there is one."""
    if ts is None:
        return pa.RecordBatch.from_arrays(list(columns), schema=schema)
    return pa.RecordBatch.from_arrays([*columns, ts], schema=with_ts(schema))
