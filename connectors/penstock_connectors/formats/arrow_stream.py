"""Arrow IPC stream messages: many rows in one payload, the fast format between jobs of penstock.

Called by the source readers (decode) and the sink's publisher (encode).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock_connectors.formats.decoded import BadPayload, Decoded

#: A message stays well below the broker's default limit of 1 MB.
MAX_MESSAGE_BYTES = 768 << 10
MAX_MESSAGE_ROWS = 10_000


def decode_arrow(payloads: pa.Array, schema: pa.Schema) -> Decoded:
    """Read each payload as one Arrow IPC stream whose schema has the fields of `schema` (in any order)."""
    batches: list[pa.RecordBatch] = []
    index: list[int] = []
    bad: list[BadPayload] = []
    for position, payload in enumerate(payloads):
        try:
            found = _read(payload, schema)
        except (pa.ArrowException, ValueError, OSError) as error:
            bad.append(BadPayload(position, str(error).splitlines()[0]))
            continue
        batches.extend(found)
        index.extend([position] * len(found))
    if not batches:
        return Decoded(_empty(schema), np.empty(0, np.int64), tuple(bad))
    rows = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
    lengths = [batch.num_rows for batch in batches]
    return Decoded(rows, np.repeat(np.asarray(index, np.int64), lengths), tuple(bad))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], type=field.type) for field in schema], schema=schema)


def _read(payload: pa.Scalar, schema: pa.Schema) -> list[pa.RecordBatch]:
    buffer = payload.as_buffer()
    if buffer is None or buffer.size == 0:
        raise ValueError("the payload is empty or null")
    with pa.ipc.open_stream(buffer) as reader:
        missing = [field.name for field in schema if field.name not in reader.schema.names]
        if missing:
            raise ValueError(f"fields {', '.join(missing)} are missing")
        out = []
        for batch in reader:
            batch.validate(full=True)
            columns = [batch.column(field.name).cast(field.type) for field in schema]
            for field, column in zip(schema, columns, strict=True):
                if not field.nullable and column.null_count:
                    raise ValueError(f"field {field.name!r} is null and not nullable")
            out.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return out


def encode_arrow(rows: pa.RecordBatch) -> pa.Array:
    """Return the rows as Arrow IPC streams, a payload at most `MAX_MESSAGE_ROWS` and about `MAX_MESSAGE_BYTES`."""
    payloads: list[bytes] = []
    for start in range(0, rows.num_rows, MAX_MESSAGE_ROWS):
        _encode(rows.slice(start, MAX_MESSAGE_ROWS), payloads)
    return pa.array(payloads, type=pa.large_binary())


def _encode(rows: pa.RecordBatch, payloads: list[bytes]) -> None:
    if rows.nbytes > MAX_MESSAGE_BYTES and rows.num_rows > 1:
        middle = rows.num_rows // 2
        _encode(rows.slice(0, middle), payloads)
        _encode(rows.slice(middle), payloads)
        return
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    payloads.append(sink.getvalue().to_pybytes())
