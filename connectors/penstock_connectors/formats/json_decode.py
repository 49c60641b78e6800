"""Batches of JSON payloads to typed columns: a compiled pass for flat schemas, the exact decoder for the rest.

`penstock_connectors.kafka` makes one per reader. `warm()` loads the compiled code and is called while a worker's
template warms up.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyarrow as pa

from penstock_connectors.formats import json_table
from penstock_connectors.formats.decoded import BadPayload, Decoded, RowError
from penstock_connectors.formats.json_kernels import (
    AS_TEXT,
    BOOLEAN,
    FLOAT,
    INTEGER,
    NON_ASCII,
    NULL,
    TEXT,
    TIMESTAMP,
    UNDECIDED,
)
from penstock_connectors.formats.json_rows import JsonRowDecoder
from penstock_connectors.formats.timestamps import MAX_MICROS, MIN_MICROS, TimestampUnit

_INT64_MAX = (1 << 63) - 1
_FACTORS = {"auto": 0, "s": 1_000_000, "ms": 1_000, "us": 1}
#: Text columns of a batch have 32-bit offsets; a batch with larger payloads is decoded in two halves.
_MAX_BYTES = 1 << 30


class JsonDecoder:
    """Decodes arrays of payloads into rows of one schema."""

    def __init__(self, schema: pa.Schema, timestamp_unit: TimestampUnit = "auto") -> None:
        """Prepare both passes.

        Raises:
            GraphError: a field's type cannot be read from JSON.
        """
        self.schema = schema
        self._exact = JsonRowDecoder(schema, timestamp_unit)
        kinds = [_kind(field.type) for field in schema]
        self._compiled = bool(kinds) and all(kind is not None for kind in kinds)
        if self._compiled:
            names = [field.name.encode() for field in schema]
            self._names = np.frombuffer(b"".join(names) or b"\0", np.uint8)
            self._name_offsets = np.cumsum([0, *map(len, names)]).astype(np.int64)
            fields = [
                (k, not f.nullable, *_bounds(f), _FACTORS[timestamp_unit]) for k, f in zip(kinds, schema, strict=True)
            ]
            self._fields = np.asarray(fields, np.int64)

    def decode(self, payloads: pa.LargeBinaryArray) -> Decoded:
        """Decode every payload; null and empty ones are bad."""
        count = len(payloads)
        if not self._compiled:
            return self._decode_exactly(payloads, np.arange(count))
        _, offset_buffer, data_buffer = payloads.buffers()
        offsets = np.frombuffer(offset_buffer, np.int64)[payloads.offset : payloads.offset + count + 1]
        if count > 1 and offsets[-1] - offsets[0] > _MAX_BYTES:
            return self._decode_halves(payloads)
        fields = len(self.schema)
        values, lengths = np.zeros((2, fields, count), np.int64)
        valid, status = np.zeros((fields, count), np.uint8), np.zeros(count, np.uint8)
        head = (fields, count, *(a.ctypes.data for a in (self._names, self._name_offsets, values, lengths, valid)))
        layout = np.concatenate([np.asarray(head, np.int64), self._fields.ravel()])
        data = data_buffer.address if data_buffer is not None and data_buffer.size else 0
        worst = json_table.parse(data, offsets.ctypes.data, layout.ctypes.data, status.ctypes.data)
        self._finish_floats(values, lengths, valid, status)
        if worst == 0 and not status.any():
            return Decoded(self._batch(values, lengths, valid))
        if (status == NON_ASCII).any() and not _is_utf8(payloads):
            status[status == NON_ASCII] = UNDECIDED
        ask = np.flatnonzero(status == UNDECIDED)
        if len(ask) == 0:
            return Decoded(self._batch(values, lengths, valid))
        keep = np.flatnonzero(status != UNDECIDED)
        quick = self._batch(*(np.ascontiguousarray(a[:, keep]) for a in (values, lengths, valid)))
        return _merge(Decoded(quick, keep), self._decode_exactly(payloads, ask))

    def _decode_halves(self, payloads: pa.LargeBinaryArray) -> Decoded:
        middle = len(payloads) // 2
        first, second = self.decode(payloads[:middle]), self.decode(payloads[middle:])
        bad = (*first.bad, *(BadPayload(b.index + middle, b.reason) for b in second.bad))
        index = np.concatenate([_index(first), _index(second) + middle])
        return Decoded(pa.concat_batches([first.rows, second.rows]), index, bad)

    def _decode_exactly(self, payloads: pa.LargeBinaryArray, which: np.ndarray[Any, Any]) -> Decoded:
        rows, index, bad = [], [], []
        for position in which.tolist():
            payload = payloads[position].as_py() or b""
            try:
                rows.append(self._exact.decode(payload))
                index.append(position)
            except RowError as error:
                bad.append(BadPayload(position, str(error)))
        batch = pa.RecordBatch.from_arrays(self._exact.columns(rows), schema=self.schema)
        return Decoded(batch, np.asarray(index, np.int64), tuple(bad))

    def _finish_floats(self, values: Any, lengths: Any, valid: Any, status: Any) -> None:
        """Parse the floats that the compiled pass left as text; rows with one out of range go to the exact decoder."""
        for c in np.flatnonzero(self._fields[:, 0] == FLOAT).tolist():
            floats = values[c].view(np.float64)
            for i in np.flatnonzero(valid[c] == AS_TEXT).tolist():
                floats[i] = float(ctypes.string_at(int(values[c, i]), int(lengths[c, i])))
                if np.isinf(floats[i]):
                    status[i] = UNDECIDED

    def _batch(self, values: Any, lengths: Any, valid: Any) -> pa.RecordBatch:
        columns = []
        for c, field in enumerate(self.schema):
            kind = int(self._fields[c, 0])
            present = valid[c] != NULL
            full = bool(present.all())
            if kind == TEXT:
                columns.append(_text((values[c], lengths[c], valid[c]), None if full else present, field.type))
                continue
            column = values[c]
            if kind == FLOAT:
                column = column.view(np.float64)
            columns.append(_fixed(column, None if full else present, kind, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def warm() -> None:
    """Run the compiled pass once, so that a job never loads or compiles code."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.float64()), ("c", pa.string()), ("d", pa.bool_())])
    JsonDecoder(schema).decode(pa.array([b'{"a":1,"b":1.5,"c":"\\n","d":true}'], type=pa.large_binary()))


def _kind(kind: pa.DataType) -> int | None:
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return INTEGER
    if pa.types.is_float64(kind) or pa.types.is_float32(kind):
        return FLOAT
    if pa.types.is_boolean(kind):
        return BOOLEAN
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return TEXT
    return TIMESTAMP if pa.types.is_timestamp(kind) else None


def _bounds(field: pa.Field) -> tuple[int, int]:
    kind = field.type
    if pa.types.is_integer(kind) and kind != pa.uint64():
        bits = kind.bit_width - (1 if pa.types.is_signed_integer(kind) else 0)
        return (-(1 << bits) if pa.types.is_signed_integer(kind) else 0), (1 << bits) - 1
    if pa.types.is_timestamp(kind):
        limit = _INT64_MAX // 1000 if kind.unit == "ns" else MAX_MICROS
        return max(MIN_MICROS, -limit), min(MAX_MICROS, limit)
    return -_INT64_MAX - 1, _INT64_MAX


def _bits(present: Any) -> pa.Buffer | None:
    return None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))


def _fixed(column: Any, present: Any, kind: int, target: pa.DataType) -> pa.Array:
    count = len(column)
    if kind == BOOLEAN:
        data = pa.py_buffer(np.packbits(column.astype(np.bool_), bitorder="little"))
        return pa.Array.from_buffers(target, count, [_bits(present), data])
    if kind == TIMESTAMP and target.unit != "us":
        column = column * 1000 if target.unit == "ns" else column // (1_000 if target.unit == "ms" else 1_000_000)
    column = np.ascontiguousarray(
        column.astype(target.to_pandas_dtype(), copy=False) if kind in {INTEGER, FLOAT} else column
    )
    return pa.Array.from_buffers(target, count, [_bits(present), pa.py_buffer(column)])


def _text(column: Any, present: Any, target: pa.DataType) -> pa.Array:
    starts, lengths, _ = column
    size = int(lengths.sum()) if present is None else int(lengths[present].sum())
    offsets, text = np.empty(len(starts) + 1, np.int32), np.empty(max(size, 1), np.uint8)
    source = np.asarray([a.ctypes.data for a in column], np.int64)
    used = json_table.texts(source.ctypes.data, len(starts), offsets.ctypes.data, text.ctypes.data)
    buffers = [_bits(present), pa.py_buffer(offsets), pa.py_buffer(text[:used])]
    array = pa.Array.from_buffers(pa.string(), len(starts), buffers)
    return array if target == pa.string() else array.cast(target)


def _is_utf8(payloads: pa.LargeBinaryArray) -> bool:
    try:
        payloads.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _index(decoded: Decoded) -> np.ndarray[Any, Any]:
    return np.arange(decoded.rows.num_rows) if decoded.payload_index is None else decoded.payload_index


def _merge(quick: Decoded, exact: Decoded) -> Decoded:
    """Merge the rows of both passes in the order of their payloads."""
    if exact.rows.num_rows == 0:
        return Decoded(quick.rows, quick.payload_index, exact.bad)
    index = np.concatenate([_index(quick), _index(exact)])
    order = np.argsort(index, kind="stable")
    rows = pa.concat_batches([quick.rows, exact.rows]).take(pa.array(order))
    return Decoded(rows, index[order], exact.bad)
