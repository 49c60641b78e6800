"""Rounds: the number of messages that the client gets before it must have delivered them, about a request a partition.

For an idempotent producer librdkafka has one request in flight per partition (its limit of five counts messages). While
more messages wait for the answer, its thread polls without a pause and keeps a processor busy, most of all where the
broker is slow because it lacks one. So a committer passes one round, waits, and continues. Called by `kafka.committer`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

#: Less than the most bytes of a request (`batch.size`), so that unevenly spread keys do not fill a second one.
_PARTITION_BYTES = 750_000
#: Less than the client's queue (`queue.buffering.max.kbytes`).
_MOST_BYTES = 64_000_000
#: A complete round is sent when it is flushed, not some milliseconds after its first message.
ROUND_PROPERTIES = {"linger.ms": "1000"}
#: Bytes that the client adds per message when it counts.
_MESSAGE_BYTES = 80

Messages = tuple[pa.Array, pa.Array | None]


def round_bytes(partitions: int) -> int:
    """Return the most bytes of a round for a topic of `partitions` partitions."""
    return min(max(1, partitions) * _PARTITION_BYTES, _MOST_BYTES)


def rounds(values: pa.Array, keys: pa.Array | None, most: int) -> Iterator[tuple[Messages, int]]:
    """Split messages into runs of about `most` bytes (at least one message each), each with its bytes."""
    rows = len(values)
    if not rows:
        return
    total = values.nbytes + (0 if keys is None else keys.nbytes) + rows * _MESSAGE_BYTES
    step = max(1, rows * most // total)
    for start in range(0, rows, step):
        part = values.slice(start, step)
        yield (part, None if keys is None else keys.slice(start, step)), total * len(part) // rows
