"""Rows as items of an operator state: each a list of JSON values, in the order of the schema's columns.

Numbers, booleans and strings are stored as they are; a time as its number of units, a date as its number of days, a
decimal as its digits, bytes as base64, and a float that JSON does not support (NaN, infinities) as a string. Used by
`operators.process.operator_state_binding`.
"""

from __future__ import annotations

import base64
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

if TYPE_CHECKING:
    from collections.abc import Sequence


def to_items(arrays: Sequence[pa.Array], schema: pa.Schema) -> tuple[list[Any], ...]:
    """Convert columns to items."""
    columns = [_plain(array.cast(field.type)) for array, field in zip(arrays, schema, strict=True)]
    return tuple(list(row) for row in zip(*columns, strict=True))


def from_items(items: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Convert items to a table of the schema they were saved with."""
    columns = [_array([item[place] for item in items], field.type) for place, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _plain(array: pa.Array) -> list[Any]:
    kind = array.type
    if _counted(kind):
        values: list[Any] = array.cast(pa.int32() if pt.is_date32(kind) else pa.int64()).to_pylist()
        return values
    values = array.to_pylist()
    if pt.is_floating(kind):
        return [value if value is None or math.isfinite(value) else str(value) for value in values]
    if pt.is_decimal(kind):
        return [None if value is None else str(value) for value in values]
    if pt.is_binary(kind):
        return [None if value is None else base64.b64encode(value).decode() for value in values]
    return values


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if _counted(kind):
        return pa.array(values, pa.int32() if pt.is_date32(kind) else pa.int64()).cast(kind)
    if pt.is_floating(kind):
        values = [None if value is None else float(value) for value in values]
    elif pt.is_decimal(kind):
        values = [None if value is None else Decimal(value) for value in values]
    elif pt.is_binary(kind):
        values = [None if value is None else base64.b64decode(value) for value in values]
    return pa.array(values, kind)


def _counted(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) or pt.is_date32(kind))
