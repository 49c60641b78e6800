"""Rows to JSON, one text per row, in the schema's field order.

Times become ISO 8601 in UTC, dates `YYYY-MM-DD`, decimals texts, bytes base64. NaN and the infinities become null, as
JSON cannot express them. Nulls are written as null. Called by the sinks' publishers. A compiled pass writes integers,
times of the years 1 to 9999, booleans and strings; Polars, loaded on demand, writes all other columns.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock_connectors.formats.json_layout import (
    BOOLEAN,
    ESCAPED_BYTES,
    INTEGER,
    INTEGER_BYTES,
    JSON,
    LITERAL_BYTES,
    TEXT,
    TIMESTAMP,
    TIMESTAMP_BYTES,
)
from penstock_connectors.formats.timestamps import MAX_MICROS, MIN_MICROS

if TYPE_CHECKING:
    import polars as pl

#: Polars writes a column as rows of one field without a name: this much precedes and follows the value.
_FRAME = (len('{"":'), len("}"))


class _Column(NamedTuple):
    """A column in the form of the compiled pass; keeps the memory of its addresses alive."""

    kind: int
    values: pa.Array
    address: int
    offsets: int
    #: Bytes of the texts, 0 for other kinds.
    size: int


def encode_json(rows: pa.RecordBatch) -> pa.Array:
    """Return one JSON object per row, as large strings."""
    from penstock_connectors.formats.json_writer import write  # not loaded by processes that only build a job

    count = rows.num_rows
    if rows.num_columns == 0:
        return pa.array(["{}"] * count, type=pa.large_string())
    columns = [_column(column) for column in rows.columns]
    names = [_before(name, first=i == 0) for i, name in enumerate(rows.schema.names)]
    layout, room = [len(columns), count], 1
    prefixes = np.frombuffer(b"".join(names), np.uint8)
    at = prefixes.ctypes.data
    for column, name in zip(columns, names, strict=True):
        bits = column.values.buffers()[0] if column.values.null_count else None
        validity = (0, 0) if bits is None else (bits.address, column.values.offset)
        frame = _FRAME[0] << 8 | _FRAME[1] if column.kind == JSON else 0
        layout += [column.kind, at, len(name), column.address, column.offsets, *validity, frame, 0, 0, 0]
        at += len(name)
        room += len(name) + _most(column.kind)
    texts = sum(c.size * (ESCAPED_BYTES if c.kind == TEXT else 1) for c in columns)
    # untouched beyond the written part, so the bound may be generous
    data, offsets = np.empty(max(1, count * room + texts), np.uint8), np.empty(count + 1, np.int64)
    words = np.asarray(layout, np.int64)
    used = write(words.ctypes.data, offsets.ctypes.data, data.ctypes.data)
    return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data[:used]))


def encode_by_polars(rows: pa.RecordBatch) -> pa.Array:
    """Return the same, written by Polars only."""
    import polars as pl

    columns = {field.name: _series(column) for field, column in zip(rows.schema, rows.columns, strict=True)}
    text = pl.DataFrame(columns).select(pl.struct(pl.all()).struct.json_encode()).to_series()
    encoded = text.to_arrow()
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded.cast(pa.large_string())


def warm() -> None:
    """Run the compiled pass once, so that a job never loads or compiles code."""
    encode_json(pa.record_batch([pa.array([1, None]), pa.array(["a", "b"])], ["i", "t"]))


def _before(name: str, *, first: bool) -> bytes:
    return f"{'{' if first else ','}{json.dumps(name, ensure_ascii=False)}:".encode()


def _most(kind: int) -> int:
    """Return the most bytes of a value, apart from text."""
    return {INTEGER: INTEGER_BYTES, TIMESTAMP: TIMESTAMP_BYTES}.get(kind, LITERAL_BYTES)


def _column(column: pa.Array) -> _Column:
    kind = column.type
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return _words(INTEGER, column if kind == pa.int64() else column.cast(pa.int64()))
    if pa.types.is_boolean(kind):
        return _words(BOOLEAN, column.cast(pa.int64()))
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        micros = column.view(pa.int64())
        bounds = pc.min_max(micros)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if low is None or (low >= MIN_MICROS and high <= MAX_MICROS):
            return _words(TIMESTAMP, micros)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _texts_of(TEXT, column.cast(pa.large_string()))
    # nulls are written as text
    return _texts_of(JSON, encode_by_polars(pa.RecordBatch.from_arrays([column], [""])))


def _words(kind: int, column: pa.Array) -> _Column:
    return _Column(kind, column, column.buffers()[1].address + 8 * column.offset, 0, 0)


def _texts_of(kind: int, column: pa.Array) -> _Column:
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    size = int(places[-1] - places[0]) if len(column) else 0
    return _Column(kind, column, data.address if data is not None else 0, offsets.address + 8 * column.offset, size)


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
