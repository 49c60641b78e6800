"""What users write to say how far event time is: the protocol behind `WatermarkStrategy.for_generator`.

One generator belongs to one source split. Called by `penstock.operators.sources.source_watermarks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class WatermarkGenerator(Protocol):
    """Says after every batch, and between batches, how far its split is.

    A watermark (microseconds since the epoch) says that no row with its time or an earlier one comes after it; such
    rows are late. One that goes back is ignored. After a restore the split's watermark is what it was, while the
    generator starts anew.
    """

    def on_batch(self, times: np.ndarray[Any, np.dtype[np.int64]], rows: pa.RecordBatch) -> int | None:
        """Take the split's next batch: event times (microseconds), rows (with `__ts`); None: no news."""

    def on_periodic(self, now: int) -> int | None:
        """Take the clock's time (microseconds), between polls of the source; None: no news."""
