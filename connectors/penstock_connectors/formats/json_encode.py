"""Rows to JSON, one text a row, in the schema's field order.

Times become ISO 8601 in UTC, dates `YYYY-MM-DD`, decimals texts, bytes base64; NaN and the infinities become null
because JSON has no word for them. Nulls are written as null. Called by the sink's publisher; Polars does the work and
is loaded with the first row, not by who only builds a job.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import polars as pl


def encode_json(rows: pa.RecordBatch) -> pa.Array:
    """Return one JSON object a row, as large strings."""
    import polars as pl

    if rows.num_columns == 0:
        return pa.array(["{}"] * rows.num_rows, type=pa.large_string())
    columns: dict[str, pl.Series] = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        columns[field.name] = _series(column)
    text = pl.DataFrame(columns).select(pl.struct(pl.all()).struct.json_encode()).to_series()
    encoded = text.to_arrow()
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded.cast(pa.large_string())


def _series(column: pa.Array) -> pl.Series:
    import polars as pl

    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None and kind.tz != "UTC":
        column = column.cast(pa.timestamp(kind.unit, tz="UTC"))
    elif pa.types.is_timestamp(kind) and kind.tz is None:
        column = column.cast(pa.int64()).cast(pa.timestamp(kind.unit, tz="UTC"))
    elif _has_binary(kind):
        column = pa.array([_texts(value) for value in column.to_pylist()], type=_text_type(kind))
    series = pl.from_arrow(column)
    if not isinstance(series, pl.Series):
        msg = f"a column of type {kind} became {type(series).__name__}"
        raise TypeError(msg)
    return series


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _has_binary(kind: pa.DataType) -> bool:
    return _is_binary(kind) or any(_has_binary(kind.field(i).type) for i in range(kind.num_fields))


def _text_type(kind: pa.DataType) -> pa.DataType:
    if _is_binary(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_text_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(i).name, _text_type(kind.field(i).type)) for i in range(kind.num_fields)])
    return kind


def _texts(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [_texts(item) for item in value]
    if isinstance(value, dict):
        return {name: _texts(item) for name, item in value.items()}
    return value
