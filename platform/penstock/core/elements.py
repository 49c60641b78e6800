"""The elements that flow between operators: `Batch | Watermark | WatermarkStatus | Barrier | EndOfInput`.

The reserved column `__ts` of a batch holds event time (int64 microseconds since the epoch, UTC), so that kernels that
move rows move their times too. No feature adds a field to `Barrier`.
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
    """The reason for a checkpoint."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    #: A savepoint after which sources emit nothing more.
    STOP = "stop"
    #: As STOP, after a watermark at the end of time.
    DRAIN = "drain"

    @property
    def ends_job(self) -> bool:
        """Return whether sources emit nothing after this barrier."""
        return self in (BarrierKind.STOP, BarrierKind.DRAIN)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows as an Arrow record batch, never empty on the wire."""

    data: pa.RecordBatch
    #: Rows are partial aggregates made before a shuffle; only windows that expect them receive any.
    combined: bool = False

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        return int(self.data.num_rows)


@dataclass(frozen=True, slots=True)
class Watermark:
    """A promise: no row with an event time <= `timestamp` (microseconds) follows on this channel, except late rows."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """The status of a channel: whether it takes part in the minimum of watermarks."""

    idle: bool


@dataclass(frozen=True, slots=True)
class Barrier:
    """The element that separates checkpoints: everything before it belongs to checkpoint `checkpoint_id`."""

    checkpoint_id: int
    kind: BarrierKind = BarrierKind.CHECKPOINT


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """The end of a channel's rows and watermarks; barriers still follow, until the final checkpoint."""


StreamElement = Batch | Watermark | WatermarkStatus | Barrier | EndOfInput
