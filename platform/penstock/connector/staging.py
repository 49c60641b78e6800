"""The format of staged output and of dead letters, which sink and source operators write and connectors read.

A staged chunk is one Arrow IPC file, lz4-compressed. Encoded in the background by `penstock.task`, decoded by
committers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Columns of the side output `dead-letter`: the record's bytes, its position (for files: path, null, byte), the error,
#: and for a Kafka message its key, timestamp and headers.
DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("error", pa.string(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)
#: Tag of the side output that carries dead letters.
DEAD_LETTER_TAG = "dead-letter"


def dead_letters(**columns: Sequence[Any]) -> pa.RecordBatch:
    """Return dead letters from some columns of `DEAD_LETTER_SCHEMA`, `value` among them; the others are null."""
    nothing = [None] * len(columns["value"])
    return pa.record_batch([columns.get(name, nothing) for name in DEAD_LETTER_SCHEMA.names], schema=DEAD_LETTER_SCHEMA)


#: Batches with fewer rows on average are written as one: each has a cost for every column, here and when it is read.
_SMALL_ROWS = 8192


def encode_chunk(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return the batches as one Arrow IPC file; small ones become one batch."""
    if sum(batch.num_rows for batch in batches) < _SMALL_ROWS * len(batches) and len(batches) > 1:
        batches = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_chunk(data: bytes) -> pa.Table:
    """Return the rows of a staged chunk; inverse of `encode_chunk`."""
    return pa.ipc.open_file(pa.BufferReader(data)).read_all()
