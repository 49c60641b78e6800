"""Check that an Avro file is complete: pyiceberg's compiled decoder reads beyond the end of a truncated one.

Called by `iceberg` before manifests are decoded. Written after the Avro 1.11 specification, "Object Container Files".
"""

from __future__ import annotations

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MORE = 0x80


def require_whole(data: bytes) -> None:
    """Follow the blocks of a file to its end.

    Raises:
        ValueError: it is no Avro file, or it is truncated.
    """
    if not data.startswith(_MAGIC):
        raise ValueError("it is not an Avro file")
    position = _after_metadata(data, len(_MAGIC))
    sync = data[position : position + _SYNC_BYTES]
    position += _SYNC_BYTES
    while position < len(data):
        _, position = _long(data, position)
        size, position = _long(data, position)
        position += size
        if size < 0 or data[position : position + _SYNC_BYTES] != sync:
            raise ValueError("it is truncated or damaged")
        position += _SYNC_BYTES
    if position > len(data):
        raise ValueError("it is truncated")


def _after_metadata(data: bytes, position: int) -> int:
    """Return the position after the header's map of metadata."""
    while True:
        count, position = _long(data, position)
        if count == 0:
            return position
        if count < 0:  # the size of these entries follows
            _, position = _long(data, position)
        for _ in range(2 * abs(count)):
            size, position = _long(data, position)
            position += size


def _long(data: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length number and the position after it."""
    value = shift = 0
    while True:
        if not 0 <= position < len(data):
            raise ValueError("it is truncated")
        byte = data[position]
        position += 1
        value |= (byte & ~_MORE) << shift
        if not byte & _MORE:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
