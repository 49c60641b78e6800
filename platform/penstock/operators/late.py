"""What becomes of late rows: counted, or put aside under the tag the job reads them by (`.late_to(tag)`).

Used by the window operators; what they put aside has the columns of the window's input as the user knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.core.elements import Batch

if TYPE_CHECKING:
    import numpy as np

    from penstock.operators.operator import Collector, OperatorMetrics


class TakesLate(Protocol):
    """Where late rows go."""

    def take(self, data: pa.RecordBatch, late: np.ndarray, out: Collector) -> None:
        """The rows of `data` where `late` is true are late."""


class LateRows:
    """The one place of an operator that late rows go to."""

    def __init__(self, config: dict[str, Any], metrics: OperatorMetrics) -> None:
        """`config` of the operator; without `late_to` in it, rows are counted in `numLateRecordsDropped`."""
        late = config.get("late_to")
        self._metrics = metrics
        self._tag: str | None = late["tag"] if late else None
        self._columns: list[str] = late["columns"] if late else []

    @property
    def routed(self) -> bool:
        """Whether the rows themselves are wanted."""
        return self._tag is not None

    def count(self, rows: int) -> None:
        """Rows that nobody wants are late."""
        self._metrics.late_records_dropped += rows

    def take(self, data: pa.RecordBatch, late: np.ndarray, out: Collector) -> None:
        """The rows of `data` where `late` is true are late."""
        rows = int(late.sum())
        if self._tag is None:
            self.count(rows)
        elif rows:
            out.side(self._tag, Batch(data.filter(pa.array(late)).select(self._columns)))
