"""The one union of things that flow between operators: `Batch | Watermark | WatermarkStatus | Barrier | EndOfInput`.

Event time is carried inside the batch in the reserved column `__ts` (int64 microseconds since the epoch, UTC), so
that every kernel that moves rows moves their time too. No feature adds a field to `Barrier`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

#: Reserved column of event time: int64 microseconds since the epoch, UTC. Absent before a watermark strategy is
#: applied.
TS_COLUMN = "__ts"
#: A watermark at the end of all event time: every window and timer fires.
MAX_TIMESTAMP = (1 << 63) - 1
#: Before any watermark was seen.
MIN_TIMESTAMP = -(1 << 63)


class BarrierKind(enum.StrEnum):
    """Why a consistent cut is taken."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    #: A savepoint after which sources emit nothing more.
    STOP = "stop"
    #: As STOP, after a watermark at the end of time.
    DRAIN = "drain"

    @property
    def ends_job(self) -> bool:
        """Whether sources stay silent behind this barrier."""
        return self in (BarrierKind.STOP, BarrierKind.DRAIN)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows: an Arrow record batch, never empty on the wire."""

    data: pa.RecordBatch
    #: Rows are partial aggregates made before a shuffle; only a window that expects them gets any.
    combined: bool = False

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.data.num_rows)


@dataclass(frozen=True, slots=True)
class Watermark:
    """No row with an event time <= `timestamp` (microseconds) follows on this channel, save late ones."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """Whether a channel takes part in the minimum of watermarks."""

    idle: bool


@dataclass(frozen=True, slots=True)
class Barrier:
    """A cut: everything before it belongs to checkpoint `checkpoint_id`, nothing after it does."""

    checkpoint_id: int
    kind: BarrierKind = BarrierKind.CHECKPOINT


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """No row or watermark follows on this channel; barriers still do, until the final checkpoint."""


StreamElement = Batch | Watermark | WatermarkStatus | Barrier | EndOfInput
