"""The marker: the last chunk and checkpoint that a sink subtask published, stored in Kafka with the output.

It is the offset of partition 0 of the sink's topic under the committable's marker group, set inside the publishing
transaction. Used by both committers; no client library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from penstock.core.errors import UndecidedOutputError
from penstock.core.snapshot import Committable

CHUNKS_PER_CHECKPOINT = 1 << 16
#: The marker of output younger than this certainly exists (brokers keep offsets for at least a minute). For older
#: output the broker's retention is requested.
SURELY_KEPT_MS = 60 * 1000
#: Kafka's default of `offsets.retention.minutes`, if the broker does not return it.
DEFAULT_RETENTION_MS = 7 * 24 * 3600 * 1000


def marker_of(checkpoint_id: int, chunk: int) -> int:
    """Return the marker of a published chunk; it orders by (checkpoint, chunk)."""
    if not 0 <= chunk < CHUNKS_PER_CHECKPOINT - 1:
        msg = f"an epoch has at most {CHUNKS_PER_CHECKPOINT - 1} chunks, not {chunk + 1}"
        raise ValueError(msg)
    return checkpoint_id * CHUNKS_PER_CHECKPOINT + chunk + 1


def checkpoint_of(marker: int) -> int:
    """Return the checkpoint a marker belongs to; negative when there is no marker."""
    return (marker - 1) // CHUNKS_PER_CHECKPOINT if marker > 0 else -1


def check_age(
    committables: Iterable[Committable], markers: Mapping[str, int], now_ms: int, retention_ms: Callable[[], int | None]
) -> None:
    """Refuse output whose marker may have expired: without a marker it is unknown whether it was published.

    Raises:
        UndecidedOutputError: names the output.
    """
    for item in committables:
        age = now_ms - item.created_ms
        if markers.get(item.marker_group, -1) >= 0 or item.created_ms <= 0 or age < SURELY_KEPT_MS:
            continue
        kept = retention_ms() or DEFAULT_RETENTION_MS
        if age >= kept:
            raise UndecidedOutputError(
                f"{item.rows} records of checkpoint {item.checkpoint_id} (sink {item.uid!r} subtask "
                f"{item.subtask}) are {age // 3_600_000} h old and Kafka keeps the marker "
                f"{item.marker_group!r} for {kept // 3_600_000} h only: "
                "it cannot be determined whether they were published",
                hint="check the topic, then restore with --accept-duplicates, or from a later checkpoint",
            )
