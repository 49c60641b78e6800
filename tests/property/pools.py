"""Columns of views into one pool, as a source hands them out that keeps its texts in one place."""

import struct

import pyarrow as pa


def pooled(values, kind, pool=b""):
    """Return strings or bytes as views; longer ones than 12 bytes stand in the pool, behind what it holds already."""
    words, pool = bytearray(), bytearray(pool)
    for value in values:
        data = b"" if value is None else value.encode() if isinstance(value, str) else value
        if len(data) <= 12:
            words += struct.pack("<i12s", len(data), data)
        else:
            words += struct.pack("<i4sii", len(data), data[:4], 0, len(pool))
            pool += data
    valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1] if None in values else None
    buffers = [valid, pa.py_buffer(bytes(words)), pa.py_buffer(bytes(pool))]
    column = pa.Array.from_buffers(kind, len(values), buffers)
    column.validate(full=True)
    return column
