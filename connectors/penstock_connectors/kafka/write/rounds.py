"""How many messages the client is given before it must have delivered them: about one request a partition.

librdkafka has one request of an idempotent producer under way by partition (its limit of five counts messages), and
while more are waiting for that one's answer its thread asks again and again, without a pause: a processor busy with
nothing, most of all where the broker is slow because it lacks one. So a committer hands over a round, waits, and goes
on. Called by `kafka.committer`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

#: Of the most bytes of a request (`batch.size`), so that keys which are not spread evenly do not fill a second one.
_PARTITION_BYTES = 750_000
#: Less than what the client holds at all (`queue.buffering.max.kbytes`).
_MOST_BYTES = 64_000_000
#: A round goes out when it is complete: when it is flushed, not some milliseconds after its first message.
ROUND_PROPERTIES = {"linger.ms": "1000"}
#: What the client adds to a message when it counts.
_MESSAGE_BYTES = 80

Messages = tuple[pa.Array, pa.Array | None]


def round_bytes(partitions: int) -> int:
    """Return the most bytes of a round for a topic of so many partitions."""
    return min(max(1, partitions) * _PARTITION_BYTES, _MOST_BYTES)


def rounds(values: pa.Array, keys: pa.Array | None, most: int) -> Iterator[tuple[Messages, int]]:
    """Cut messages into stretches of about `most` bytes (at least one message each), each with its bytes."""
    rows = len(values)
    if not rows:
        return
    total = values.nbytes + (0 if keys is None else keys.nbytes) + rows * _MESSAGE_BYTES
    step = max(1, rows * most // total)
    for start in range(0, rows, step):
        part = values.slice(start, step)
        yield (part, None if keys is None else keys.slice(start, step)), total * len(part) // rows
