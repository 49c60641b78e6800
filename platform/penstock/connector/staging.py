"""The form of staged output and of dead letters: what sink and source operators write and connectors read.

A staged chunk is one Arrow IPC file, lz4-compressed. Encoded in the background by `penstock.task`, decoded by
committers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Columns of the side output `dead-letter`: the raw bytes, where they were (for files: path, null, byte), and why.
DEAD_LETTER_SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("error", pa.string(), nullable=False),
    ]
)
#: Tag of the side output that carries dead letters.
DEAD_LETTER_TAG = "dead-letter"


def encode_chunk(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return the batches as one Arrow IPC file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_chunk(data: bytes) -> pa.Table:
    """Return the rows of a staged chunk; inverse of `encode_chunk`."""
    return pa.ipc.open_file(pa.BufferReader(data)).read_all()
