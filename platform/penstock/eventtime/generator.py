"""The protocol of user-written watermark generators, for `WatermarkStrategy.for_generator`.

One generator belongs to one source split. Called by `penstock.operators.sources.source_watermarks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class WatermarkGenerator(Protocol):
    """Returns a watermark after every batch, and between batches.

    A watermark (microseconds since the epoch) promises that no row with its time or an earlier one follows; such rows
    are late. A watermark that goes back is ignored. After a restore the split has its old watermark, while the
    generator is a new object.
    """

    def on_batch(self, times: np.ndarray[Any, np.dtype[np.int64]], rows: pa.RecordBatch) -> int | None:
        """Take the split's next batch and return its watermark, or None to keep the present one.

        `times` are the event times (microseconds), `rows` have a column `__ts`.
        """

    def on_periodic(self, now: int) -> int | None:
        """Take the clock's time (microseconds), between polls of the source; return None to keep the watermark."""
